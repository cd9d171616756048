"""What tests of the degradation ladder on real sockets share."""

from __future__ import annotations

from dataclasses import replace

from router.ladder import LadderStep
from router.model import Replica
from router.policy import LadderPolicy, ModelPolicy, RetryPolicy
from sidecar.cache.terms import Refused
from sidecar.settings import StaticAnswer
from sidecar.telemetry.page import MODEL_LADDER, LadderWord
from tests.support.data_path import BRIEF, POLICIES, DataPath
from tests.support.wires import Client, Message, OriginConnection, answer, post

INFER = b"/v2/models/m/infer"
QUICK = replace(
    BRIEF,
    retry=RetryPolicy(attempts=0),
    ladder=LadderPolicy(failures=2, hold_s=0.02, trial_s=0.0, successes=2),
)
SLOW = replace(POLICIES, retry=QUICK.retry, ladder=LadderPolicy(hold_s=60.0))
MODELS = (ModelPolicy("m"), ModelPolicy("b"), ModelPolicy("c"))
IDEMPOTENT = (ModelPolicy("m", idempotent=True), ModelPolicy("b"), ModelPolicy("c"))
HELD = ((Replica("m"),), (Replica("b"), Replica("b", "2")), (Replica("c"),))
STATIC = StaticAnswer(status=202, body='{"later": true}', headers={"X-Why": "none left"})


def word(path: DataPath, which: int, model: str = "m") -> int:
    return int(path.plane.words[path.plane.page.model_row(model) + MODEL_LADDER + which])


def refused(path: DataPath) -> dict[str, int]:
    return {why.name: count for why in Refused if (count := word(path, LadderWord.REFUSED + why))}


def step(path: DataPath) -> LadderStep:
    assert path.plane.ladders is not None
    return path.plane.ladders.by_model["m"].at


async def infer(client: Client, body: bytes = b"{}", *fields: bytes) -> Message:
    return await client.ask(post(body, *fields, target=INFER))


class Worker:
    """Answers with its name and what it was asked, unless it is down: then it resets."""

    def __init__(self, *fields: bytes) -> None:
        self.down = False
        self.fields = fields
        self.asked: list[Message] = []

    async def __call__(self, origin: OriginConnection) -> None:
        while True:
            asked = await origin.request()
            if self.down:
                origin.reset()
                return
            self.asked.append(asked)
            await origin.send(answer(b"<" + asked.body + b">", b"Content-Type: a/b", b"X-A: b", *self.fields))
