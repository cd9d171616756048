"""The rolling restart for real: workers killed and restarted in turn behind warmroute, nginx, HAProxy and Envoy.

``make restart`` runs all of it and writes the table of docs/routing.md. Everything is on loopback and bounded in time.
"""
