"""The rounds: contenders are started, loaded in turn, and looked at."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sidecar.state.embedded import EmbeddedRedis
from tools.bench import choice, machine, memory
from tools.bench.contenders import FLOOR, OURS, contender
from tools.bench.explain import explain
from tools.bench.load import Load
from tools.bench.origins import answering, calling, streaming
from tools.bench.processes import BenchError, Missing, build_paced
from tools.bench.profiles import CHOICE, MEASURED_FOR_MEMORY, MEMORY, PROFILES
from tools.bench.results import Run
from tools.bench.targets import verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.bench.explain import Explanation
    from tools.bench.load import Sample
    from tools.bench.origins import Origin
    from tools.bench.processes import Contender
    from tools.bench.profiles import Profile


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    ``named``: the contenders were chosen by name, so that none may be missing. ``explain``: which of our builds to
    sample afterwards. ``connections`` and ``settle_s`` are those of the memory profile.
    """

    contenders: tuple[str, ...]
    profiles: tuple[str, ...]
    rounds: int
    seconds: float
    named: bool = False
    explain: Literal["all", "missed", "none"] = "missed"
    connections: int = memory.CONNECTIONS
    settle_s: float = memory.SETTLE_S

    def of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return those of ``names`` that are wanted; the load on the origin itself always is."""
        return tuple(name for name in names if name in self.contenders or name == "direct")


class Bench:
    """One run on this machine: proxies on the first core, load and origins on the last."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted, self._say = wanted, say
        self.run = Run(machine.described(), wanted.rounds, wanted.seconds)
        cores = sorted(os.sched_getaffinity(0))
        self._proxy_core, self._load_core = cores[0], cores[-1]
        if self._proxy_core == self._load_core:
            print("bench: only one core: proxy and load share it", file=sys.stderr)

    def measure(self) -> Run:
        """Measure everything wanted.

        Raises:
            BenchError: a contender did not start, or a request failed.
        """
        profiles = [PROFILES[name] for name in self._wanted.profiles if name in PROFILES]
        with ExitStack() as stack:
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, {self._load_core})  # this process and the store keep off the proxies' core
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-bench-")))
            paced = build_paced(self._directory)
            self._load = Load(paced, self._directory, self._load_core)
            state = EmbeddedRedis(self._directory)
            stack.callback(state.stop)
            self._state = state.start()
            with answering(self._directory, self._load_core) as origin:
                self._group([profile for profile in profiles if profile.origin == origin.kind], origin)
                if MEMORY in self._wanted.profiles:
                    self._memory(origin)
            if streams := [profile for profile in profiles if profile.origin == "streams"]:
                with streaming(self._directory, self._load_core, paced) as origin:
                    self._group(streams, origin)
            if calls := [profile for profile in profiles if profile.origin == "grpc"]:
                with calling(self._directory, self._load_core) as origin:
                    self._group(calls, origin)
        if CHOICE in self._wanted.profiles and OURS in self._wanted.contenders:
            self.run.choices = choice.measure()
        return self.run

    def _group(self, profiles: list[Profile], origin: Origin) -> None:
        """Measure ``profiles``, all of whose contenders run side by side in front of one origin."""
        names = dict.fromkeys(name for profile in profiles for name in self._wanted.of(profile.contenders))
        with ExitStack() as stack:
            proxies: dict[str, Contender] = {}
            for name in names:
                if name in self.run.skipped:
                    continue
                try:
                    running = contender(name, self._directory, self._proxy_core, origin, self._state)
                    proxies[name] = stack.enter_context(running)
                except BenchError as error:
                    self._without(name, name, error)
            self.run.versions.update({name: proxy.version for name, proxy in proxies.items() if proxy.version})
            for profile in profiles:
                of_profile = [proxies[name] for name in self._wanted.of(profile.contenders) if name in proxies]
                self._profile(profile, of_profile)
            self._explain(profiles, proxies)

    def _without(self, name: str, what: str, error: BenchError) -> None:
        """Go on without ``what`` of a contender, and say why.

        Raises:
            BenchError: it was asked for by name, or it is ours and not just missing.
        """
        if self._wanted.named or (name.startswith(OURS) and not isinstance(error, Missing)):
            raise error
        self._say(f"without {what}: {error}")
        self.run.skipped[what] = str(error).partition("\n")[0].rstrip(":")

    def _profile(self, profile: Profile, proxies: list[Contender]) -> None:
        wanted = self._wanted
        warm_s = min(0.5, wanted.seconds)
        left = [proxy for proxy in proxies if self._sample(profile, proxy, warm_s, "warm") is not None]
        samples: dict[str, list[Sample]] = {proxy.name: [] for proxy in left}
        for number in range(wanted.rounds):
            start = number % max(1, len(left))
            for proxy in left[start:] + left[:start]:  # none always follows the same one
                sample = self._sample(profile, proxy, wanted.seconds, f"{os.getpid()}-{number}")
                if sample is None:
                    left.remove(proxy)
                    del samples[proxy.name]
                    continue
                samples[proxy.name].append(sample)
                self._say(f"{profile.name:<7} {number + 1}/{wanted.rounds} {proxy.name:<18} {_line(sample, profile)}")
        self.run.samples[profile.name] = samples

    def _sample(self, profile: Profile, proxy: Contender, seconds: float, tag: str) -> Sample | None:
        """Return one sample; None where the run goes on without this contender in this profile."""
        try:
            return self._load.measure(proxy, profile, seconds, tag)
        except BenchError as error:
            self._without(proxy.name, f"{proxy.name} in {profile.name}", error)
            return None

    def _explain(self, profiles: list[Profile], proxies: dict[str, Contender]) -> None:
        if self._wanted.explain == "none":
            return
        missed = {(one.target.profile, one.build) for one in verdicts(self.run) if not one.met}
        for profile in profiles:
            ours = {
                name
                for name in profile.contenders
                if name.startswith(OURS) and (self._wanted.explain == "all" or (profile.name, name) in missed)
            }
            beside = {"nginx", FLOOR} if ours else set()  # what they cost in the kernel cannot be saved in Python
            for name in profile.contenders:
                if name in ours | beside and name in proxies:
                    self._say(f"{profile.name:<7} sampling {name}")
                    found = self._sampled(profile, proxies[name])
                    self.run.explained.setdefault(profile.name, {})[name] = found

    def _sampled(self, profile: Profile, proxy: Contender) -> Explanation:
        seconds = 2.0
        return explain(
            memory.serving_process(proxy),
            lambda: self._load.measure(proxy, profile, seconds, "explain"),
            seconds,
            self._directory,
            interpreted=proxy.name == OURS,
        )

    def _memory(self, origin: Origin) -> None:
        for name in self._wanted.of(MEASURED_FOR_MEMORY):
            if name in self.run.skipped:
                continue
            try:
                with contender(name, self._directory, self._proxy_core, origin, self._state) as proxy:
                    measured = memory.measure(proxy, self._wanted.connections, self._wanted.settle_s)
            except BenchError as error:
                self._without(name, f"{name} in {MEMORY}", error)
                continue
            self.run.memory[name] = measured
            self.run.versions.setdefault(name, proxy.version)
            self._say(
                f"memory  {name:<18} {measured.idle_bytes / 1e6:5.1f} MB idle, "
                f"{measured.added_bytes / 1e6:5.1f} MB for {measured.connections:,} connections"
            )


def _line(sample: Sample, profile: Profile) -> str:
    return (
        f"{sample.cpu_us:7.2f} µs/{profile.unit} {sample.units / sample.seconds:9,.0f}/s "
        f"{sample.cpu_ratio:5.0%} of a core, p50 {sample.p50_us:,.0f} µs, p99 {sample.p99_us:,.0f} µs"
    )
