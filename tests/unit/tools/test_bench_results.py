from __future__ import annotations

import os
from dataclasses import replace

import pytest

from sidecar.traffic.processor import cpu_s, tree
from tools.bench import procfs
from tools.bench.asks import GET, INFER, MARK
from tools.bench.choice import Choice
from tools.bench.contenders import COMPILED, DIRECT, OURS
from tools.bench.explain import LOOP, Explanation, functions_of, parts_of
from tools.bench.load import Sample
from tools.bench.memory import Memory
from tools.bench.results import Run
from tools.bench.tables import fault_rows
from tools.bench.targets import TARGETS, verdicts

SAMPLE = Sample(
    units=1000,
    seconds=2.0,
    cpu_us=10.0,
    cpu_ratio=0.5,
    system_ratio=0.6,
    switches=0.01,
    p50_us=100.0,
    p99_us=300.0,
    pss_bytes=5_000_000,
    by_process={"data": 9.0, "control": 1.0},
)


def run_of(profile: str, **cpu_us: list[float]) -> Run:
    run = Run({"cores": "2"}, rounds=3, seconds=2.0, versions={"nginx": "1.22.1"})
    run.samples[profile] = {
        name.replace("_", "-"): [replace(SAMPLE, cpu_us=cpu) for cpu in of_one] for name, of_one in cpu_us.items()
    }
    return run


def reached(run: Run) -> dict[str, bool]:
    return {str(one): one.met for one in verdicts(run)}


def test_ratios_are_taken_round_by_round() -> None:
    # the machine got twice as slow in the second round: the ratio did not move
    spread = run_of("post", warmroute=[15, 30, 16], nginx=[10, 20, 10]).ratio("post", OURS, "nginx")
    assert spread is not None
    assert (spread.least, spread.median, spread.most) == (1.5, 1.5, 1.6)
    assert spread.text() == "1.50 (1.50–1.60)"


def test_what_faults_cost_is_a_difference_of_one_round() -> None:
    run = run_of("faults", warmroute=[10, 20, 10], warmroute_again=[10, 21, 9], warmroute_fault=[11, 21, 11])
    assert fault_rows(run)[1:] == [
        ("no fault ever", "10.00 (10.00–20.00)", "", ""),
        ("no fault ever, a second sidecar", "10.00 (9.00–21.00)", "0.00 (-1.00–1.00)", "0.0 (-10.0–5.0)"),
        ("a fault of another model is in force", "11.00 (11.00–21.00)", "1.00", "10.0 (5.0–10.0)"),
    ]


def test_what_was_not_measured_is_not_compared() -> None:
    run = run_of("post", warmroute=[15])
    assert run.ratio("post", OURS, "nginx") is None
    assert run.ratio("get", OURS, "nginx") is None
    assert run.spread("post", "nginx", lambda sample: sample.cpu_us) is None
    assert verdicts(run) == []


def test_each_build_is_held_to_its_own_bound() -> None:
    run = run_of("get", nginx=[10], haproxy=[10], envoy=[50], warmroute=[14], warmroute_compiled=[14])
    assert reached(run) == {
        "warmroute, CPU per small GET: 1.40 ×, ≤ 1.5 × nginx": True,
        "warmroute-compiled, CPU per small GET: 1.40 ×, ≤ 1.3 × nginx": False,
        "warmroute, CPU per small GET: 1.40 ×, ≤ 1.5 × haproxy": True,
        "warmroute, CPU per small GET: 0.28 ×, ≤ 0.35 × envoy": True,
    }


def test_latency_is_a_difference_of_one_round() -> None:
    run = Run({}, rounds=2, seconds=1.0)
    run.samples["rate"] = {
        DIRECT: [SAMPLE, replace(SAMPLE, p50_us=500)],
        "haproxy": [replace(SAMPLE, p50_us=130), replace(SAMPLE, p50_us=530)],
        "envoy": [replace(SAMPLE, p99_us=400), replace(SAMPLE, p99_us=400)],
        OURS: [replace(SAMPLE, p50_us=155, p99_us=350), replace(SAMPLE, p50_us=545, p99_us=420)],
    }
    assert reached(run) == {
        "warmroute, added p50 at a fixed rate: +20.0 µs (+15.0 to +25.0), ≤ haproxy's + 20 µs": True,
        "warmroute, added p99 at a fixed rate: -15.0 µs (-50.0 to +20.0), ≤ envoy's": True,
    }


def test_memory_and_choice_have_bounds_of_their_own() -> None:
    run = Run({}, rounds=1, seconds=1.0)
    run.memory = {COMPILED: Memory(41_000_000, 90_000_000, 14_000_000, 1000)}
    run.choices = [Choice(2, 1.0, 2.0), Choice(1000, 5.5, 7.0)]
    assert reached(run) == {
        "warmroute-compiled, PSS of an idle data process: 41.0 MB, ≤ 40 MB": False,
        "warmroute-compiled, PSS added by 1,000 idle connections: 14.0 MB, ≤ 15 MB": True,
        "warmroute, one choice of an endpoint, 2 to 1,000 of them: 3.25 (1.00–5.50) µs, ≤ 5 µs": True,
    }


