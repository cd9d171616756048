"""Load a configuration: file, then environment, then flags; refused whole, with everything that is wrong with it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath

import msgspec

from sidecar.config.degrading import static_files, with_static_bodies
from sidecar.config.document import MAX_BYTES, Node, decode, node_of, parse
from sidecar.config.overrides import Override, lay_over
from sidecar.config.problems import Path, Problem, SettingsError, Where, dotted, shown
from sidecar.config.semantics import Finding, examine
from sidecar.config.structure import compare, conform
from sidecar.faults.checking import problems as fault_problems
from sidecar.settings import BODY_FILE_BYTES, Fault, ListenerTls, Settings, UpstreamTls

FLAGS = "command line"
"""Where a configuration without a file says it comes from."""


class Loaded(msgspec.Struct, frozen=True):
    """Settings that can be used, and what their user should know about them."""

    settings: Settings
    warnings: tuple[Problem, ...]


def load_settings(
    path: str | os.PathLike[str] | None, environ: Mapping[str, str], overrides: Sequence[Override] = ()
) -> Settings:
    """Return the settings of the file at ``path`` (None: no file), ``environ`` over it and ``overrides`` over both.

    :raises SettingsError: they cannot be used; it holds every problem found.
    """
    return load(path, environ, overrides).settings


def load(path: str | os.PathLike[str] | None, environ: Mapping[str, str], overrides: Sequence[Override] = ()) -> Loaded:
    """Do as :func:`load_settings`, and return the warnings too.

    :raises SettingsError: they cannot be used; it holds every problem found.
    """
    if path is None:
        return finish(node_of({"version": 1}, Where(FLAGS)), [], environ, overrides)
    name = os.fspath(path)
    return parse_settings(read(name, "name a configuration file that exists and can be read"), name, environ, overrides)


def parse_settings(
    data: bytes, name: str, environ: Mapping[str, str] | None = None, overrides: Sequence[Override] = ()
) -> Loaded:
    """Do as :func:`load` with the content of a file that errors call ``name``.

    :raises SettingsError: they cannot be used; it holds every problem found.
    """
    root, problems = parse(decode(data, name), name)
    return finish(root, problems, environ or {}, overrides)


def finish(root: Node, problems: list[Problem], environ: Mapping[str, str], overrides: Sequence[Override]) -> Loaded:
    """Do as :func:`load` with a tree that was read already, and the problems found meanwhile.

    :raises SettingsError: it cannot be used; it holds every problem found.
    """
    root, found = lay_over(root, environ, overrides)
    settings, differences = compare(root)
    problems = [*problems, *found, *differences]
    if settings is None or problems:
        raise SettingsError(in_order([*problems, *_faults(root)]))
    warnings: list[Problem] = []
    for finding in (*examine(settings), *_files(settings)):
        problem = placed(root, settings, finding)
        (warnings if finding.warning else problems).append(problem)
    if problems:
        raise SettingsError(in_order(problems))
    return Loaded(with_static_bodies(settings), tuple(in_order(warnings)))


def _faults(root: Node) -> Iterator[Problem]:
    """Yield what makes no sense about single faults of a configuration that does not fit the schema as a whole.

    Each makes sense or not whatever else is wrong. Of fields of its own that do not fit nothing more is said.
    """
    rules: Node | None = root
    for name in ("faults", "rules"):
        rules = _child(rules, name)
    for index, rule in enumerate(rules.value if rules is not None and isinstance(rules.value, list) else ()):
        if not isinstance(rule.value, dict):
            continue
        unfit = {problem.path for problem in conform(rule, Fault, "")[1]}
        fitting = Node({name: member for name, member in rule.value.items() if name not in unfit}, rule.where)
        fault, _ = conform(fitting, Fault, "")
        if fault is None:
            continue
        for field, remedy in fault_problems(fault):
            if field not in unfit:
                problem = placed(fitting, fault, Finding((field,), remedy))
                yield replace(problem, path=dotted(("faults", "rules", index, field)))


def in_order(problems: list[Problem]) -> list[Problem]:
    """Return problems as they stand in the file."""
    return sorted(problems, key=lambda problem: (problem.where.line, problem.where.column))


def placed(root: Node, settings: msgspec.Struct, finding: Finding) -> Problem:
    """Give ``finding`` its place; a default stands nowhere, so the nearest thing around it is named."""
    node: Node | None = root
    where = root.where
    for step in finding.path:
        node = _child(node, step)
        if node is None:
            break
        where = node.where
    return Problem(
        where, dotted(finding.path), node.shown if node else shown(_at(settings, finding.path)), finding.remedy
    )


def _child(node: Node | None, step: str | int) -> Node | None:
    value = node.value if node else None
    if isinstance(value, list) and isinstance(step, int):
        return value[step]
    if isinstance(value, dict) and isinstance(step, str) and step in value:
        return value[step].node
    return None


def _at(settings: msgspec.Struct, path: Path) -> object:
    value: object = msgspec.to_builtins(settings)
    for step in path:
        value = value[step] if isinstance(value, dict | list | tuple) else None  # type: ignore[index]
    return value


def read(path: str | os.PathLike[str], remedy: str) -> bytes:
    """Return the content of a regular file, a byte more than is allowed at most.

    :raises SettingsError: it cannot be read; ``remedy`` is what it says to do.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb", opener=_at_once) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return file.read(MAX_BYTES + 1)
            reason = "is not a regular file"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    raise SettingsError([Problem(Where(name), "", reason, remedy)])


