"""Bodies for traces that have none: a text with placeholders."""

from __future__ import annotations

import json
from string import Template
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIELDS: Final = ("model", "prompt", "context_tokens", "generated_tokens", "number")
DEFAULT: Final = '{"model": "$model", "prompt": "$prompt", "max_tokens": $generated_tokens}'
"""What an OpenAI completion asks for."""
_WORDS: Final = "a in is to of and the for it on was as with be by at from this have or which one you had".split()  # noqa: SIM905


class TemplateError(ValueError):
    """A template that cannot be filled; the message says where and what may stand there."""


class BodyTemplate:
    """``$NAME`` or ``${NAME}`` for each of :data:`FIELDS`, ``$$`` for a dollar.

    Values are put in as they stand in a JSON text: numbers bare, texts without their quotes, which the template has.
    """

    def __init__(self, text: str) -> None:
        """Check a template.

        Raises:
            TemplateError: a placeholder is none.
        """
        self._template = Template(text)
        for line, content in enumerate(text.splitlines(), 1):
            for match in Template.pattern.finditer(content):
                name = match["named"] or match["braced"]
                if match["invalid"] is not None:
                    raise TemplateError(f"line {line}: a $ that begins no name; write $$ for a dollar")
                if name and name not in FIELDS:
                    raise TemplateError(f"line {line}: ${name}: there are ${', $'.join(FIELDS)}")
        found = {match["named"] or match["braced"] for match in Template.pattern.finditer(text)}
        self.needs = frozenset(name for name in found if name)

    def fill(self, values: Mapping[str, str | int]) -> bytes:
        """Return the body; ``values`` has at least what the template ``needs``, save the prompt, which is made up."""
        texts = {
            name: json.dumps(value)[1:-1] if isinstance(value, str) else str(value) for name, value in values.items()
        }
        if "prompt" in self.needs and "prompt" not in texts:  # made up, a text of its own
            texts["prompt"] = prompt(int(values["context_tokens"]), int(values["number"]))
        return self._template.substitute(texts).encode()


def prompt(tokens: int, number: int) -> str:
    """Return about ``tokens`` tokens of nothing: as many common words, which most vocabularies have as one token each.

    The first of them differ with ``number``, so that no two prompts share a beginning that a server could keep.
    Numbers from 191 millions on begin as smaller ones do.
    """
    count = len(_WORDS)
    words = [_WORDS[number // count**place % count] for place in range(min(tokens, 6))]
    return " ".join(words + [_WORDS[place % count] for place in range(tokens - len(words))])


BLOCK_TOKENS: Final = 512
"""Of a Mooncake trace, whose ids stand for as many tokens each."""


def prompt_of(blocks: Sequence[int], tokens: int) -> str:
    """Return about ``tokens`` tokens that begin as all prompts do which begin with the same blocks."""
    parts = []
    left = tokens
    for block in blocks:
        parts.append(prompt(min(left, BLOCK_TOKENS), block))
        left -= min(left, BLOCK_TOKENS)
    if left:  # more than its blocks say
        parts.append(prompt(left, 0))
    return " ".join(part for part in parts if part)
