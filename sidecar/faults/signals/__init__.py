"""Faults of signals: what endpoints say of themselves arrives altered, late, or not at all.

They are applied in the control process, between what it received and what it goes by and tells the data processes; the
truth is kept beside, and told when a fault ends. No byte of a caller is touched. Pure.
"""
