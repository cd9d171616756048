"""Which tensors are split, and along which dimension: pure, by the names that transformers' layers go by.

- Query, key and value projections are split on dimension 0, their output channels: heads are whole, so these must be
  divisible by the number of shards.
- The up- and gate-projections of an MLP are split on dimension 1, padded with zeros to a multiple of the number of
  shards; what is computed from the padding is cropped after.
- Everything else is whole on every shard.

Rules of one's own come before these: ``rules: [{match: REGEX, dim: 0 or 1, pad: true}]``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from worker.sharding import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.sharding.tensors import TensorInfo

MOST_SHARDS: Final = 256
"""As the router's configuration has it."""


class Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Tensors whose name holds ``match`` (a regular expression) are split on ``dim``; null: never."""

    match: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    dim: Annotated[int, msgspec.Meta(ge=0, le=1)] | None
    pad: bool = False
    """Whether a size that the shards do not divide is padded; else it is refused."""


BUILT_IN: Final = (
    Rule(r"(^|[._/])((q|k|v|qkv|query|key|value|query_key_value|c_attn|Wqkv)(_?proj)?|in_proj)([._/]|$)", 0),
    Rule(r"(^|[._/])(up|gate|gate_up|fc1|c_fc|w1|w3|dense_h_to_4h|intermediate[._/]dense)(_?proj)?([._/]|$)", 1, True),
)


@dataclass(frozen=True, slots=True)
class Split:
    """How one tensor is divided: whole where ``dim`` is None. ``padded`` is the size of ``dim`` with the padding."""

    dim: int | None = None
    size: int = 0
    padded: int = 0

    def part(self, shard: int, shards: int) -> tuple[int, int]:
        """Return where a shard's part begins and ends along ``dim``, without the padding."""
        width = self.padded // shards
        return min(self.size, shard * width), min(self.size, (shard + 1) * width)


def split_for(tensor: TensorInfo, shards: int, rules: Sequence[Rule] = ()) -> Split:
    """Return how ``tensor`` is divided over ``shards``.

    A vector (a bias) that a rule names has one dimension, and is split on that.

    Raises:
        ShardError: a rule names it, and its size is not divisible; or it has no such dimension.
    """
    rule = next((rule for rule in (*rules, *BUILT_IN) if _search(rule, tensor.name)), None)
    if rule is None or rule.dim is None or not tensor.shape:
        return Split()
    dim = 0 if len(tensor.shape) == 1 else rule.dim
    size = tensor.shape[dim]
    width = -(-size // shards)
    if size % shards and not rule.pad:
        raise ShardError(
            f"layer {tensor.name!r}: {size} output channels (dimension {dim}) are not divisible by {shards} shards; "
            f"take a divisor of {size}, or a rule with pad: true"
        )
    return Split(dim, size, width * shards)


def _search(rule: Rule, name: str) -> bool:
    try:
        return re.search(rule.match, name) is not None
    except re.error as error:
        raise ShardError(f"rules: match: {rule.match!r}: {error}") from error


def check_shards(shards: int) -> int:
    """Return ``shards`` where it is a number of shards that can be.

    Raises:
        ShardError: it is not.
    """
    if not 2 <= shards <= MOST_SHARDS:
        raise ShardError(f"{shards} shards: must lie between 2 and {MOST_SHARDS}")
    return shards
