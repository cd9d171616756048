"""What is to be reached, and whether a run reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tools.bench.contenders import COMPILED, OURS
from tools.bench.profiles import CHOICE, MEMORY
from tools.bench.results import Spread

if TYPE_CHECKING:
    from tools.bench.results import Run


def _both(most: float) -> dict[str, float]:
    return {OURS: most, COMPILED: most}


@dataclass(frozen=True)
class Target:
    """One figure, and the most that each build may have of it; a build that is not there is only shown.

    ``value``: ``cpu``, a ratio to ``against``; ``p50`` and ``p99``, µs more than ``against``; ``idle`` and ``added``,
    MB (10^6 bytes); ``choice``, µs.
    """

    figure: str
    profile: str
    value: Literal["cpu", "p50", "p99", "idle", "added", "choice"]
    most: dict[str, float]
    against: str = ""

    def bound(self, build: str) -> str:
        """Return the bound on ``build`` as a reader wants it."""
        most = self.most[build]
        if self.value == "cpu":
            return f"≤ {most:g} × {self.against}"
        if self.value in ("p50", "p99"):
            return f"≤ {self.against}'s" + (f" + {most:g} µs" if most else "")
        return f"≤ {most:g} {'µs' if self.value == 'choice' else 'MB'}"

    @property
    def bounds(self) -> str:
        """The bounds on all builds in one text."""
        first, *others = dict.fromkeys(self.bound(build) for build in self.most)
        return "; compiled ".join((first, *others))

    def written(self, reached: Spread) -> str:
        """Return what was reached, with its unit."""
        if self.value == "cpu":
            return f"{reached.text()} ×"
        if self.value in ("p50", "p99"):
            return f"{reached.median:+.1f} µs ({reached.least:+.1f} to {reached.most:+.1f})"
        return f"{reached.text(2 if self.value == 'choice' else 1)} {'µs' if self.value == 'choice' else 'MB'}"

    def reached(self, run: Run, build: str) -> Spread | None:
        """Return what ``build`` reached; None where the run does not tell."""
        match self.value:
            case "cpu":
                return run.ratio(self.profile, build, self.against)
            case "p50":
                return run.compared(self.profile, build, self.against, lambda a, b: a.p50_us - b.p50_us)
            case "p99":
                return run.compared(self.profile, build, self.against, lambda a, b: a.p99_us - b.p99_us)
            case "choice":
                return Spread.of([one.choose_us for one in run.choices]) if run.choices and build == OURS else None
            case "idle" | "added":
                memory = run.memory.get(build)
                if memory is None:
                    return None
                return Spread.of([(memory.idle_bytes if self.value == "idle" else memory.added_bytes) / 1e6])


def _costs(figure: str, profile: str) -> tuple[Target, ...]:
    return (
        Target(figure, profile, "cpu", {OURS: 1.5, COMPILED: 1.3}, "nginx"),
        Target(figure, profile, "cpu", {OURS: 1.5}, "haproxy"),
        Target(figure, profile, "cpu", {OURS: 0.35}, "envoy"),
    )


TARGETS = (
    *_costs("CPU per small GET", "get"),
    *_costs("CPU per 1 KB POST", "post"),
    Target("CPU per 1 KB POST, heads that repeat", "repeat", "cpu", _both(1.2), "nginx"),
    Target("CPU per OpenAI request of 1 KB", "openai", "cpu", _both(0.3), "vllm-router"),
    Target("CPU per OpenAI request of 1 KB", "openai", "cpu", _both(0.2), "sglang-router"),
    Target("CPU per 1 KB POST", "post", "cpu", _both(0.1), "aiohttp"),
    Target("CPU per answer of 64 KiB", "large", "cpu", _both(1.3), "nginx"),
    Target("CPU per event of a stream", "sse", "cpu", _both(1.3), "nginx"),
    Target("CPU per unary gRPC call", "grpc", "cpu", _both(1.5), "envoy"),
    Target("added p50 at a fixed rate", "rate", "p50", _both(20), "haproxy"),
    Target("added p99 at a fixed rate", "rate", "p99", _both(0), "envoy"),
    Target("PSS of an idle data process", MEMORY, "idle", _both(40)),
    Target("PSS added by 1,000 idle connections", MEMORY, "added", _both(15)),
    Target("one choice of an endpoint, 2 to 1,000 of them", CHOICE, "choice", {OURS: 5}),
)


@dataclass(frozen=True)
class Verdict:
    """One target and what one build reached."""

    target: Target
    build: str
    reached: Spread

    @property
    def met(self) -> bool:
        """The median is within the bound."""
        return self.reached.median <= self.target.most[self.build]

    def __str__(self) -> str:
        return (
            f"{self.build}, {self.target.figure}: {self.target.written(self.reached)}, {self.target.bound(self.build)}"
        )


def verdicts(run: Run) -> list[Verdict]:
    """Return a verdict for each target and build that ``run`` tells about."""
    return [
        Verdict(target, build, reached)
        for target in TARGETS
        for build in target.most
        if (reached := target.reached(run, build)) is not None
    ]
