"""Which versions take requests that name none, where that is not what the configuration says: by whom, since when, why.

Operators promote, roll back and split; a rollout takes its steps by what the data processes saw (``router.rollout``).
It belongs to the keeper, which feeds it, keeps it through a restart of the control process, and tells data processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from router.explain_versions import NOBODY
from router.model import VersionsSteered, VersionSteering
from router.policy import MAX_SHARES, ModelPolicy, ServePolicy, ServeRule, VersionShare
from router.rollout import Ruling, Sample, Verdict, judge, new_version, shares_at
from router.stats import LogBuckets
from router.versions import newest, version_key
from sidecar.telemetry.logs import get_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.cluster import Cluster
    from router.explain import VersionLack, VersionRow
    from router.model import PeerObserved
    from router.turns import Turns

MAX_STEERED: Final = 256
"""Models that may be steered at once."""
BATCH: Final = 32
"""Models in one message: it fits whatever they are called."""
LOOK_S: Final = 1.0
"""How often a rollout is ruled on."""
MAX_TEXT: Final = 128
ROLLOUT: Final = "rollout"
"""Who steers where nobody does by hand."""

_log = get_log("versions")


class SteeringError(ValueError):
    """Something an operator asked for that cannot be; ``known`` are versions that could have been named."""

    def __init__(self, text: str, known: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.known = sorted(known, key=version_key)


class Stage(StrEnum):
    """Where a rollout stands."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    OVERRULED = "overruled"  # by an operator


_ROLLED: Final = {
    Stage.RUNNING: "rollout.stepped",
    Stage.PROMOTED: "rollout.promoted",
    Stage.ROLLED_BACK: "rollout.rolled_back",
}


@dataclass(frozen=True, slots=True)
class Steered:
    """What is steered of one model. ``basis`` is the configuration that it was said upon, and goes with.

    ``previous`` took most of the requests before; "" where going back there would be no way back. ``step`` and
    ``stage`` are those of its rollout, where it has one.
    """

    steering: VersionSteering
    by: str
    at_unix_s: float
    why: str
    basis: str
    previous: str = ""
    step: int = 0
    stage: Stage = Stage.OVERRULED


@dataclass(slots=True)
class Progress:
    """How far the present step of a rollout is: what was seen since it began, and the last ruling."""

    step: int
    since: float
    looks: int = 0
    new: Sample = field(default_factory=Sample)
    old: Sample = field(default_factory=Sample)
    ruling: Ruling | None = None
    lacks: str = ""  # what the new version has not to take all of the requests
    stuck: Ruling | None = None  # why it is to be rolled back, while there is nobody to go back to


def basis_of(serve: ServePolicy) -> str:
    """Return a short hash of what a model's configuration says of versions."""
    return sha256(repr(serve).encode()).hexdigest()[:16]


