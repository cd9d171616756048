"""Declared answers of gRPC calls: what makes no sense in them, and the bytes that they are.

protobuf is loaded where one is declared only: no process of a sidecar needs it otherwise.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec

from sidecar.config.problems import Path
from sidecar.settings import MODEL_INFER, StaticCall

MAX_BYTES: Final = 65536
METHOD: Final = re.compile(r"/[A-Za-z0-9_.]{1,256}/[A-Za-z0-9_]{1,128}")
METHOD_REMEDY: Final = f"must be /PACKAGE.SERVICE/METHOD, for example {MODEL_INFER}"
_NAME: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_VALUE: Final = re.compile(r"[!-~]([ !-~]{0,1022}[!-~])?")
_OURS: Final = frozenset({"age", "cache-status", "connection", "content-length", "content-type", "te", "x-request-id"})
_FORMS: Final = ("json", "message", "message_file")


class MessageError(ValueError):
    """What is declared is no message; the text says why."""


def examine_call(path: Path, call: StaticCall) -> Iterator[tuple[Path, str]]:
    """Yield (path, remedy) of everything that makes no sense, but for what stands in files."""
    given = [name for name in _FORMS if getattr(call, name) is not None]
    if len(given) != 1:
        yield path, f"must have the message in one form: {', '.join(_FORMS[:-1])} or {_FORMS[-1]}"
    if not METHOD.fullmatch(call.method):
        yield (*path, "method"), METHOD_REMEDY
    for name, value in call.metadata.items():
        place: Path = (*path, "metadata", name)
        if not _NAME.fullmatch(name) or name.endswith("-bin"):
            yield place, "must be 1 to 64 lower-case letters, digits, dots, hyphens or underscores, and not end in -bin"
        elif name in _OURS or name.startswith(("grpc-", "warmroute-")):
            yield place, "is written by the sidecar itself: leave it out"
        elif not _VALUE.fullmatch(value):
            yield place, "must be 1 to 1024 visible characters, blanks between them"
    for name in given[:1]:
        if name != "message_file":
            try:
                message_of(call)
            except MessageError as error:
                yield (*path, name), str(error)


def examine_file(path: Path, call: StaticCall) -> Iterator[tuple[Path, str]]:
    """Yield (path, remedy) of what is wrong with the file of a call's message; one that cannot be read is nothing."""
    if call.message_file is not None and FilePath(call.message_file).is_file():
        try:
            message_of(call)
        except MessageError as error:
            yield (*path, "message_file"), str(error)
        except OSError:
            return


def resolved(call: StaticCall) -> StaticCall:
    """Return a call whose message stands in ``message``: data processes read no files and know no protobuf."""
    message = b64encode(message_of(call)).decode()
    return msgspec.structs.replace(call, json=None, message_file=None, message=message)


def message_of(call: StaticCall) -> bytes:
    """Return the bytes of a declared message.

    :raises MessageError: there is none, or it is too long.
    """
    if call.json is not None:
        data = _of_json(call.json, call.method)
    elif call.message is not None:
        try:
            data = b64decode(call.message, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MessageError(f"is not base64 ({error}): encode the message's bytes") from error
    elif call.message_file is not None:
        with FilePath(call.message_file).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        data = b""
    if len(data) > MAX_BYTES:
        raise MessageError(f"has over {MAX_BYTES} bytes: declare a shorter answer")
    if call.method == MODEL_INFER and call.json is None:
        _check(data)
    return data


def _of_json(value: dict[str, Any], method: str) -> bytes:
    if method != MODEL_INFER:
        raise MessageError(
            "is for ModelInfer alone: give the bytes of this method's message, in message or message_file"
        )
    from google.protobuf.json_format import ParseDict, ParseError
    from warmroute_pb.v1.open_inference_pb2 import ModelInferResponse

    try:
        data: bytes = ParseDict(value, ModelInferResponse()).SerializeToString(deterministic=True)
    except (ParseError, TypeError, ValueError) as error:
        raise MessageError(f"is no ModelInferResponse: {_line(error)}") from error
    return data


def _check(data: bytes) -> None:
    from google.protobuf.message import DecodeError
    from warmroute_pb.v1.open_inference_pb2 import ModelInferResponse

    try:
        ModelInferResponse.FromString(data)
    except DecodeError as error:
        raise MessageError(f"is no ModelInferResponse: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:256]