def test_every_target_binds_a_build_of_ours() -> None:
    assert all(set(target.most) <= {OURS, COMPILED} and target.most for target in TARGETS)


def test_a_run_is_kept_and_read_again() -> None:
    run = run_of("post", warmroute=[15], nginx=[10])
    run.memory = {OURS: Memory(1, 2, 3, 4, {"uvloop": 5})}
    run.explained = {"post": {OURS: Explanation({"libc": 0.5}, {"f (a.py)": 0.25}, ["perf"])}}
    run.choices = [Choice(2, 1.0, 2.0)]
    assert Run.from_json(run.to_json()) == run


def test_perf_is_read_by_part() -> None:
    kernel = "([kernel.kallsyms])"
    samples = [
        [f"81 tcp_sendmsg {kernel}", f"82 __x64_sys_sendto {kernel}", f"83 do_syscall_64 {kernel}"],
        [f"81 tcp_ack {kernel}", f"82 ksys_write {kernel}"],
        [f"81 tcp_recvmsg {kernel}", f"82 __arm64_sys_recvfrom {kernel}"],
        [f"81 schedule {kernel}", f"82 __x64_sys_epoll_wait {kernel}"],
        [f"81 asm_exc_page_fault {kernel}"],
        ["7f _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)"],
        ["7f [unknown] (/usr/bin/python3.11)"],
        ["7f x (/v/lib/python3.11/site-packages/uvloop/loop.cpython-311-x86_64-linux-gnu.so)"],
        ["7f y (/v/lib/python3.11/site-packages/httptools/parser/parser.cpython-311-x86_64-linux-gnu.so)"],
        ["7f z (/v/lib/python3.11/site-packages/warmroute__mypyc.cpython-311-x86_64-linux-gnu.so)"],
        ["7f malloc (/usr/lib/x86_64-linux-gnu/libc.so.6)"],
        ["7f ngx_http_parse (/usr/sbin/nginx)"],
    ]
    text = "\n\n".join("\n".join(f"\t{frame}" for frame in frames) for frames in samples)
    shares = parts_of(["", *text.splitlines()])
    assert {part: round(share * len(samples)) for part, share in shares.items()} == {
        "kernel: writing": 2,
        "kernel: reading": 1,
        "kernel: waiting for events": 1,
        "kernel: other": 1,
        "the interpreter": 2,
        "uvloop": 1,
        "httptools (llhttp)": 1,
        "warmroute, compiled": 1,
        "libc": 1,
        "own code and other libraries": 1,
    }
    assert parts_of([]) == {}


def test_functions_are_those_at_the_end_of_a_stack() -> None:
    lines = [
        "main (sidecar/__main__.py:10);data_received (sidecar/http1/caller.py:50) 30",
        "main (sidecar/__main__.py:10);data_received (sidecar/http1/caller.py:61) 30",
        "main (sidecar/__main__.py:10);write (sidecar/http1/downstream.py:7) 30",
        "main (sidecar/__main__.py:10);Runner.run (asyncio/runners.py:118) 10",
        "not a stack",
    ]
    assert functions_of(lines) == {
        "data_received (caller.py)": 0.6,
        "write (downstream.py)": 0.3,
        LOOP: 0.1,
    }


def test_a_template_differs_where_its_heads_are_to_differ() -> None:
    usual, same, new = (INFER.template(8080, "7-1", heads) for heads in ("usual", "same", "new"))
    assert (usual.count(MARK.encode()), same.count(MARK.encode()), new.count(MARK.encode())) == (1, 0, 2)
    head, _, body = usual.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"\r\nX-Request-Id: 7-1-@@@@@@@@@@@@" in head
    assert 900 < len(body) < 1200
    assert b"Content-Length" not in GET.template(8080, "x")


def test_a_process_tree_is_read_from_proc() -> None:
    own = os.getpid()
    assert own in tree(os.getppid())
    usage = procfs.Usage.of(own)
    assert usage.cpu_s[own] > 0
    assert usage.user_s > 0
    assert usage.switches > 0
    assert procfs.pss_bytes(own) > 1_000_000
    assert "pytest" in procfs.command(own) or "python" in procfs.command(own)


def test_memory_is_told_by_what_is_mapped() -> None:
    kinds = procfs.pss_by_kind(os.getpid())
    assert kinds["heap and stacks"] > 1_000_000
    assert "msgspec" in kinds
    assert sum(kinds.values()) == pytest.approx(procfs.pss_bytes(os.getpid()), rel=0.1)


@pytest.mark.parametrize("read", [cpu_s, procfs.pss_bytes])
def test_a_process_that_is_gone_costs_nothing(read: object) -> None:
    assert callable(read)
    assert read(2**22 + 1) == 0  # over the kernel's largest pid
    assert procfs.Usage.of(0) == procfs.Usage({}, 0, 0, 0)
