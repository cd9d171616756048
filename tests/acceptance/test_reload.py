"""A configuration that changes under load: in force within 1.3 s, nothing lost, and a bad one changes nothing."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.load import Load, echo, stream
from tests.support.product import PROCESSES, WARMROUTE, Sidecar, running, write_config
from tests.support.sidecars import until
from tests.support.streaming_origin import streaming_origin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.acceptance, pytest.mark.beside, pytest.mark.timeout(90)]

WITHIN_S = 1.3


@pytest.fixture
def origins(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with streaming_origin(tmp_path / "one.log") as one, streaming_origin(tmp_path / "two.log") as two:
        yield one, two


def settings(*endpoints: str, **more: Any) -> dict[str, Any]:
    return {"models": [{"name": "default", "default": True, "endpoints": list(endpoints)}], **more}


def current(sidecar: Sidecar) -> bool:
    return all(process["current"] for process in sidecar.json("/config/status")["processes"])


def test_ten_reloads_under_load_lose_nothing(tmp_path: Path, origins: tuple[str, str]) -> None:
    one, two = origins
    with (
        running(tmp_path, settings=settings(one)) as sidecar,
        Load(sidecar.listen, [stream(6)], clients=6, rate_per_s=60, rounds=1) as streams,
        Load(sidecar.listen, [echo()], clients=16, rate_per_s=300) as load,
    ):
        pids = (sidecar.process.child("control"), *sidecar.data_pids)
        until(lambda: len(load.answers) > 100 and len(streams.ports) == 6, "the load runs")
        for turn in range(5):
            write_config(tmp_path, settings(one, two, limits={"pooled_per_endpoint": turn}))
            sidecar.process.send(signal.SIGHUP)
            sidecar.process.await_event("config.in_force", count=3 * (2 * turn + 1))
            if turn == 2:  # in between, one that cannot be used
                write_config(tmp_path, settings("no-url"))
                sidecar.process.await_event("config.refused")
            write_config(tmp_path, settings(one, timeouts={"keep_alive_s": 60.0 + turn}))
            sidecar.process.send(signal.SIGHUP)
            sidecar.process.await_event("config.in_force", count=3 * (2 * turn + 2))
        until(lambda: len(load.answers) > 300, "many were answered meanwhile")
        load.stop()
        streams.join()
        assert (load.failed(), streams.failed()) == ([], []), (load.summary(), streams.summary())
        assert not any(answer.closes for answer in load.answers)  # no connection was given up for it
        assert sum(answer.fresh for answer in load.answers) == 16  # each client's first
        assert (sidecar.process.child("control"), *sidecar.data_pids) == pids
        assert sidecar.metric("warmroute_config_reloads_total", result="taken") == 10
        until(lambda: sidecar.metric("warmroute_requests_in_flight") == 0, "counts are back at zero")
        assert sidecar.stop() == 0


def test_an_endpoint_that_comes_or_goes_does_so_within_the_time(tmp_path: Path, origins: tuple[str, str]) -> None:
    one, two = origins
    with (
        running(tmp_path, settings=settings(one)) as sidecar,
        Load(sidecar.listen, [echo()], clients=8, rate_per_s=200) as load,
    ):
        until(lambda: len(load.answers) > 50, "the load runs")
        write_config(tmp_path, settings(one, two))
        changed_at = time.monotonic()
        until(lambda: any(answer.worker == two[7:] for answer in list(load.answers)), "it gets requests")
        first = min(answer.began for answer in list(load.answers) if answer.worker == two[7:])
        assert first - changed_at < WITHIN_S
        time.sleep(0.3)
        write_config(tmp_path, settings(two))
        changed_at = time.monotonic()
        time.sleep(WITHIN_S + 0.7)
        load.stop()
        assert load.failed() == [], load.summary()
        last = max(answer.began for answer in load.answers if answer.worker == one[7:])
        assert last - changed_at < WITHIN_S
        assert sidecar.open_to("default") == {two[7:]}
        assert {row["id"] for row in sidecar.json("/endpoints")["endpoints"]} == {two[7:]}
        assert sidecar.metric("warmroute_attempts_total", endpoint=one[7:]) == 0  # its series ended
        assert not sidecar.process.events("config.problem")
        assert sidecar.stop() == 0


def one_model(name: str, *endpoints: str, probe_s: float | None = None) -> dict[str, Any]:
    """Return settings with one model, the default one. ``probe_s``: how long its endpoints take to answer a probe."""
    probe = {} if probe_s is None else {"probe": {"path": f"/ready?seconds={probe_s}", "interval_s": 0.5}}
    return {"models": [{"name": name, "default": True, "endpoints": list(endpoints), **probe}]}


CHANGES = {  # from the one to the other and back: model, which origin, how long a probe takes
    "the only endpoint is another": (("d", 0, None), ("d", 1, None)),
    "the default model has another name": (("d", 0, None), ("e", 0, None)),
    "and another endpoint": (("d", 0, None), ("e", 1, None)),
    "another endpoint that is probed": (("d", 0, 0.0), ("d", 1, 0.0)),
    "another name, where it is probed": (("d", 0, 0.8), ("e", 0, 0.8)),
    "another name and endpoint that is slow to answer": (("d", 0, 0.8), ("e", 1, 0.8)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_has_endpoints_before_and_after_has_some_at_every_moment(
    tmp_path: Path, origins: tuple[str, str], change: str
) -> None:
    steps = [one_model(name, origins[place], probe_s=probe_s) for name, place, probe_s in CHANGES[change]]
    with (
        running(tmp_path, settings=steps[0]) as sidecar,
        Load(sidecar.listen, [echo()], clients=8, rate_per_s=500) as load,
    ):
        until(lambda: len(load.answers) > 50, "the load runs")
        for turn in range(1, 5):
            model, place, _ = CHANGES[change][turn % 2]
            write_config(tmp_path, steps[turn % 2])
            sidecar.process.send(signal.SIGHUP)
            sidecar.process.await_event("config.in_force", count=3 * turn)
            until(lambda turn=turn: settled(sidecar), "nothing of before is left")  # type: ignore[misc]
            assert sidecar.open_to(model) == {origins[place][7:]}
        load.stop()
        assert load.failed() == [], load.summary()
        assert not any(event["not_warm"] for event in sidecar.process.events("config.settled"))
        assert sidecar.stop() == 0


@pytest.mark.parametrize("probe_s", [None, 0.3])
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
def test_a_change_while_nobody_controls_loses_nothing(
    tmp_path: Path, origins: tuple[str, str], kill: signal.Signals, probe_s: float | None
) -> None:
    with (
        running(tmp_path, settings=one_model("d", origins[0], probe_s=probe_s)) as sidecar,
        Load(sidecar.listen, [echo()], clients=8, rate_per_s=300) as load,
    ):
        until(lambda: len(load.answers) > 50, "the load runs")
        control = sidecar.process.child("control")
        os.kill(control, kill)
        write_config(tmp_path, one_model("e", origins[1], probe_s=probe_s))
        sidecar.process.send(signal.SIGHUP)
        sidecar.process.await_event("config.in_force", count=PROCESSES)
        if kill is signal.SIGSTOP:
            time.sleep(3.0)  # longer than it would be waited for
            os.kill(control, signal.SIGCONT)
        changed_at = time.monotonic()
        until(lambda: load.answers[-1].worker == origins[1][7:], "they go to the other", within_s=8)
        until(lambda: settled(sidecar), "nothing of before is left", within_s=4)
        assert time.monotonic() - changed_at < 8
        load.stop()
        assert load.failed() == [], load.summary()
        assert sidecar.stop() == 0


def settled(sidecar: Sidecar) -> bool:
    """Whether each data process let go what it kept for a change to be without a gap."""
    return len(sidecar.process.events("config.settled")) == len(sidecar.process.events("config.settling"))


def test_a_bad_file_is_named_and_waited_for(tmp_path: Path, origins: tuple[str, str]) -> None:
    with running(tmp_path, settings=settings(origins[0])) as sidecar:
        revision = sidecar.json("/config/status")["revision"]
        path = write_config(tmp_path, settings(origins[0], timeouts={"drain_s": -3}))
        event = sidecar.process.await_event("config.problem")
        assert event["problem"].startswith(f"{path}:1:")
        assert "timeouts.drain_s: -3" in event["problem"]
        until(lambda: sidecar.json("/config/status")["bad_since"] is not None, "it shows")
        status = sidecar.json("/config/status")
        assert (status["revision"], status["problems"]) == (revision, [event["problem"]])
        assert sidecar.metric("warmroute_config_bad") == 1
        assert sidecar.metric("warmroute_config_info", revision=revision) == 1
        assert sidecar.metric("warmroute_config_bad_since_timestamp_seconds") == pytest.approx(time.time(), abs=10)
        assert sidecar.ready()
        sidecar.process.send(signal.SIGUSR2)  # a successor does not come far with it
        assert sidecar.process.await_event("upgrade.failed")["code"] == 2
        assert sidecar.ready()
        path.unlink()
        os.mkfifo(path)  # reading it would wait for a writer
        sidecar.process.await_event("config.problem", count=2)
        assert sidecar.process.events("config.problem")[-1]["problem"].startswith(f"{path}: is not a regular file: ")
        path.unlink()
        write_config(tmp_path, settings(origins[0]))
        until(lambda: sidecar.json("/config/status")["bad_since"] is None, "and is over")
        assert sidecar.metric("warmroute_config_bad") == 0
        assert sidecar.stop() == 0


def test_each_class_of_field_takes_effect_where_it_says(tmp_path: Path, origins: tuple[str, str]) -> None:
    socket = tmp_path / "admin.sock"
    admin: dict[str, Any] = {"socket": str(socket)}
    with running(tmp_path, "--no-watch", settings=settings(origins[0], admin=admin)) as sidecar:
        kept = http.client.HTTPConnection(sidecar.listen, timeout=10)
        assert asked(kept) == origins[0][7:]
        changed = settings(
            origins[0],
            admin=admin,
            limits={"body_bytes": 999},
            logging={"level": "debug"},
            listeners=[{"address": "127.0.0.1:0", "processes": 1, "default_model": "listeners-own"}],
        )
        changed["models"][0]["default"] = False
        changed["models"].append({"name": "listeners-own", "endpoints": [origins[1]]})
        write_config(tmp_path, changed)
        time.sleep(1.0)
        assert not sidecar.process.events("config.loading")  # nobody watches
        told = command("config", "reload", "--admin", f"unix:{socket}")
        assert told.returncode == 0, told.stderr
        assert told.stdout.startswith("taken: ")
        assert "limits.body_bytes: 67108864 -> 999" in told.stdout
        assert 'needs an upgrade or a restart: logging.level: "info" -> "debug"' in told.stdout
        assert "needs an upgrade or a restart: listeners[127.0.0.1:0].processes: 2 -> 1" in told.stdout
        named = {event["path"]: event["remedy"] for event in sidecar.process.events("config.needs_restart")}
        assert named == dict.fromkeys(
            ("logging.level", "listeners[127.0.0.1:0].processes"),
            f"upgrade in place: kill -USR2 {sidecar.process.pid}",
        )
        assert current(sidecar)
        again = command("config", "reload", "--admin", f"unix:{socket}")
        assert (again.returncode, again.stdout.partition(":")[0]) == (0, "unchanged")
        assert ("body_bytes" in again.stdout, "needs an upgrade" in again.stdout) == (False, True)
        assert f", in force since {sidecar.json('/config/status')['loaded_at']}\n" in again.stdout
        assert "`warmroute config status` shows what was taken over then" in again.stdout
        assert asked(kept) == origins[1][7:]  # on the very connection that was there before
        kept.close()
        with Load(sidecar.listen, [echo()], clients=1, rate_per_s=100, rounds=1) as one:
            one.join()
        assert [answer.status for answer in one.answers] == [413]
        assert sidecar.metric("warmroute_config_needs_restart") == 2

        os.kill(sidecar.data_pids[0], signal.SIGKILL)  # its successor starts with what is in force
        sidecar.process.await_event("process.accepting", count=PROCESSES + 1)
        until(lambda: current(sidecar), "all run with it")
        status = command("config", "status", "--admin", f"unix:{socket}")
        assert (status.returncode, "needs an upgrade" in status.stdout) == (1, True)

        write_config(
            tmp_path, {**changed, "state": {"url": "redis://127.0.0.1:1"}, "models": [{"name": "listeners-own"}]}
        )
        withheld = command("config", "reload", "--admin", f"unix:{socket}")
        assert (withheld.returncode, withheld.stdout.partition(":")[0]) == (1, "withheld")
        assert "body_bytes" not in withheld.stdout
        assert "in force yet, for without what needs a restart: models[listeners-own].name: has no" in withheld.stdout
        assert (
            sidecar.metric("warmroute_config_needs_restart") == len(sidecar.json("/config/status")["needs_restart"]) > 3
        )
        assert sidecar.ready()

        write_config(tmp_path, settings(origins[0], admin=admin, models=[]))
        refused = command("config", "reload", "--admin", f"unix:{socket}")
        assert refused.returncode == 1
        assert "models: an empty list: must name a model" in refused.stdout
        assert "stays in force" in refused.stderr
        over_tcp = command("config", "reload", "--admin", f"http://{sidecar.admin}")
        assert (over_tcp.returncode, "token" in over_tcp.stderr) == (1, True)
        assert sidecar.stop() == 0


def asked(connection: http.client.HTTPConnection) -> str | None:
    """Ask for an echo; return which origin gave it."""
    connection.request("POST", "/", b"x")
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"x")
    return response.getheader("warmroute-worker")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WARMROUTE")}
    return subprocess.run([WARMROUTE, *arguments], capture_output=True, text=True, env=environ, timeout=30)