class Steering:
    """All that is steered in one sidecar. ``cluster`` says which versions have anybody; times are monotonic seconds."""

    def __init__(self, cluster: Cluster, models: Iterable[ModelPolicy], wall: Callable[[], float]) -> None:
        self.records: dict[str, Steered] = {}
        self.progress: dict[str, Progress] = {}
        self.attempts: dict[tuple[str, str], list[int]] = {}  # by model and version: that went well, and that failed
        self.changes: dict[tuple[str, str], int] = {}  # by model and what brought them about
        self._cluster = cluster
        self._wall = wall
        self._models: dict[str, ModelPolicy] = {}
        self._look_due = 0.0
        self._buckets = LogBuckets(cluster.policies.latency.relative_error)
        self._set_models(models)

    def restore(self, records: Sequence[Steered]) -> None:
        """Take over what an earlier control process kept, as far as the configuration is the same."""
        self.records = {one.steering.model: one for one in records if self._basis(one.steering.model) == one.basis}

    def configure(self, models: Iterable[ModelPolicy], now: float) -> bool:
        """Go by another configuration; True where something is steered no longer.

        What was said stays, unless what the configuration says of the model's versions has changed: the later word
        counts.
        """
        self._set_models(models)
        relative_error = self._cluster.policies.latency.relative_error
        buckets = LogBuckets(relative_error)
        if buckets.gamma != self._buckets.gamma:
            self._buckets = buckets
            self.progress.clear()  # what was counted was counted in others
        gone = [model for model, one in self.records.items() if self._basis(model) != one.basis]
        for model in gone:
            del self.records[model]
            self.progress.pop(model, None)
            self._changed(model, "configuration")
            _log.warning("versions.configured", model=model, why="its versions were configured anew")
        return bool(gone)

    def _set_models(self, models: Iterable[ModelPolicy]) -> None:
        self._models = {model.name: model for model in models}

    def serve_of(self, model: str) -> ServePolicy:
        """Return what the configuration says of a model's versions."""
        policy = self._models.get(model)
        return ServePolicy() if policy is None else policy.serve

    def _basis(self, model: str) -> str:
        return basis_of(self.serve_of(model))

    # --- telling it ---------------------------------------------------------------------------------------------

    def messages(self) -> list[VersionsSteered]:
        """Return all of it, in parts."""
        steerings = [one.steering for one in self.records.values()]
        starts = range(0, max(1, len(steerings)), BATCH)
        return [
            VersionsSteered(tuple(steerings[start : start + BATCH]), start == 0, start + BATCH >= len(steerings))
            for start in starts
        ]

    @property
    def models(self) -> list[str]:
        """The models that the configuration or somebody who steers has a word on, in order."""
        spoken = {name for name, policy in self._models.items() if policy.serve.rule is not ServeRule.ANY}
        return sorted(spoken | self.records.keys())

    def shown_in_turns(self, model: str, now: float) -> Turns[tuple[VersionRow, ...]]:
        """Return the versions of a model, none where there is no such model."""
        rows = yield from self._cluster.versions_in_turns(model, now)
        return rows or ()

    def rows(self, model: str, now: float) -> tuple[VersionRow, ...]:
        """Return the versions of a model.

        Raises:
            SteeringError: there is no such model.
        """
        rows = self._cluster.versions(model, now)
        if rows is None:
            raise SteeringError(f"no model {model!r}", self._cluster.models)
        return rows

    # --- operators ----------------------------------------------------------------------------------------------

    def promote(self, model: str, version: str, by: str, now: float) -> Steered:
        """Have one version take all requests that name none: ``version``, else the new one, else the newest.

        Raises:
            SteeringError: no such model, or the version cannot take all of them: nobody at a shard, or over a protocol.
        """
        rows = self.rows(model, now)
        serve = self.serve_of(model)
        wanted = version or (new_version(serve) if serve.rule is ServeRule.SPLIT else _newest_ready(rows))
        self._must_be_ready(model, wanted, rows)
        previous = _leading(rows, wanted)
        return self._steer(self._pinned(model, wanted), by, f"promoted {wanted}", previous)

    def rollback(self, model: str, version: str, by: str, now: float) -> Steered:
        """Have the version from before take them all: the one that took most before the last command, else the old one.

        Raises:
            SteeringError: no such model, no version from before, or it cannot take all of them.
        """
        rows = self.rows(model, now)
        wanted = version or self._before(model, rows)
        if not wanted:
            raise SteeringError(f"{model}: there is nothing to go back to: name a version", _ready(rows))
        self._must_be_ready(model, wanted, rows)
        return self._steer(self._pinned(model, wanted), by, f"rolled back to {wanted}", "")

    def split(self, model: str, shares: Sequence[VersionShare], by: str, now: float) -> Steered:
        """Divide them by weights.

        Raises:
            SteeringError: no such model or version, or nobody would get them, or those that come over a protocol.
        """
        rows = self.rows(model, now)
        names = [share.version for share in shares]
        if not shares or len(shares) > MAX_SHARES or len(set(names)) != len(names):
            raise SteeringError(f"{model}: name 1 to {MAX_SHARES} versions, each once")
        held = {row.version for row in rows if row.replicas and row.version}
        unknown = [name for name in names if name not in held]
        if unknown:
            raise SteeringError(f"{model}: no endpoint holds version {unknown[0]!r}", held)
        weighty = {share.version for share in shares if share.weight > 0}
        lacks = [row.lacks for row in rows if row.version in weighty]
        nowhere = set.intersection(*({lack.protocol for lack in each} for each in lacks)) if lacks else {""}
        if nowhere:  # over this protocol nobody would get them
            why = [f"{row.version} has {_text(row.lacks)}" for row in rows if row.version in weighty]
            raise SteeringError(f"{model}: {'; '.join(why) or 'none of these has a weight'}", _ready(rows))
        steering = VersionSteering(model, ServeRule.SPLIT, shares=tuple(shares))
        text = ", ".join(f"{share.version}={share.weight:g}" for share in shares)
        return self._steer(steering, by, f"split {text}", _leading(rows, ""))

    def reset(self, model: str, by: str) -> None:
        """Go by the configuration again; a rollout begins anew.

        Raises:
            SteeringError: nothing is steered there.
        """
        if model not in self.records:
            raise SteeringError(f"{model}: goes by its configuration", self.records)
        del self.records[model]
        self.progress.pop(model, None)
        self._changed(model, "operator")
        _log.warning("versions.reset", model=model, by=by)

    def _pinned(self, model: str, version: str) -> VersionSteering:
        return VersionSteering(model, ServeRule.PINNED, version)

    def _must_be_ready(self, model: str, version: str, rows: Sequence[VersionRow]) -> None:
        lacks = _lacks(rows, version)
        if lacks or not version:
            raise SteeringError(f"{model}: version {version!r} has {lacks or NOBODY}", _ready(rows))

    def _before(self, model: str, rows: Sequence[VersionRow]) -> str:
        """Return the version to go back to, "" where that is none."""
        record = self.records.get(model)
        if record is not None:
            return record.previous
        serve = self.serve_of(model)
        if serve.rule is ServeRule.SPLIT:
            new = new_version(serve)
            others = [share for share in serve.shares if share.version != new and share.weight > 0]
            return max(others, key=lambda share: share.weight).version if others else ""
        served = _leading(rows, "")
        return _newest_ready([row for row in rows if version_key(row.version) < version_key(served)])

    def _steer(self, steering: VersionSteering, by: str, why: str, previous: str) -> Steered:
        model = steering.model
        if len(self.records) >= MAX_STEERED and model not in self.records:
            raise SteeringError(f"{MAX_STEERED} models are steered already: reset some first")
        record = Steered(steering, by[:MAX_TEXT], self._wall(), why[:MAX_TEXT], self._basis(model), previous)
        self.records[model] = record
        self.progress.pop(model, None)
        self._changed(model, "operator")
        _log.warning("versions.steered", model=model, by=by, why=why)
        return record

    def _changed(self, model: str, cause: str) -> None:
        self.changes[model, cause] = self.changes.get((model, cause), 0) + 1

    # --- rollouts -----------------------------------------------------------------------------------------------

    def observed(self, event: PeerObserved) -> None:
        """Count what a data process saw of attempts."""
        for endpoint in event.observations:
            for seen in endpoint.seen:
                counted = self.attempts.setdefault((seen.model, seen.version), [0, 0])
                failures = seen.failures + seen.failed_calls
                counted[0] += seen.successes
                counted[1] += failures
                progress = self.progress.get(seen.model)
                if progress is not None:
                    serve = self.serve_of(seen.model)
                    if seen.version == new_version(serve):
                        progress.new.add(seen.successes, failures, seen.buckets)
                    elif any(share.version == seen.version and share.weight for share in serve.shares):
                        progress.old.add(seen.successes, failures, seen.buckets)

    def stage_of(self, model: str) -> tuple[Stage, int] | None:
        """Return where a model's rollout stands and its step, None where it has none."""
        serve = self.serve_of(model)
        if serve.rollout is None or serve.rule is not ServeRule.SPLIT:
            return None
        record = self.records.get(model)
        if record is None:
            return Stage.RUNNING, 0
        return record.stage, record.step

    def tick(self, now: float) -> bool:
        """Rule on the rollouts that run; True where one took a step."""
        if now < self._look_due:
            return False
        self._look_due = now + LOOK_S
        self._forget_departed()
        moved = False
        for model in self._models:
            stage = self.stage_of(model)
            if stage is None or stage[0] is not Stage.RUNNING:
                self.progress.pop(model, None)
            elif self._rule(model, stage[1], now):
                moved = True
        return moved

    def _rule(self, model: str, step: int, now: float) -> bool:
        serve = self.serve_of(model)
        policy = serve.rollout
        progress = self.progress.get(model)
        if policy is None:
            return False
        if progress is None or progress.step != step:
            progress = self.progress[model] = Progress(step, now)
        rows = self._cluster.versions(model, now) or ()
        new = new_version(serve)
        progress.lacks = _lacks(rows, new)
        ruling = judge(policy, step, progress.looks, now - progress.since, progress.new, progress.old, self._buckets)
        progress.looks += ruling.looked
        progress.ruling = ruling = progress.stuck or ruling
        if progress.lacks and ruling.verdict is not Verdict.ROLL_BACK:
            progress.since += min(LOOK_S, now - progress.since)  # time counts while it can be seen at work
            return False
        if ruling.verdict is Verdict.HOLD:
            return False
        if ruling.verdict is Verdict.ROLL_BACK and not _way_back(rows, serve, new):
            if progress.stuck is None:
                _log.warning("version.no_way_back", model=model, version=new, why=f"{ruling.finding}: {ruling.detail}")
            progress.stuck = ruling
            return False
        old = self.records.get(model)
        previous = old.previous if old is not None else _leading(rows, new)
        if ruling.verdict is Verdict.STEP:
            steering = VersionSteering(model, ServeRule.SPLIT, shares=shares_at(serve, step + 1))
            self._roll(steering, Stage.RUNNING, step + 1, previous, ruling)
        elif ruling.verdict is Verdict.PROMOTE:
            self._roll(self._pinned(model, new), Stage.PROMOTED, len(policy.steps) - 1, previous, ruling)
        else:
            self._roll(without(model, serve, new), Stage.ROLLED_BACK, step, "", ruling)
        return True

    def _roll(self, steering: VersionSteering, stage: Stage, step: int, previous: str, ruling: Ruling) -> None:
        model = steering.model
        why = f"{ruling.finding}: {ruling.detail}"
        self.records[model] = Steered(steering, ROLLOUT, self._wall(), why, self._basis(model), previous, step, stage)
        self.progress.pop(model, None)
        self._changed(model, ROLLOUT)
        say = _log.warning if stage is Stage.ROLLED_BACK else _log.info
        say(_ROLLED[stage], model=model, step=step, why=why)

    def _forget_departed(self) -> None:
        """Let go what was counted of versions that nobody holds any more, and of models that nobody knows any more."""
        for model, version in list(self.attempts):
            if not self._cluster.is_held(model, version):
                del self.attempts[model, version]
        for model, cause in list(self.changes):
            if not (model in self._models or model in self.records or self._cluster.is_held(model, "")):
                del self.changes[model, cause]


