"""The headline: the same trace and the same workers behind warmroute, and behind proxies that know less of them.

``make headline`` measures it and writes docs/headline.md. Everything is on loopback and bounded in time.
"""
