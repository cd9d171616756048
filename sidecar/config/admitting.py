"""What makes no sense in who may wait, in which order, and how much of a model may be in flight."""

from __future__ import annotations

import re
from collections.abc import Iterator

from router.model import HTTP
from router.policy import OnNoCandidate
from router.urls import protocol_of
from sidecar.config.choosing import FIELD_NAME, NO_KEYS
from sidecar.config.problems import Path
from sidecar.http1.forwarding import is_forwarding
from sidecar.http1.sorting import DEFAULT_KIND
from sidecar.settings import MOST_CLASSES, Admission, Settings, Trust

_CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def admitting(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield (path, remedy) of everything that makes no sense."""
    admission = settings.policies.admission
    path: Path = ("policies", "admission")
    yield from _header((*path, "priority", "header"), admission.priority.header, admission, used=_sorts(admission))
    if admission.tenant.header is not None:
        yield from _header((*path, "tenant", "header"), admission.tenant.header, admission, used=True)
    classes: Path = (*path, "priority", "classes")
    if len(admission.priority.classes) > MOST_CLASSES:
        yield classes, f"{len(admission.priority.classes)} classes, at most {MOST_CLASSES}"
    for name in admission.priority.classes:
        if not _CLASS_NAME.fullmatch(name):
            yield (*classes, name), "must be 1 to 64 letters, digits, dots, underscores or hyphens"
        elif name.lower() == DEFAULT_KIND:
            yield (*classes, name), "is the class of requests that name none, of rank 0: choose another name"
    processes = max(listener.processes for listener in settings.listeners)
    for index, model in enumerate(settings.models):
        requests = model.admission.requests
        if requests is not None and requests < processes:
            yield (
                ("models", index, "admission", "requests"),
                f"must be at least {processes}, the number of data processes: each has a part of it",
            )
        urls = model.endpoints
        if model.on_no_candidate is OnNoCandidate.LAZY and urls and all(protocol_of(url) != HTTP for url in urls):
            yield (
                ("models", index, "on_no_candidate"),
                "lazy asks endpoints to load over HTTP, and this model has none: give it one, or use wait",
            )


def _sorts(admission: Admission) -> bool:
    return bool(admission.priority.classes)


def _header(path: Path, name: str, admission: Admission, *, used: bool) -> Iterator[tuple[Path, str]]:
    if not FIELD_NAME.fullmatch(name):
        yield path, "must be a field name: 1 to 64 letters, digits or hyphens"
    elif name.lower() in NO_KEYS:
        yield path, "says nothing of who asks: choose another field, for example x-priority"
    elif used and admission.trust is Trust.ANYBODY and is_forwarding(name.lower().encode()):
        yield (
            path,
            "is taken out of what strangers send: choose another field, for example x-priority",
        )
