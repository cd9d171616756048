"""The control process: puts its parts together and runs them until it is told to go.

It alone talks to Redis, probes endpoints and serves the admin API. It may die and come back at any time: data processes
go on with what they last heard, and it takes nothing away from them before it knows better.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from importlib import metadata
from math import inf
from typing import TYPE_CHECKING

from router.cluster import Cluster
from sidecar.admin.app import serve
from sidecar.admin.context import Context
from sidecar.boot import ControlPlan
from sidecar.channel import Channel
from sidecar.discovery.dns import DnsSource, dns_plans, lookups_of, without_twins
from sidecar.discovery.load_streams import LoadStreams
from sidecar.discovery.planned import static_endpoints
from sidecar.discovery.static import FIRST_PROBES_S, SUCCESSOR_PROBES_S, StaticSource
from sidecar.discovery.warming import WarmedSource, asked_shards, warmups
from sidecar.loading import Loader, load_bounds
from sidecar.settings import model_policies, router_policies
from sidecar.state.keeper import Keeper
from sidecar.state.memory import Memory
from sidecar.state.processes import SPEAKS_S
from sidecar.tasks import end_all
from sidecar.telemetry.logs import get_log
from sidecar.telemetry.page import Page, Scalar
from sidecar.tls.expiry import ExpiryWatch
from sidecar.upstreams.probes import HttpProber

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

    from sidecar.boot import PlanFile
    from sidecar.discovery.source import DiscoverySource
    from sidecar.state.answers import SharedAnswers
    from sidecar.state.store import RedisSource

TICK_S = 0.1
LATENCIES_S = 1.0
"""What other sidecars measured is passed on to data processes this often."""
ALONE_S = SPEAKS_S + 1.0
"""After a SIGTERM: a data process that still speaks has run since then, and would be draining if it had got one."""

NO_STORE = "none"

_log = get_log("control")


class Control:
    """One control process. :meth:`run` returns when it was told to go."""

    def __init__(self, plan: ControlPlan, file: PlanFile) -> None:
        self._plan = plan
        self._file = file
        self._ended = asyncio.Event()
        self._orphan_until: float | None = None
        self._alone_from = inf
        self._latencies_due = 0.0
        self._runner: AppRunner | None = None
        clock, rng, settings = time.monotonic, random.SystemRandom().random, plan.settings
        policies = router_policies(settings)
        models = model_policies(settings)
        self._prober = HttpProber(settings.upstream_tls)
        self._asker = HttpProber(settings.upstream_tls)  # what it asks is no probe, nor among their costs
        first_s = FIRST_PROBES_S if plan.admin_open else SUCCESSOR_PROBES_S
        static = StaticSource(
            static_endpoints(settings, warmups=False),
            self._prober,
            clock=clock,
            rng=rng,
            first_s=first_s,
            probes_per_s=settings.limits.probes_per_s,
        )
        self._warmed = WarmedSource(
            static,
            warmups(settings),
            self._asker,
            static.pace,
            clock=clock,
            rng=rng,
            prober=self._asker,
            first_s=first_s,
            asked=asked_shards(settings),
        )
        store: RedisSource | None = None
        if settings.state.url != NO_STORE:
            from sidecar.state.store import RedisSource  # and the client of Redis: only who has a store needs one

            store = RedisSource(settings.state, policies.freshness, clock=clock, rng=rng)
        self._sources: list[DiscoverySource] = [self._warmed] if store is None else [self._warmed, store]
        memory = Memory(plan.memory_fd)
        remembered = memory.load()
        self._dns = DnsSource(
            dns_plans(settings),
            settings.dns,
            lookups_of,
            self._take_endpoints,
            clock=clock,
            rng=rng,
            first_s=first_s,
            recalled=remembered.names,
        )
        self._sources.append(self._dns)
        keeper = Keeper(
            Cluster(policies, models, clock(), decides=False),
            [Channel.from_fd(fd) for fd in plan.channel_fds],
            self._sources,
            memory,
            remembered,
            clock=clock,
            models=models,
        )
        keeper.configure_faults(settings.faults.rules, settings.faults.most)
        self._streams = LoadStreams(
            static_endpoints(settings), self._prober, keeper.loads_reported, clock=clock, rng=rng
        )
        keeper.guards.on_ejected = self._warmed.ejected
        self._warmed.answered_at = keeper.answered_at
        self._answers: SharedAnswers | None = None
        if store is not None:
            from sidecar.state.answers import SharedAnswers
            from sidecar.state.hints import HintExchange, open_here
            from sidecar.state.latencies import LatencyExchange

            self._answers = SharedAnswers(settings.state, keeper.feed.answer)
            keeper.on_answer = self._answers.from_data
            store.answered_at = keeper.answered_at
            if settings.state.share_latencies:
                store.latencies = exchange = LatencyExchange(
                    plan.sidecar_id,
                    policies.latency,
                    rows=keeper.cluster.measured,
                    known=lambda key: keeper.cluster.replica(key) is not None,
                    clock=clock,
                    rng=rng,
                )
                keeper.latencies = exchange.heard.all
            if settings.state.share_breakers:
                store.hints = HintExchange(
                    plan.sidecar_id,
                    opened=lambda: open_here(keeper.cluster, clock()),
                    take=keeper.hinted,
                    clock=clock,
                    rng=rng,
                )
        loader = Loader(keeper.cluster, self._asker, clock=clock, bounds=load_bounds(settings), rng=rng)
        keeper.load_wanted = loader.wanted
        self.context = Context(
            settings=settings,
            keeper=keeper,
            pages=[Page(fd) for fd in plan.metrics_fds],
            store=store,
            static=static,
            warmed=self._warmed,
            streams=self._streams,
            dns=self._dns,
            probe_costs=self._prober.costs,
            version=metadata.version("warmroute"),
            sidecar_id=plan.sidecar_id,
            listen_addresses=plan.listen_addresses,
            clock=clock,
            rng=rng,
            started_at=clock(),
            certificates=ExpiryWatch(settings, time.time),
            config=plan.config,
            loader=loader,
            ask_reload=self._ask_reload,
            answers=self._answers,
        )
        self._take_endpoints()

    async def run(self) -> int:
        """Run until SIGUSR1, or until a SIGTERM turns out to have been for this process alone; return the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        loop.add_signal_handler(signal.SIGUSR1, self._ended.set)
        context = self.context
        context.keeper.start()
        _log.info("control.started", pid=os.getpid(), sources=[source.name for source in self._sources])
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(source.run(context.keeper.emit_for(source)), name=source.name)
                    for source in self._sources
                ]
                running.append(tasks.create_task(self._streams.run(), name="load-streams"))
                running.append(tasks.create_task(self._tick(), name="tick"))
                running.append(tasks.create_task(context.certificates.run(), name="certificates"))
                running.append(tasks.create_task(context.loader.run(), name="loads"))
                if self._answers is not None:
                    running.append(tasks.create_task(self._answers.run(), name="answers"))
                await self._ended.wait()
                await end_all(running)
        finally:
            context.keeper.feed.stop()
            if self._runner is not None:
                await self._runner.cleanup()
        _log.info("control.stopped")
        return 0

    def _ask_reload(self) -> bool:
        """Have the supervisor look at the configuration again; False where it is gone or ends."""
        if self.context.draining or self._orphaned():
            return False
        os.kill(self._plan.parent_pid, signal.SIGHUP)
        return True

    def _look_at_plan(self) -> None:
        """Take over what the supervisor wrote since."""
        plan = self._file.newer()
        if not isinstance(plan, ControlPlan):
            return
        context, before = self.context, self._plan
        self._plan = plan
        context.config = plan.config
        context.handed_over = plan.handed_over
        if plan.config.sequence == before.config.sequence:
            return
        settings = context.settings = plan.settings
        policies = router_policies(settings)
        models = model_policies(settings)
        context.keeper.cluster.configure(policies, models, context.clock())
        context.keeper.configure(models)
        context.keeper.configure_faults(settings.faults.rules, settings.faults.most)
        if context.store is not None:
            context.store.configure(policies.freshness)
            if context.store.latencies is not None:
                context.store.latencies.configure(policies.latency)
        self._warmed.configure(warmups(settings), asked_shards(settings))
        self._dns.configure(dns_plans(settings), settings.dns)
        context.loader.configure(load_bounds(settings))
        self._take_endpoints()
        context.certificates.configure(settings)
        for prober in (self._prober, self._asker):
            prober.configure(settings.upstream_tls)
        _log.info("config.in_force", revision=plan.config.revision)

    def _take_endpoints(self) -> None:
        """Have those endpoints followed that the configuration names, and those that its names stand for."""
        settings = self.context.settings
        endpoints = without_twins(static_endpoints(settings, warmups=False), self._dns.endpoints)
        self.context.static.configure(endpoints, settings.limits.probes_per_s)
        self._streams.configure(endpoints)
        self.context.keeper.name_names(self._dns.known())

    def _on_term(self) -> None:
        """Drain. It may come from the supervisor and from who stops all processes at once, so a second one is none."""
        self._look_at_plan()
        if self.context.draining:
            if self._orphaned():
                self._ended.set()
            return
        self.context.draining = True
        self._alone_from = time.monotonic() + ALONE_S
        _log.info("control.draining")

    def _orphaned(self) -> bool:
        return os.getppid() != self._plan.parent_pid

    def _leave_if_alone(self) -> None:
        """End, to be started again, where nobody else was told to drain: nothing else would end this drain."""
        now = time.monotonic()
        if now < self._alone_from or not any(process.speaks(now) for process in self.context.keeper.processes):
            return
        self._alone_from = inf
        if not any(page.words[page.scalar(Scalar.DRAINING_NOW)] for page in self.context.pages):
            _log.warning("control.alone")
            self._ended.set()

    async def _tick(self) -> None:
        context = self.context
        while True:
            self._look_at_plan()
            await self._serve_or_not()
            if context.store is not None:
                context.store.observed = context.keeper.observed
            context.keeper.tick()
            self._pass_latencies_on()
            self._leave_if_alone()
            await self._leave_if_orphaned()
            await asyncio.sleep(TICK_S)

    def _pass_latencies_on(self) -> None:
        """Have data processes know what other sidecars measured."""
        store, now = self.context.store, self.context.clock()
        if store is None or store.latencies is None or now < self._latencies_due:
            return
        self._latencies_due = now + LATENCIES_S
        store.latencies.heard.expire(now)
        self.context.keeper.measured(store.latencies.heard.changed())

    async def _serve_or_not(self) -> None:
        """Serve the admin API where that is ours to do, and no longer than it is."""
        if self._runner is None:
            if self._plan.admin_open and not self._plan.handed_over:
                self._runner = await serve(self.context, self._plan.admin_fds)
        elif self._plan.handed_over:
            await self._stop_listening(self._runner)

    @staticmethod
    async def _stop_listening(runner: AppRunner) -> None:
        for site in tuple(runner.sites):
            await site.stop()

    async def _leave_if_orphaned(self) -> None:
        """End with the data processes where the supervisor is gone: nobody is left to tell us to.

        The admin listeners close at once: who starts the sidecar again needs their addresses.
        """
        if not self._orphaned():
            return
        now = time.monotonic()
        if self._orphan_until is None:
            self._orphan_until = now + self.context.settings.timeouts.drain_s + 1.0
            self._alone_from = inf
            self.context.draining = True
            _log.warning("control.orphaned")
            if self._runner is not None:
                await self._stop_listening(self._runner)
        if now >= self._orphan_until or not any(process.speaks(now) for process in self.context.keeper.processes):
            self._ended.set()


def run_control(plan: ControlPlan, file: PlanFile) -> int:
    """Run the control process to its end; return the exit code. ``file`` is where ``plan`` and later ones are read."""

    async def main() -> int:
        return await Control(plan, file).run()

    return asyncio.run(main())
