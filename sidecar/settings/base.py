"""What all parts of the configuration schema are made of.

A field's metadata stands in its annotation: ``doc(reload, text, unit)``. Reload classes: ``live`` takes effect on the
next request, ``new`` on new connections, ``restart`` needs a new process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class Reload(StrEnum):
    """When a changed value takes effect."""

    LIVE = "live"
    NEW = "new connections"
    RESTART = "restart"


def doc(
    reload: Reload,
    text: str,
    unit: str = "",
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    form: tuple[str, str] | None = None,
) -> Meta:
    """Document and bound a field.

    ``form`` is a pattern for text, and what it asks for in words; the pattern is empty where it stands at the type, as
    it must in a field that may be null.
    """
    extra = {"reload": reload.value, "unit": unit, "form": form[1] if form else ""}
    return Meta(description=text, extra=extra, ge=ge, gt=gt, le=le, pattern=form[0] or None if form else None)  # type: ignore[call-overload,no-any-return]


LABEL = (r"^[A-Za-z0-9._-]{0,128}\Z", "at most 128 letters, digits, dots, underscores or hyphens")
"""Form of a name for metrics, logs and paths; without a colon, so that it never is another one's HOST:PORT."""


Seconds = Annotated[float, Meta(gt=0, le=86400)]
"""A duration in a field that may be null: msgspec takes bounds where the number stands."""


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All parts of the configuration: immutable, and strict about unknown fields."""


Number = Annotated[int, Meta(ge=1, le=1 << 20)]
"""A limit in a field that may be null."""


UrlPath = Annotated[str, Meta(pattern=r"^/[!-~]*\Z")]
PATH_FORM = ("", "a path that starts with / and holds neither spaces nor control characters")
ServedName = Annotated[str, Meta(pattern=r"^[!-~]{1,256}\Z")]
