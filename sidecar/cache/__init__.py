"""Answers kept from good times, for bad ones: what may be kept, under which key, for how long, and how it is told."""
