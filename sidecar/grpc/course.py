"""What calls need that need more than a pick, and how far one of them has come.

A target of such calls has no route of its own but :class:`Needs`; so calls of models that need none of this pay for
none of it, as over HTTP (``sidecar.http1.steps``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.matching import INFER_CALLS
from sidecar.cache.terms import MOST_BODY_BYTES, Refused
from sidecar.grpc.matching import MESSAGE_HEAD
from sidecar.grpc.prompts import PromptReader
from sidecar.grpc.reading import read_beginning

if TYPE_CHECKING:
    from router.policy import AffinityPolicy, MirrorPolicy
    from sidecar.grpc.classifying import CallClasses
    from sidecar.grpc.heads import AnswerHead, Asked
    from sidecar.grpc.reading import Beginning
    from sidecar.http1.descending import Descent
    from sidecar.http1.ladders import ModelLadder
    from sidecar.http1.targets import Target
    from sidecar.http1.versions import Split

COUNT_BYTES: Final = 65536
"""So much is kept back of one call before all that is kept in the process is looked at."""


def infers(path: bytes) -> bool:
    """Return whether a method's messages are ModelInferRequests."""
    return path in INFER_CALLS


class Needs:
    """What the calls of a target need. One for all of them, until routes change.

    ``target`` is the one that has the route; ``split`` divides its calls over versions, ``classes`` tells them apart by
    shape, ``affinity`` has them go by their prompt, ``mirror`` says which of them are copied. That its model may have
    so many in flight only is no member: each call looks for itself.
    """

    __slots__ = ("_reads", "affinity", "classes", "ladder", "mirror", "split", "target")

    def __init__(
        self,
        target: Target,
        *,
        split: Split | None,
        ladder: ModelLadder | None,
        classes: CallClasses | None,
        mirror: MirrorPolicy | None,
        affinity: AffinityPolicy | None,
    ) -> None:
        self.target: Final = target
        self.split: Final = split
        self.ladder: Final = ladder
        self.classes: Final = classes
        self.mirror: Final = mirror
        self.affinity: Final = affinity
        source = target.key_source
        self._reads = (classes is not None and classes.read) or (source is not None and source.member != b"")

    def reads(self, path: bytes) -> bool:
        """Return whether calls of this method go by how their first message begins."""
        return self._reads and path in INFER_CALLS

    def most_bytes(self, path: bytes) -> int:
        """Return how long a request of this method is waited for whole, with its framing; 0: it goes on as it comes."""
        terms = None if self.ladder is None else self.ladder.terms
        return MESSAGE_HEAD + MOST_BODY_BYTES if terms is not None and path in terms.calls else 0


class CallCourse:
    """How far a call has come.

    ``beginning`` is how its first message begins, and ``prompt`` finds the prompt in it, where its model's calls go by
    that (``reads``).

    ``mirror`` is set until it was copied, where it is to be.

    ``waits``: it goes on only once enough of its request is there (``has_all``).

    ``most`` is how long its request is waited for whole, ``request`` the request where it came whole meanwhile, and
    ``gathered`` what is kept back of it. ``descent`` is how far down its model's ladder it is, where that has one.
    ``renamed``: it went to another model; ``asked`` and ``data`` are its head and its request as they were before, None
    where that is not known any more. ``initial`` and ``answer`` are what passed so far of an answer that may be kept.
    """

    __slots__ = (
        "_left",
        "answer",
        "asked",
        "beginning",
        "data",
        "descent",
        "gathered",
        "initial",
        "mirror",
        "most",
        "needs",
        "prompt",
        "reads",
        "renamed",
        "request",
        "waits",
    )

    def __init__(self, needs: Needs, path: bytes) -> None:
        self.needs: Final = needs
        self.most: Final = needs.most_bytes(path)
        self.prompt: PromptReader | None = None
        if needs.affinity is not None and path in INFER_CALLS:
            self.prompt = PromptReader(needs.affinity)
        self.reads: Final = needs.reads(path)
        self.waits: Final = self.most > 0 or self.reads or self.prompt is not None
        self.beginning: Beginning | None = None
        self.gathered = 0
        self.request: bytes | None = None
        self.mirror: MirrorPolicy | None = None
        self.descent: Descent | None = None
        self.renamed = False
        self.asked: Asked | None = None
        self.data: list[bytes] | None = None
        self.initial: AnswerHead | None = None
        self.answer: list[bytes] | None = None
        self._left = 0

    def has_all(self, seen: list[bytes], size: int, encoding: bytes, *, done: bool) -> bool:
        """Return whether what there is of a request is enough to go on.

        Where it is waited for whole, that is until it is, or is too long (by its own word, too), or is more than one
        message: then its method is not a unary one.
        """
        if self.reads and self.beginning is None:
            if len(seen) > 1:
                seen[:] = [b"".join(seen)]
            self.beginning = read_beginning(seen[0] if seen else b"", encoding, whole=done)
            if self.beginning is None:
                return False
        if self.prompt is not None and not self.prompt.take(seen, size, encoding, whole=done):
            return False
        if not self.most or done or size > self.most:
            return True
        if size < MESSAGE_HEAD:
            return False
        head = seen[0] if len(seen[0]) >= MESSAGE_HEAD else b"".join(seen)
        length = MESSAGE_HEAD + int.from_bytes(head[1:MESSAGE_HEAD], "big")
        return length > self.most or size > length

    def key(self, member: bytes, seen: list[bytes], encoding: bytes) -> bytes | None:
        """Return the key that the first message has at ``member``, None where it has none."""
        if self.beginning is None:
            self.beginning = read_beginning(b"".join(seen), encoding, whole=True)
        return None if self.beginning is None else self.beginning.key(member)

    def blocks(self, policy: AffinityPolicy, seen: list[bytes], encoding: bytes) -> bytes | None:
        """Return the blocks of the first message's prompt, None where it has none. Another model may have its own."""
        prompt = self.prompt
        if prompt is None or prompt.policy is not policy:
            self.prompt = prompt = PromptReader(policy)
            prompt.take([*seen], sum([len(data) for data in seen]), encoding, whole=True)
        return prompt.blocks

    def record(self, initial: AnswerHead, most_bytes: int) -> None:
        """Keep what comes of an answer, up to so many bytes."""
        self.initial = initial
        self.answer = []
        self._left = most_bytes

    def add(self, data: bytes) -> None:
        """Keep more of the answer, or none of it where it is too long."""
        answer = self.answer
        if answer is not None:
            self._left -= len(data)
            if self._left >= 0:
                answer.append(data)
            else:
                self.answer = None

    def close(self) -> None:
        """The call is over. Whatever passed of an answer that did not come whole is not kept."""
        descent = self.descent
        if descent is not None:
            descent.over = True
            if self.initial is not None:
                self.initial = self.answer = None
                descent.model.refuse(Refused.CUT)
