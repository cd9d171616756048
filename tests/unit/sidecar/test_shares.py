"""What the data processes show of the limits that are divided over them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from sidecar.settings import Admission, Model, ModelAdmission
from sidecar.telemetry.page import MODEL_ADMITTED_SHARE, Page, admitted_shares
from tests.support.by_hand import Bench, bench

LIMITED = Model(name="m", admission=ModelAdmission(requests=8))


def share(made: Bench) -> int:
    return int(made.plane.words[made.plane.page.model_row("m") + MODEL_ADMITTED_SHARE])


def test_a_part_is_shown_as_soon_as_it_is_another() -> None:
    with bench() as made:
        admission = made.plane.admission
        admission.divide(1, 3)
        admission.configure(Admission(), (LIMITED,))
        assert share(made) == 3
        admission.divide(0, 1)
        assert share(made) == 8
        admission.configure(Admission(), (Model(name="m"),))
        assert share(made) == 0


@pytest.mark.parametrize(("alive", "total"), [((), 12), ((0, 1), 12), ((1,), 8), ((0,), 4)])
def test_the_part_of_a_process_that_stands_still_is_counted_once(alive: tuple[int, ...], total: int) -> None:
    with ExitStack() as stack:
        pages: list[Page] = []
        for place, places in ((0, 2), (0, 1)):  # the second one has had it all since the first stands still
            made = stack.enter_context(bench())
            made.plane.admission.divide(place, places)
            made.plane.admission.configure(Admission(), (LIMITED,))
            pages.append(made.plane.page)
        assert admitted_shares(pages, alive) == {"m": total}
