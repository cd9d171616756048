"""Where in a model's row its ladder counts the answers of each step."""

from __future__ import annotations

from typing import Final

from router.ladder import LadderStep
from sidecar.telemetry.page import LadderWord

BY_STEP: Final[dict[LadderStep, LadderWord]] = {
    LadderStep.REPLICA: LadderWord.BY_REPLICA,
    LadderStep.FALLBACK: LadderWord.BY_FALLBACK,
    LadderStep.CACHE: LadderWord.BY_CACHE,
    LadderStep.STATIC: LadderWord.BY_STATIC,
    LadderStep.REFUSE: LadderWord.REFUSALS,
}
