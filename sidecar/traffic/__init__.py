"""Traffic that warmroute makes itself: an open loop of timed requests, and what became of them.

Used by the command line and by drills. The processes of a sidecar import nothing of it.
"""
