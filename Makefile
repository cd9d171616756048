# make demo   a request reaches a warm worker, on real parts, from a fresh clone
# make test   everything that is checked; .ci/run calls exactly this
# make help   the rest

PYTHON ?= python3
JOBS ?= 2
# Tests wait more than they compute: one more than there are cores leaves fewer of those idle.
TEST_JOBS ?= 3
DRILL_JOBS ?= 3

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
MODELS := models
COMPARED := .venv-bench
CLIENTS := .venv-clients

# Nobody's wish to keep no bytecode holds here: tests start a thousand processes, and each would compile itself again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv clients dev demo model test test-compiled check format bench bench-run restart headline compiled lock proto reference pictures \
  demo-picture drills fuzz sim soak system-packages clean

help:
	@echo "make demo      start workers with a real model and a sidecar, print curl lines that work"
	@echo "make test      every check and every test (installs Debian packages that tests need, and says so)"
	@echo "make check     lint, format, types, import contracts, freshness of generated files; under a minute"
	@echo "make bench     CPU, latency and memory beside other proxies; ARGS='--only nginx,warmroute --profile post' for a look"
	@echo "make sim       the router's law beside others on simulated fleets, minutes; writes the table and plot of docs/"
	@echo "make restart   workers killed in turn behind warmroute, nginx, HAProxy and Envoy; 13 minutes"
	@echo "make headline  the same trace behind warmroute and behind round robin, P99 and P99.9; 8 minutes, alone on the machine"
	@echo "make drills    the short form of every drill in deploy/drills, under two minutes; reports in drill-results/"
	@echo "make soak      churn against a real sidecar for SECONDS=600, then everything must be as it was"
	@echo "make fuzz      look for bytes that pass with two readings, for SECONDS=60"
	@echo "make compiled  the compiled build, in .venv-compiled; nothing where no source changed"
	@echo "make venv      only .venv with warmroute in it (PYTHON=python3.12 to choose the interpreter)"
	@echo "make dev       .venv with the development tools too"
	@echo "make clients   .venv-clients with tritonclient and kserve's clients, which tests drive a worker with"
	@echo "make format    let ruff format and fix"
	@echo "make proto     generate the protobuf code again"
	@echo "make reference generate the configuration reference again"
	@echo "make pictures  draw the pictures of docs/ again"
	@echo "make demo-picture   run the demo and draw what it shows, for the README"
	@echo "make lock      resolve the dependencies again (UPGRADE=1 for newer releases)"
	@echo "make clean     remove what was made here, .venv and the demo model too; other models stay"

# --- environments: each stamp stands for what its locks said when it was made --------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "warmroute needs Python 3.11 or newer, '$(PYTHON)' is not: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "'$(PYTHON)' cannot make environments: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: requirements/run.lock requirements/build.lock pyproject.toml | $(BIN)/python
	@echo "installing the locked dependencies into $(VENV)"
	@$(PIP) --require-hashes -r requirements/run.lock -r requirements/build.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.lock $(VENV)/run.stamp
	@echo "installing the development tools into $(VENV)"
	@$(PIP) --require-hashes -r requirements/dev.lock
	@touch $@

venv: $(VENV)/run.stamp
	@echo "ready: $(BIN)/warmroute"

dev: $(VENV)/dev.stamp

# --- what a user runs -----------------------------------------------------------------------------------------------

model: $(VENV)/run.stamp
	@$(BIN)/python tools/fetch_demo_model.py --models $(MODELS)

demo: model
	@exec $(BIN)/warmroute up --models $(MODELS) $(ARGS)

# --- what a developer runs ------------------------------------------------------------------------------------------

system-packages:
	@tools/system_packages.sh

# Tests that measure, and whole products that are not marked, run alone: they are serial (tests/conftest.py). Those that are
# marked roomy wait most of their time: three of them take one core of two.
test:
	@$(MAKE) --no-print-directory -j2 --output-sync=target check system-packages model $(CLIENTS)/clients.stamp collected
	$(BIN)/pytest -n $(TEST_JOBS) -m "not serial and not roomy"
	$(BIN)/pytest -n $(TEST_JOBS) -m roomy tests/acceptance tests/chaos tests/conformance
	$(BIN)/pytest -m serial tests/acceptance tests/bench tests/chaos tests/conformance
	$(MAKE) --no-print-directory -j2 --output-sync=target drills compiled-beside
	$(MAKE) --no-print-directory test-compiled

