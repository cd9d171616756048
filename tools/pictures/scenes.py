"""The pictures themselves: what stands where."""

from __future__ import annotations

from itertools import pairwise

from router import breaker
from router.model import STATE_NEXT, State, StoreMode
from sidecar.state import modes
from tools.pictures.svg import Box, Drawing, Kind, Side

Way = tuple[Side, float, Side, float, int, int]
"""Where an arrow leaves and arrives (side, share of the side), and how far its middle is pulled away (x, y)."""


def processes() -> Drawing:
    """The processes of one sidecar and what lies between them."""
    drawing = Drawing(960, 560, "The processes of one sidecar")
    drawing.box(190, 70, 580, 400, "one sidecar", kind="frame")
    supervisor = drawing.box(
        250, 100, 460, 74, "supervisor", "makes and keeps sockets, channels and metrics pages;",
        "starts a child again with the same descriptors", kind="ours",
    )  # fmt: skip
    control = drawing.box(
        220, 290, 210, 150, "control process", "admin API, /metrics, probes", "state keeper: alone talks to Redis",
        "relays what one data process", "saw to its siblings", kind="ours",
    )  # fmt: skip
    data = [
        drawing.box(
            540, 250 + 110 * number, 200, 90, f"data process {number}", "sockets, HTTP/1.1, pools,",
            "a router.Cluster of its own", kind="ours",
        )
        for number in (0, 1)
    ]  # fmt: skip
    redis = drawing.box(20, 290, 130, 70, "Redis", "embedded, or yours", kind="store")
    people = drawing.box(20, 395, 130, 60, "you", "and Prometheus", kind="other")
    callers = drawing.box(820, 215, 120, 60, "callers", kind="other")
    workers = [
        drawing.box(820, 310 + 75 * number, 120, 60, f"worker {name}", "model warm", kind="good")
        for number, name in enumerate("AB")
    ]
    drawing.arrow(supervisor.at("bottom", 0.17), control.at("top", 0.5), label="starts, restarts", dashed=True)
    drawing.arrow(supervisor.at("bottom", 0.85), data[0].at("top", 0.505), label="starts, restarts", dashed=True)
    for number, one in enumerate(data):
        drawing.arrow(control.at("right", 0.3 + 0.4 * number), one.at("left", 0.5), both=True)
    drawing.note(480, 276, "snapshots,", "deltas, faults →", anchor="middle", size=11)
    drawing.note(484, 424, "← observations,", "ejections", anchor="middle", size=11)
    drawing.arrow(redis.at("right"), (220, 325), both=True, label="deltas")
    drawing.arrow(people.at("right"), (220, 425), label="admin")
    drawing.arrow(callers.at("left"), data[0].at("right", 0.2), label="HTTP")
    drawing.arrow(callers.at("left"), data[1].at("right", 0.1))
    for one in data:
        for worker in workers:
            drawing.arrow(one.at("right", 0.6), worker.at("left"))
    drawing.arrow(
        workers[1].at("bottom"), (880, 515), (8, 515), (8, 325), redis.at("left"), dashed=True,
        label="registration, heartbeat, state, warmth, free memory", at=(480, 508),
    )  # fmt: skip
    drawing.note(480, 38, "One subscription to Redis and one set of probes, however many data processes",
                 anchor="middle", size=14, weight="bold")  # fmt: skip
    drawing.note(480, 544, "Metrics: each data process writes its own shared page of integers; control only reads.",
                 anchor="middle")  # fmt: skip
    return drawing