def without(model: str, serve: ServePolicy, version: str) -> VersionSteering:
    """Return a split in which one version gets nothing: one other alone takes all, several their parts."""
    left = [share for share in serve.shares if share.version != version and share.weight > 0]
    if len(left) == 1:
        return VersionSteering(model, ServeRule.PINNED, left[0].version)
    shares = tuple(replace(share, weight=0.0) if share.version == version else share for share in serve.shares)
    return VersionSteering(model, ServeRule.SPLIT, shares=shares)


def _text(lacks: Iterable[VersionLack]) -> str:
    return ", ".join(dict.fromkeys(lack.what for lack in lacks))


def _lacks(rows: Sequence[VersionRow], version: str) -> str:
    """Say what a version has not to take all of the requests; "" where it has everything."""
    row = next((row for row in rows if row.version == version), None)
    return NOBODY if row is None else _text(row.lacks)


def _way_back(rows: Sequence[VersionRow], serve: ServePolicy, version: str) -> bool:
    """Whether a split without ``version`` has anybody left: some failures are better than nobody."""
    others = {share.version for share in serve.shares if share.version != version and share.weight > 0}
    return any(row.ready for row in rows if row.version in others)


def _ready(rows: Sequence[VersionRow]) -> set[str]:
    """Return the versions that could take all of the requests."""
    return {row.version for row in rows if row.version and row.ready and not row.lacks}


def _newest_ready(rows: Sequence[VersionRow]) -> str:
    """Return the newest that could take them all, else the newest that has anybody: what it lacks is to be said."""
    return newest(_ready(rows)) or newest(row.version for row in rows if row.ready) or ""


def _leading(rows: Sequence[VersionRow], but: str) -> str:
    """Return the version that takes most of the requests now, ``but`` one; the newest where all serve alike."""
    taking = [row for row in rows if row.version != but and row.version and (row.share or 0) > 0]
    if taking:
        return max(taking, key=lambda row: row.share or 0.0).version
    return newest(row.version for row in rows if row.ready and row.version and row.version != but) or ""
