"""What makes no sense in how endpoints are chosen: balancers and their keys, scorers and their coefficients."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from router.policy import AffinityPolicy, BalancerName, PolicyError, ShardMode
from router.scorers import default_scorers, scorer_names
from sidecar.config.problems import Path, nearest
from sidecar.http1.forwarding import is_forwarding
from sidecar.http1.json_key import JsonKey, JsonPathError
from sidecar.settings import Model, Settings

FIELD_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
"""Form of a header field's name; longer ones and other characters are legal, and nobody's."""

NO_KEYS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "grpc-timeout",
        "http2-settings",
        "keep-alive",
        "te",
        "traceparent",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
        "x-request-timeout-ms",
    }
)
"""Fields that say nothing of who asks: of one connection or one request only, or changed on the way."""


def choosing(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield (path, remedy) of everything that makes no sense."""
    for index, model in enumerate(settings.models):
        yield from _key(("models", index), model)
        yield from _affinity(("models", index, "affinity"), model)
    yield from _scorers(settings)


def _key(place: Path, model: Model) -> Iterator[tuple[Path, str]]:
    key = model.key
    path: Path = (*place, "key")
    by_balancer, by_shard = model.balancer is BalancerName.KEYED, model.shards.mode is ShardMode.KEYED
    if key is None:
        for wants, field in ((by_balancer, ("balancer",)), (by_shard, ("shards", "mode"))):
            if wants:
                yield (*place, *field), "keyed needs a key: set key, for example {header: x-session-id}"
        return
    if not (by_balancer or by_shard):
        yield path, "has no use unless balancer or shards.mode is keyed: set one, or leave this out"
    if (key.header is not None) + (key.json is not None) + key.last_segment != 1:
        yield path, "must say where the key is: either header, or json, or last_segment: true"
    if key.json is not None:
        try:
            JsonKey(key.json)
        except JsonPathError as error:
            yield (*path, "json"), str(error)
    if key.header is not None:
        for remedy in check_key_field(key.header):
            yield (*path, "header"), remedy


def check_key_field(name: str) -> Iterator[str]:
    """Yield why a field is no use as a key."""
    if not FIELD_NAME.fullmatch(name):
        yield "must be a field name: 1 to 64 letters, digits or hyphens"
    elif name.lower() in NO_KEYS or is_forwarding(name.lower().encode()):
        yield "says nothing of who asks: choose another field, for example x-session-id"


def _affinity(path: Path, model: Model) -> Iterator[tuple[Path, str]]:
    affinity = model.affinity
    if affinity is None:
        return
    if model.balancer is BalancerName.KEYED:
        yield path, "keyed says where a request goes already: choose another balancer, or leave this out"
    try:
        AffinityPolicy(**msgspec.structs.asdict(affinity))
    except PolicyError as error:
        yield (*path, error.field.rpartition(".")[2]), error.remedy


def _scorers(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Refuse scorers that there are not, or that cannot be made."""
    scoring = settings.policies.scoring
    known = scorer_names()
    path: Path = ("policies", "scoring", "coefficients")
    unknown = [name for name in scoring.coefficients if name not in known]
    for name in unknown:
        meant = nearest(name, known)
        yield (*path, name), f'no such scorer; did you mean "{meant}"?' if meant else _there_are(known)
    if not unknown:
        try:
            default_scorers(scoring)
        except Exception as error:  # noqa: BLE001  whatever a module of somebody else's raises
            yield path, f"a scorer cannot be made: {type(error).__name__}: {error}"


def _there_are(known: tuple[str, ...]) -> str:
    return f"no such scorer; there are: {', '.join(known)}"
