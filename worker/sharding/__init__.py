"""Splitting a model version over several workers: what each shard reads, and how many shards are worth it.

A split is described once, in ``manifest.json`` (:mod:`worker.sharding.manifest`); a worker that holds one shard then
reads its own slices and nothing else.
"""

from __future__ import annotations


class ShardError(Exception):
    """A model cannot be split, or a split cannot be read; the text names file, layer, value and remedy."""