def _at_once(name: str, flags: int) -> int:
    """Open without waiting, as for a FIFO's other end, which may never come."""
    return os.open(name, flags | os.O_NONBLOCK)


def _files(settings: Settings) -> Iterator[Finding]:
    """Look at the files that the configuration names; their content is read where it is needed, not here."""
    tls = settings.state.tls
    for path, name, secret, text in (
        (("admin", "token_file"), settings.admin.token_file, True, False),
        (("state", "password_file"), settings.state.password_file, True, True),
        (("state", "tls", "ca_file"), tls.ca_file, False, False),
        (("state", "tls", "cert_file"), tls.cert_file, False, False),
        (("state", "tls", "key_file"), tls.key_file, True, False),
    ):
        if name is not None:
            yield from _file(path, name, secret=secret, text=text)
    for where, name in _bodies(settings):
        yield from _file(where, name, secret=False, text=False)
        if FilePath(name).is_file() and FilePath(name).stat().st_size > BODY_FILE_BYTES:
            yield Finding(where, f"is larger than {BODY_FILE_BYTES} bytes: send a smaller body")
    for index, model in enumerate(settings.models):
        if model.static_answer is not None and model.static_answer.body_file is not None:
            place: Path = ("models", index, "static_answer", "body_file")
            yield from _file(place, model.static_answer.body_file, secret=False, text=True)
        call = None if model.static_answer is None else model.static_answer.call
        if call is not None and call.message_file is not None:
            place = ("models", index, "static_answer", "call", "message_file")
            yield from _file(place, call.message_file, secret=False, text=False)
    for path_, remedy in static_files(settings):
        yield Finding(path_, remedy)
    for where, part in tls_parts(settings):
        yield from _tls_files(where, part)


def _bodies(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield the files with the bodies of warm-up requests, and where each is named."""
    for index, model in enumerate(settings.models):
        for number, request in enumerate(model.warmup.requests if model.warmup is not None else ()):
            if request.body_file is not None:
                yield ("models", index, "warmup", "requests", number, "body_file"), request.body_file


def tls_parts(settings: Settings) -> Iterator[tuple[Path, ListenerTls | UpstreamTls]]:
    """Yield every part of ``settings`` that names certificates for the data path, and where it stands."""
    for index, listener in enumerate(settings.listeners):
        if listener.tls is not None:
            yield ("listeners", index, "tls"), listener.tls
    yield ("upstream_tls",), settings.upstream_tls


def _tls_files(path: Path, tls: ListenerTls | UpstreamTls) -> Iterator[Finding]:
    """Look at one part's files: each as every file, then whether OpenSSL takes them together."""
    found = False
    for field, name in (("cert_file", tls.cert_file), ("key_file", tls.key_file), ("ca_file", tls.ca_file)):
        if name is not None:
            for finding in _file((*path, field), name, secret=field == "key_file", text=False):
                found = found or not finding.warning
                yield finding
    if found or (tls.cert_file is None and tls.ca_file is None):
        return

    from sidecar.tls.material import MaterialError, check_files  # brings the ssl module along: where there is TLS only

    try:
        check_files(tls)
    except MaterialError as error:
        yield Finding((*path, error.field), str(error))


def _file(path: Path, name: str, *, secret: bool, text: bool) -> Iterator[Finding]:
    try:
        mode = FilePath(name).stat().st_mode
        if not stat.S_ISREG(mode):  # opening a FIFO would wait for a writer
            yield Finding(path, "is not a regular file: name one")
            return
        with FilePath(name).open("rb") as file:
            content = file.read(MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        yield Finding(path, f"cannot be read ({reason}): name a file that this user can read")
        return
    if not content.strip():
        yield Finding(path, "is empty: put the content in it, or leave the field out")
    if text:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            yield Finding(path, f"byte {error.start + 1} of it is not UTF-8: save the file as UTF-8")
    if secret and mode & stat.S_IROTH:
        yield Finding(path, f"every user of this machine can read it: chmod 600 {name}", warning=True)
