"""Draws the pictures of docs/: ``python -m tools.pictures``; ``--check`` says whether they are fresh.

State diagrams take their arrows from the transition tables that the code runs on, so they cannot go stale unseen.
"""
