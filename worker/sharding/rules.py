"""Which tensors are split, and along which dimension: pure, by the names that transformers' layers go by.

- Query, key and value projections are split on dimension 0, their output channels: heads are whole, so these must be
  divisible by the number of shards.
- The up- and gate-projections of an MLP are split on dimension 1, padded with zeros to a multiple of the number of
  shards; what is computed from the padding is cropped after.
- What follows them takes in what they give out, and is split along that: an attention's output projection on dimension
  1, the down-projection of an MLP on dimension 0, both padded. Their biases are whole: they are added to the sum.
- Embeddings and the head over the vocabulary are split by its entries, dimension 0, padded.
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
    vectors: bool = True
    """Whether vectors of that name (biases) are split, too."""


_HEADS = r"((q|k|v|qkv|query|key|value|query_key_value|c_attn|Wqkv)(_?proj)?|in_proj)"
_UP = r"(up|gate|gate_up|fc1|c_fc|w1|w3|dense_h_to_4h|intermediate[._/]dense)(_?proj)?"
_ATTENTION_OUT = r"(o_proj|out_proj|attn[._/]c_proj|attention[._/](output|dense|output[._/]dense))"
_DOWN = r"(down(_?proj)?|fc2|mlp[._/]c_proj|w2|dense_4h_to_h|output[._/]dense)"
_VOCABULARY = r"(embed_tokens|tok_embeddings|word_embeddings|wte|token_embedding|embedding|lm_head|embed_out)"


def _named(names: str) -> str:
    return rf"(^|[._/]){names}([._/]|$)"


BUILT_IN: Final = (
    Rule(_named(_HEADS), 0),
    Rule(_named(_UP), 1, pad=True),
    Rule(_named(_ATTENTION_OUT), 1, pad=True, vectors=False),
    Rule(_named(_DOWN), 0, pad=True, vectors=False),
    Rule(_named(_VOCABULARY), 0, pad=True),
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
    if len(tensor.shape) == 1 and not rule.vectors:
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
