"""Faults that warmroute injects into its own data path: small, removable, bounded in time.

A rule (``rules.FaultRule``) says which kind, for which attempts, how often and until when. A kind is one class in a
file of its own (``kind.Kind``), and ``kinds.KINDS`` names them. Off, the data path pays one test of None.

Nothing here knows an event loop but ``link``, which carries an attempt that is struck.
"""
