"""The prompt in a call's first message, for prefix affinity (``router.affinity``): as much of one input as counts.

That is the first element of a BYTES tensor of a ModelInferRequest, found by its name among the inputs: in its own
contents, or among the raw contents behind all inputs, which stand there in the order of the inputs. No tensor is
parsed: others are passed over by their length, and of the prompt no more is waited for than its blocks take. Fields
are read in the order in which every serialiser writes them; a message with others has no prompt. Pure, and bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.affinity import blocks_of
from sidecar.grpc.matching import MESSAGE_HEAD, PACKINGS, unpacked
from sidecar.grpc.reading import BadError, CutError, field_at

if TYPE_CHECKING:
    from router.policy import AffinityPolicy

MOST_FIELDS: Final = 1024
"""So many fields of one message are looked at, so that many small ones cost a caller more than they cost here."""
_FIELD_HEAD_BYTES: Final = 20
"""A field's tag and length take no more."""
_INPUTS: Final = 5
_RAW: Final = 7
_TENSOR_NAME: Final = 1
_DATATYPE: Final = 2
_TENSOR_PARAMETERS: Final = 4
_CONTENTS: Final = 5
_BYTES_CONTENTS: Final = 8
_LENGTH_BYTES: Final = 4
"""Before each element of raw BYTES contents stands its length, little-endian."""
_ELSEWHERE: Final = b"\x0a\x14shared_memory_region"
"""What the entry of a parameter begins with that says that a tensor is in shared memory: no raw contents are for it."""


class PromptReader:
    """Finds the prompt of one call. ``blocks`` are its beginning's, None where it has none, or a short one.

    ``done`` is set where nothing that has yet to come would change that.
    """

    __slots__ = ("_at", "_fields", "_input", "_place", "_places", "_raws", "_wanted", "blocks", "done", "policy")

    def __init__(self, policy: AffinityPolicy) -> None:
        self.policy: Final = policy
        self.blocks: bytes | None = None
        self.done = False
        self._input = policy.input.encode("utf-8", "surrogatepass")
        self._wanted = MESSAGE_HEAD  # bytes of the call that must be here before another look says more
        self._at = MESSAGE_HEAD  # where the next field of the message stands
        self._fields = MOST_FIELDS
        self._places = 0  # inputs so far whose contents are among the raw ones
        self._place = -1  # the prompt's among them
        self._raws = 0

    def take(self, seen: list[bytes], size: int, encoding: bytes, *, whole: bool) -> bool:
        """Look at what there is of a call's data, from its start; return whether that is enough.

        Args:
            seen: its pieces; they are put together where they must be.
            size: how many bytes these are.
            encoding: the call's ``grpc-encoding``; a message in another one than gzip and deflate has no prompt.
            whole: nothing more will come.
        """
        if self.done or (size < self._wanted and not whole):
            return self.done
        if len(seen) > 1:
            seen[:] = [b"".join(seen)]
        try:
            prompt = self._find(seen[0] if seen else b"", encoding)
        except CutError:
            self.done = whole or size >= self._wanted
        except BadError:
            self.done = True
        else:
            self.done = True
            if prompt is not None:
                self.blocks = blocks_of(prompt, self.policy)
        return self.done

    def _find(self, data: bytes, encoding: bytes) -> bytes | None:
        if len(data) < MESSAGE_HEAD:
            raise CutError
        length = int.from_bytes(data[1:MESSAGE_HEAD], "big")
        most = self.policy.body_bytes
        end = MESSAGE_HEAD + length
        if length > most:
            return None
        if not data[0] & 1:
            return self._read(data, min(len(data), end), end)
        if encoding not in PACKINGS:
            return None
        self._need(end, len(data))
        clear = unpacked(data[MESSAGE_HEAD:end], encoding, most)
        if clear is None:
            return None
        self._at = 0
        try:
            return self._read(clear, len(clear), len(clear))
        except CutError:
            raise BadError from None  # what is cut is cut for good

    def _read(self, data: bytes, here: int, end: int) -> bytes | None:
        """Read the message's fields from where the last look ended; ``here`` is how far it is here, ``end`` its own."""
        while self._at < end:
            number, wire, at, stop = self._field(data, self._at, here, end)
            if wire == 2 and number == _INPUTS:
                prompt = self._tensor(data, at, stop, here)
                if prompt is not None:
                    return prompt
            elif number > _INPUTS and self._place < 0:
                return None
            elif wire == 2 and number == _RAW:
                if self._raws == self._place:
                    return self._raw(data, at, stop, here)
                self._raws += 1
            self._at = stop
        return None

    def _tensor(self, data: bytes, at: int, end: int, here: int) -> bytes | None:
        """Return the prompt of an input tensor; None: it has none here, and where it is among the raw ones is noted."""
        name = datatype = b""
        elsewhere = False
        while at < end:
            number, wire, at, stop = self._field(data, at, here, end)
            if number == _CONTENTS and wire == 2 and stop > at:
                if name == self._input and datatype == b"BYTES":
                    return self._typed(data, at, stop, here)
                break
            self._need(stop, here)
            if number == _TENSOR_NAME:
                name = data[at:stop]
            elif number == _DATATYPE:
                datatype = data[at:stop]
            elif number == _TENSOR_PARAMETERS:
                elsewhere = elsewhere or data.startswith(_ELSEWHERE, at)
            at = stop
        self._need(end, here)
        if elsewhere:
            return None
        if name == self._input and self._place < 0:
            if datatype != b"BYTES":
                raise BadError
            self._place = self._places
        self._places += 1
        return None

    def _typed(self, data: bytes, at: int, end: int, here: int) -> bytes:
        """Return the beginning of the first element of typed contents."""
        number, wire, at, stop = self._field(data, at, here, end)
        if number != _BYTES_CONTENTS or wire != 2:
            raise BadError
        return self._beginning(data, at, stop, here)

    def _raw(self, data: bytes, at: int, end: int, here: int) -> bytes:
        """Return the beginning of the first element of raw contents."""
        start = at + _LENGTH_BYTES
        if start > end:
            raise BadError
        self._need(start, here)
        stop = start + int.from_bytes(data[at:start], "little")
        if stop > end:
            raise BadError
        return self._beginning(data, start, stop, here)

    def _beginning(self, data: bytes, start: int, stop: int, here: int) -> bytes:
        stop = min(stop, start + self.policy.block_bytes * self.policy.blocks)
        self._need(stop, here)
        return data[start:stop]

    def _field(self, data: bytes, at: int, here: int, end: int) -> tuple[int, int, int, int]:
        """Return what stands at ``at`` in what ends at ``end`` (``reading.field_at``)."""
        self._fields -= 1
        if self._fields < 0:
            raise BadError
        self._wanted = min(at + _FIELD_HEAD_BYTES, end)
        found = field_at(data, at)
        if found[2] > here:
            raise CutError
        if found[3] > end:
            raise BadError
        return found

    def _need(self, end: int, here: int) -> None:
        if end > here:
            self._wanted = end
            raise CutError