def request() -> Drawing:
    """The way of one request through a data process."""
    drawing = Drawing(960, 430, "The way of one request through a data process")
    drawing.note(
        480, 34, "No step awaits Redis, takes a lock, or parses a body", anchor="middle", size=14, weight="bold"
    )
    top = [
        ("accept", "SO_REUSEPORT,", "one socket a process"),
        ("read the head", "llhttp validates,", "one reading or 400"),
        ("match the model", "by the path:", "/v2/models/NAME"),
        ("choose", "two by weight, then the", "shorter expected wait"),
        ("faults", "late, wrong or lost,", "where one is set"),
    ]
    below = [
        ("connection", "pooled, checked for", "stray bytes"),
        ("bytes both ways", "back-pressure on", "either side"),
        ("done", "in-flight released,", "exactly once"),
        ("metrics", "integers in the", "shared page"),
    ]
    first = [drawing.box(20 + 188 * n, 70, 164, 76, *words, kind="ours") for n, words in enumerate(top)]
    second = [drawing.box(772 - 188 * n, 250, 164, 76, *words, kind="ours") for n, words in enumerate(below)]
    for row in (first, second):
        for left, right in pairwise(row):
            sides: tuple[Side, Side] = ("right", "left") if row is first else ("left", "right")
            drawing.arrow(left.at(sides[0]), right.at(sides[1]))
    drawing.arrow(first[4].at("bottom"), second[0].at("top"))
    refusals = {1: "400  413  414\n431  501  505", 2: "404", 3: "503,\nRetry-After"}
    for number, words in refusals.items():
        x, y = first[number].at("bottom")
        drawing.arrow((x, y), (x, y + 30), label=words, at=(x, y + 46), color="#c2413b")
    x, y = first[4].at("bottom", 0.15)
    drawing.arrow((x, y), (x, y + 30), label="the fault's\nstatus", at=(x, y + 46), color="#c2413b")
    drawing.arrow(second[0].at("right", 0.3), (950, 273), (950, 52), (666, 52), first[3].at("top"), dashed=True)
    drawing.note(944, 180, "retry: another", "endpoint, inside", "the budget", anchor="end", size=11)
    x, y = second[0].at("bottom")
    drawing.arrow((x, y), (x, y + 30), label="502, 504", at=(x, y + 46), color="#c2413b")
    x, y = second[1].at("bottom")
    drawing.arrow((x, y), (x, y + 30), label="cut, never finished falsely", at=(x, y + 46), color="#c2413b")
    drawing.note(
        20, 412, "Every request ends in exactly one outcome; red leaves the way early and goes to done all the same."
    )
    return drawing


def replica() -> Drawing:
    """The states of a replica, from the worker's table."""
    drawing = Drawing(960, 300, "The states of a replica")
    spots = {
        State.COLD: (30, 60), State.LOADING: (220, 60), State.WARMING: (410, 60), State.WARM: (600, 60),
        State.DRAINING: (790, 60), State.FAILED: (410, 200),
    }  # fmt: skip
    words = {
        State.COLD: "on disk", State.LOADING: "weights being read", State.WARMING: "proving runs",
        State.WARM: "gets requests", State.DRAINING: "finishes what runs", State.FAILED: "with its reason",
    }  # fmt: skip
    kinds: dict[State, Kind] = {State.WARM: "good", State.FAILED: "bad"}
    boxes = {
        state: drawing.box(x, y, 140, 56, state.value, words[state], kind=kinds.get(state, "plain"))
        for state, (x, y) in spots.items()
    }
    order = list(spots)
    for state in State:
        for after in sorted(STATE_NEXT[state]):
            _step(drawing, boxes[state], boxes[after], order.index(after) - order.index(state), after is State.FAILED)
    drawing.note(480, 30, "Only a replica whose warm-up run succeeded is warm", anchor="middle", size=14, weight="bold")
    return drawing


