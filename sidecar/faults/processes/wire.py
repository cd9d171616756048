"""What is said between who runs a drill and the keeper: one JSON document per SOCK_SEQPACKET message, each answered."""

from __future__ import annotations

import msgspec

from sidecar.faults.processes.fault import Memo, ProcessFault

MAX_MESSAGE_BYTES = 64 * 1024


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Bring a fault about; ``number`` names it from now on."""

    call: int
    number: int
    fault: ProcessFault


class End(msgspec.Struct, frozen=True, tag="end"):
    """End a fault."""

    call: int
    number: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Say which faults are in force."""

    call: int


class Reply(msgspec.Struct, frozen=True):
    """The keeper's answer to ``call``. ``until`` is monotonic seconds; ``error`` says what did not come about."""

    call: int
    error: str = ""
    memo: Memo = {}
    until: float = 0.0
    undone: bool = False
    in_force: tuple[int, ...] = ()


REQUESTS: msgspec.json.Decoder[Begin | End | Look] = msgspec.json.Decoder(Begin | End | Look)
REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
encode = msgspec.json.Encoder().encode
