"""Which tensors are split, and along which dimension: pure, by the names that transformers' layers go by.

- Query, key and value projections are split on dimension 0, their output channels: heads are whole, so these must be
  divisible by the number of shards. Where the three lie in one tensor, one behind the other, each third is split by
  itself, on the dimension that is three times the other one: a shard has heads of all three.
- The up- and gate-projections of an MLP are split on dimension 1, padded with zeros to a multiple of the number of
  shards; what is computed from the padding is cropped after. Where both lie in one tensor, each half by itself.
- What follows them takes in what they give out, and is split along that: an attention's output projection on dimension
  1, the down-projection of an MLP on dimension 0, both padded. Their biases are whole: they are added to the sum.
- Embeddings and the head over the vocabulary are split by its entries, dimension 0, padded.
- Everything else is whole on every shard: norms, routers of experts, low-rank factors, positions.

A layer goes by its whole name, so ``q_norm`` is no ``q``. Rules of one's own come before these:
``rules: [{match: REGEX, dim: 0 or 1, pad: true, parts: 2}]``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from worker.sharding import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker.sharding.tensors import TensorInfo

MOST_SHARDS: Final = 256
"""As the router's configuration has it."""

MOST_PARTS: Final = 16


class Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Tensors whose name holds ``match`` (a regular expression) are split on ``dim``; null: never."""

    match: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    dim: Annotated[int, msgspec.Meta(ge=0, le=1)] | None
    pad: bool = False
    """Whether a size that the shards do not divide is padded; else it is refused."""
    vectors: bool = True
    """Whether vectors of that name (biases) are split, too."""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 1
    """How many equal parts lie one behind the other along ``dim``, each of which is split."""


_HEADS = r"(q|k|v|query|key|value|query_key_value)(_?proj)?"
"""``query_key_value`` has the three of each head side by side, so it is split between heads as one of them is."""
_FUSED = r"(W?qkv(_?proj)?|c_attn|in_proj(?=_))"
"""Query, key and value one behind the other. ``in_proj.weight`` is not one of them: that is a state space model's."""
_UP = r"((up|gate)_?proj|\w*mlp[._/]up|fc1|c_fc|w1|w3|dense_h_to_4h|intermediate[._/]dense)"
_ATTENTION_OUT = r"(o_proj|out_proj|\w*attn[._/]c_proj|\w*attention[._/](output|dense|output[._/]dense))"
_DOWN = r"(down_?proj|fc2|\w*mlp[._/](down|c_proj)|w2|dense_4h_to_h|output[._/]dense)"
_VOCABULARY = r"(embed_tokens|tok_embeddings|word_embeddings|wte|token_embedding|embedding|lm_head|embed_out)"


def _named(names: str) -> str:
    """Return what matches the parameters of a layer: its whole name, the operator that has them, what they are."""
    return rf"(^|[./]){names}([./](MatMul|Gemm|Gather|Add|linear|base_layer))?([._/](weight|bias|kernel)\w*)?$"


BUILT_IN: Final = (
    Rule(_named(_HEADS), 0),
    Rule(_named(r"gate_up(_?proj)?"), 1, pad=True, parts=2),
    Rule(_named(_UP), 1, pad=True),
    Rule(_named(_ATTENTION_OUT), 1, pad=True, vectors=False),
    Rule(_named(_DOWN), 0, pad=True, vectors=False),
    Rule(_named(_VOCABULARY), 0, pad=True),
)


@dataclass(frozen=True, slots=True)
class Split:
    """How one tensor is divided: whole where ``dim`` is None. ``padded`` is the size of ``dim`` with the padding.

    ``parts`` of equal size lie one behind the other along ``dim``; a shard has the same piece of each.
    """

    dim: int | None = None
    size: int = 0
    padded: int = 0
    parts: int = 1

    def part(self, shard: int, shards: int) -> tuple[int, int]:
        """Return where a shard's piece begins and ends along ``dim`` in each part, without the padding."""
        size, width = self.size // self.parts, self.padded // self.parts // shards
        return min(size, shard * width), min(size, (shard + 1) * width)


def split_for(tensor: TensorInfo, shards: int, rules: Sequence[Rule] = ()) -> Split:
    """Return how ``tensor`` is divided over ``shards``.

    A vector (a bias) that a rule names has one dimension, and is split on that.

    Raises:
        ShardError: a rule names it, and its size is not divisible, or does not tell how; or it has no such dimension.
    """
    if not tensor.shape:
        return Split()
    rule = next((rule for rule in rules if _search(rule, tensor.name)), None) or _built_in(tensor)
    if rule is None or rule.dim is None or (len(tensor.shape) == 1 and not rule.vectors):
        return Split()
    dim = 0 if len(tensor.shape) == 1 else rule.dim
    size = tensor.shape[dim]
    if size % rule.parts:
        raise ShardError(
            f"layer {tensor.name!r}: {size} (dimension {dim}) is not {rule.parts} equal parts; store them apart, or "
            "keep it whole: a rule with dim: null"
        )
    each = size // rule.parts
    width = -(-each // shards)
    if each % shards and not rule.pad:
        of = f" of each of {rule.parts} parts" if rule.parts > 1 else ""
        raise ShardError(
            f"layer {tensor.name!r}: {each} output channels{of} (dimension {dim}) are not divisible by {shards} "
            f"shards; take a divisor of {each}, or a rule with pad: true"
        )
    return Split(dim, size, width * shards * rule.parts, rule.parts)


def _built_in(tensor: TensorInfo) -> Rule | None:
    if re.search(_named(_FUSED), tensor.name) is None:
        return next((rule for rule in BUILT_IN if _search(rule, tensor.name)), None)
    thirds = [dim for dim, size in enumerate(tensor.shape) if size * size == 3 * prod(tensor.shape)]
    if len(tensor.shape) == 1 and not tensor.shape[0] % 3:
        thirds = [0]
    if len(tensor.shape) > 2 or not thirds:
        raise ShardError(
            f"layer {tensor.name!r}: has query, key and value in one, and {list(tensor.shape)} does not tell where "
            "each ends, as no dimension is three times the other; store them apart, or say how it is split: a rule "
            "with parts: 3 where they are of one size, or with dim: null to keep it whole"
        )
    return Rule(_FUSED, thirds[0], parts=3)


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