def _step(drawing: Drawing, start: Box, end: Box, distance: int, failing: bool) -> None:
    if failing:
        share = min(max((start.x + 70 - end.x) / end.width, 0.1), 0.9)
        side: Side = "left" if start.x < end.x else "right" if start.x > end.x else "top"
        arrive = end.at(side, 0.5) if side != "top" else end.at("top", share)
        drawing.arrow(start.at("bottom"), arrive, color="#c2413b")
    elif end.y < start.y:  # out of failed
        drawing.arrow(start.at("left", 0.85), (end.x + 40, start.y + 48), end.at("bottom", 0.28), dashed=True)
    elif distance == 1:
        drawing.arrow(start.at("right"), end.at("left"))
    elif distance > 1:  # a load or a warm-up that draining cuts short
        drawing.curve(start.at("top", 0.6), ((start.x + end.x) // 2 + 70, 18), end.at("top", 0.4))
    else:
        drawing.arrow(start.at("bottom", 0.8), (start.x + 112, 280), (end.x + 20, 280), end.at("bottom", 0.14))


def guards() -> Drawing:
    """The states of a guard over an endpoint, and the modes of the shared state, from their tables."""
    drawing = Drawing(960, 420, "Ejection, and how far the shared state is trusted")
    drawing.note(20, 34, "An endpoint: breaker and quarantine", size=14, weight="bold")
    state = breaker.GuardState
    boxes = {
        state.CLOSED.value: drawing.box(30, 90, 150, 56, "closed", "takes requests", kind="good"),
        state.OPEN.value: drawing.box(400, 90, 150, 56, "open", "takes none", kind="bad"),
        state.HALF_OPEN.value: drawing.box(770, 90, 150, 56, "half_open", "a counted number"),
    }
    _table(
        drawing, boxes, {(a.value, e.value): b.value for (a, e), b in breaker.TRANSITIONS.items()},
        {
            ("closed", "open"): ("right", 0.3, "left", 0.3, 0, -6),
            ("open", "closed"): ("left", 0.8, "right", 0.8, 0, 6),
            ("open", "half_open"): ("right", 0.3, "left", 0.3, 0, -6),
            ("half_open", "open"): ("left", 0.8, "right", 0.8, 0, 6),
            ("half_open", "closed"): ("bottom", 0.5, "bottom", 0.5, 0, 90),
        },
    )  # fmt: skip
    drawing.note(20, 244, "The shared state, as one sidecar sees it", size=14, weight="bold")
    mode_words = {
        StoreMode.LIVE: "deltas arrive", StoreMode.FROZEN: "last good snapshot",
        StoreMode.LOCAL: "own observations", StoreMode.UNIFORM: "equal weights",
    }  # fmt: skip
    mode_boxes = {
        mode.value: drawing.box(
            30 + 252 * n, 300, 136, 56, mode.value, mode_words[mode], kind="good" if mode is StoreMode.LIVE else "store"
        )
        for n, mode in enumerate(StoreMode)
    }
    _table(
        drawing, mode_boxes, {(a.value, s.value): b.value for (a, s), b in modes.TRANSITIONS.items()},
        {
            ("live", "frozen"): ("right", 0.3, "left", 0.3, 0, -6),
            ("frozen", "live"): ("left", 0.8, "right", 0.8, 0, 6),
            ("frozen", "local"): ("right", 0.3, "left", 0.3, 0, -6),
            ("local", "uniform"): ("right", 0.3, "left", 0.3, 0, -6),
            ("uniform", "local"): ("left", 0.8, "right", 0.8, 0, 6),
            ("local", "live"): ("bottom", 0.5, "bottom", 0.6, 0, 50),
            ("uniform", "live"): ("bottom", 0.6, "bottom", 0.3, 0, 100),
        },
    )  # fmt: skip
    return drawing


def _table(
    drawing: Drawing, boxes: dict[str, Box], transitions: dict[tuple[str, str], str], ways: dict[tuple[str, str], Way]
) -> None:
    """Draw each pair of states of a table once, with the events that lead from one to the other."""
    events: dict[tuple[str, str], list[str]] = {}
    for (start, event), end in transitions.items():
        if start != end:
            events.setdefault((start, end), []).append(event)
    if unknown := events.keys() - ways.keys():
        raise KeyError(f"transitions without a place in the picture: {sorted(unknown)}")
    for (start, end), names in events.items():
        leave, share, arrive, other, pull_x, pull_y = ways[start, end]
        begin, finish = boxes[start].at(leave, share), boxes[end].at(arrive, other)
        middle = ((begin[0] + finish[0]) // 2 + pull_x, (begin[1] + finish[1]) // 2)
        label = ", ".join(sorted(names))
        if abs(pull_y) < 20:
            drawing.arrow(begin, finish, label=label, at=(middle[0], middle[1] + (pull_y if pull_y < 0 else 16)))
        else:
            drawing.curve(begin, (middle[0], middle[1] + pull_y), finish, label=label)


SCENES = {"processes": processes, "request": request, "replica": replica, "guards": guards}