# All tests are imported by one process first: those that run them, each of which imports them all, find what pytest and
# Hypothesis made of them.
.PHONY: collected
collected: dev
	@found=$$($(BIN)/pytest --collect-only -q) || { echo "$$found"; exit 1; }; echo "$$found" | tail -n 1

# Clients that others wrote, to drive a worker with: they want an older protobuf than we do. Where they cannot be installed,
# the tests with them say that they are skipped. Not compiled: a test imports a part of it, once.
clients: $(CLIENTS)/clients.stamp

$(CLIENTS)/clients.stamp: requirements/clients.lock
	@echo "installing tritonclient and kserve's clients into $(CLIENTS)"
	@rm -rf $(CLIENTS)
	@$(PYTHON) -m venv $(CLIENTS) && \
	  $(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --only-binary :all: --no-compile --no-deps \
	    --require-hashes -r requirements/clients.lock && touch $@ || \
	  echo "not installed: the tests with other people's clients are skipped" >&2

# The data path and the router once more, on the compiled build (docs/compiled.md). Skipped, and said so, where this
# machine cannot compile.
test-compiled: dev
	$(BIN)/python -m tools.compiled test -n $(TEST_JOBS)

# Drills wait more than they compute, so what is to be compiled is compiled meanwhile; 3: this machine cannot, said later.
.PHONY: compiled-beside
compiled-beside: dev
	@nice -n 10 $(BIN)/python -m tools.compiled || test $$? -eq 3

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy hatch_build.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/gen_proto.py --check
	$(BIN)/warmroute config reference | diff -u docs/reference/configuration.md - || \
	  { echo "docs/reference/configuration.md is stale: make reference" >&2; exit 1; }
	$(BIN)/python -m tools.pictures --check

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: dev
	$(BIN)/python tools/gen_proto.py

reference: dev
	$(BIN)/warmroute config reference > docs/reference/configuration.md

pictures: dev
	$(BIN)/python -m tools.pictures

demo-picture: dev model
	$(BIN)/python -m tools.pictures.demo

compiled: dev
	@$(BIN)/python -m tools.compiled

fuzz: SECONDS ?= 60
fuzz: dev
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# ARGS: --only TEXT, --seeds N, --scale RATIO, --variations (python -m tests.sim --help).
sim: dev
	@$(BIN)/python -m tests.sim --jobs $(JOBS) $(if $(ARGS),$(ARGS),--write)

# A quarter of an hour. ARGS: --only TEXT, --period-s N (python -m tools.restart --help).
restart: dev
	@tools/system_packages.sh bench
	@$(BIN)/python -m tools.restart $(if $(ARGS),$(ARGS),--write)

# Eight minutes. ARGS: --profile coldstart|dependency, --rounds N, --period-s N, --json FILE (python -m tools.headline --help).
headline: dev
	@tools/system_packages.sh bench
	@$(BIN)/python -m tools.headline $(if $(ARGS),$(ARGS),--write)

# An interpreter chosen for the benchmark gets environments of its own, so that both can be compared.
BENCH_VENV := $(if $(filter command line,$(origin PYTHON)),.venv-$(subst /,-,$(PYTHON:/%=%)),$(VENV))

bench:
	@tools/system_packages.sh bench
	@$(MAKE) --no-print-directory VENV=$(BENCH_VENV) bench-run

bench-run: dev compiled $(COMPARED)/bench.stamp
	$(BIN)/python -m tools.bench $(ARGS)

# Others' wheels, only to compare with. Where they cannot be installed the benchmark says so and goes on without them.
$(COMPARED)/bench.stamp: requirements/bench.lock
	@echo "installing what the benchmark compares with into $(COMPARED)"
	@rm -rf $(COMPARED)
	@$(PYTHON) -m venv $(COMPARED) && \
	  $(COMPARED)/bin/python -m pip --disable-pip-version-check --quiet install --only-binary :all: --require-hashes \
	    -r requirements/bench.lock && touch $@ || \
	  echo "not installed: the benchmark goes on without vllm-router, sglang-router and py-spy" >&2

# They wait more than they compute, as tests do. ARGS: any of warmroute drill run --help.
drills: venv
	@$(BIN)/warmroute drill run --short --jobs $(DRILL_JOBS) deploy/drills $(ARGS)

soak: SECONDS ?= 600
soak: dev
	$(BIN)/python -m tests.chaos.churn --seconds $(SECONDS)

lock:
	@$(PYTHON) tools/lock.py $(if $(UPGRADE),--upgrade)

clean:
	@$(PYTHON) tools/fetch_demo_model.py --models $(MODELS) --remove
	rm -rf $(VENV) .venv-* build
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache bench-results drill-results
