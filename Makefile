# Everything a contributor runs. Needs make and Python 3.11 or newer; the rest is installed into .venv from the lock
# files, and each target installs no more than it needs:
#   requirements.lock        the package and what builds it    demo, wheel
#   requirements-dev.lock    and its extras, tests, checks     test, check, chaos, …
#   requirements-bench.lock  and the queues measured beside it bench-…
# Another interpreter: make clean, then make PYTHON=python3.12 test

PYTHON ?= python3
PYTEST_ARGS ?= -n 4
UV_VERSION := 0.13.7

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
BENCH := $(VENV)/.bench
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
CHECKED := src tests $(wildcard benchmarks deploy examples)

# The tests start hundreds of processes: each would compile everything it imports if nothing were kept. Whoever needs a
# program that was changed under its eyes (make mutants) sets it itself.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: venv
venv: $(DEV) ## Make .venv for work on the project, if it is missing or older than the lock

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Leasemill needs Python 3.11 or newer, and '$(PYTHON)' is not: name one with make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN): requirements.lock pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --require-hashes -r requirements.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.lock $(RUN)
	$(PIP_INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

$(BENCH): requirements-bench.lock $(DEV)
	$(PIP_INSTALL) --require-hashes -r requirements-bench.lock
	@touch $@

.PHONY: test
test: $(DEV) ## Run the tests, in four processes, which mostly wait (PYTEST_ARGS="-k lane -x" to narrow)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: test-again
test-again: $(DEV) ## Run the tests that failed in the latest run again, alone, five times: a race, or a machine that stood still?
	$(BIN)/python -m tests.again

# The browser tests use Debian's Chromium; where it is missing and this is root, it is installed. The slice of them that is
# part of `make test` is skipped without a browser, and the summary says so.
CHROMIUM := $(or $(LEASEMILL_TEST_CHROMIUM),/usr/bin/chromium)
.PHONY: chromium
chromium:
	@test -x $(CHROMIUM) || { [ "$$(id -u)" = 0 ] && apt-get update && apt-get install --yes --no-install-recommends chromium; } || { \
	  echo "the browser tests need $(CHROMIUM): install Debian's package chromium, or name another with LEASEMILL_TEST_CHROMIUM" >&2; exit 1; }

.PHONY: django-tests
django-tests: $(DEV) ## Run Django's own tests of task backends on ours (Python 3.12 or newer; pip downloads them)
	$(BIN)/python -m tests.contrib.django.upstream

.PHONY: browser
browser: $(DEV) chromium ## Look at every page of the dashboard in a browser, in three widths, light and dark, and on every store, do every act, and put every hostile text into it (5 minutes)
	LEASEMILL_FULL_ESCAPING=1 $(BIN)/python -m pytest $(PYTEST_ARGS) \
	  tests/dashboard/test_browser.py tests/dashboard/browser/every_page.py tests/dashboard/browser/every_store.py \
	  tests/dashboard/browser/every_action.py tests/dashboard/test_escaping.py

.PHONY: screenshots
screenshots: $(DEV) chromium ## Take the pictures of the guide to the dashboard again (docs/images)
	$(BIN)/python -m tests.dashboard.browser.screenshots

# The spinning processes end with the tests, however those end, and by themselves after an hour.
.PHONY: test-busy
test-busy: $(DEV) ## Run the tests while two other processes keep the machine busy
	@timeout 3600 sh -c 'while :; do :; done' & first=$$!; timeout 3600 sh -c 'while :; do :; done' & second=$$!; \
	trap 'kill $$first $$second 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: mutants
mutants: $(DEV) ## Put faults into the kernel and into SQL and see that the tests notice (15 minutes; MUTANTS="--sample 8" for a part)
	$(BIN)/python -m tests.kernel.mutations $(MUTANTS)
	$(BIN)/python -m tests.store.postgres.mutations $(MUTANTS)

.PHONY: walk
walk: $(DEV) ## Walk PostgreSQL beside the kernel for as long as it takes to trust it (10 minutes; SEEDS, STEPS, SEED=… to repeat)
	SEEDS=$(or $(SEEDS),40) STEPS=$(or $(STEPS),1000) $(if $(SEED),SEED=$(SEED)) \
	  $(BIN)/python -m pytest -n 2 tests/store/postgres/test_differential.py

.PHONY: oracle-cron
oracle-cron: $(DEV) ## Compare 200 cron expressions in 20 zones with other implementations, at every minute of 10 years (40 minutes)
	LEASEMILL_FULL_ORACLE=1 $(BIN)/python -m pytest -n 2 tests/api/test_cron.py

.PHONY: demo
demo: $(RUN) ## Kill one worker and stop another in the middle of 1,000 jobs, and audit the result
	@$(BIN)/leasemill demo

.PHONY: chaos
STORE ?= file
chaos: $(DEV) ## Break a store in every way, at full length (STORE=file or postgresql, SEED=… to repeat)
	$(BIN)/python -m tests.crash.chaos --store $(STORE) $(if $(SEED),--seed $(SEED))

.PHONY: chaos-workers
chaos-workers: $(DEV) ## Kill and stop worker processes at full length: zombies, the default lease, the demo (3 minutes)
	$(BIN)/python -m pytest tests/process/chaos.py

.PHONY: zombies
zombies: $(DEV) ## Stop workers past their leases, continue them, and see that every effect is there once (URL=http://… or another store)
	$(BIN)/python -m tests.process.zombies $(if $(URL),--url $(URL))

.PHONY: chaos-shops
chaos-shops: $(DEV) ## Kill workers of one shop built four ways (psycopg, SQLAlchemy, asyncpg, Django) and count the money (15 minutes)
	$(BIN)/python -m tests.process.shops.chaos $(if $(SEED),--seed $(SEED))

.PHONY: chaos-rules
chaos-rules: $(DEV) ## Kill 8 workers 500 times while schedules, limits and groups are at work, race for 30,000 ticks (STORE=file or postgresql, 15 to 20 minutes)
	$(BIN)/python -m tests.process.rules_chaos --store $(STORE) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.process.ticks_lab --store $(STORE)

.PHONY: chaos-deaths
chaos-deaths: $(DEV) ## Kill 200 workers under the default lease, supervised and not, while others stand still, on file: and PostgreSQL (25 minutes)
	$(BIN)/python -m tests.process.deaths.chaos $(if $(SEED),--seed $(SEED))

.PHONY: chaos-worklease
chaos-worklease: $(DEV) ## Kill the orchestrator of a partitioned stream fifty times, on file: and on PostgreSQL (3 minutes)
	$(BIN)/python -m pytest -s tests/worklease/chaos.py

.PHONY: attack-http
attack-http: $(DEV) ## Attack a server with malformed, slow, huge and deep requests while another client asks (2 minutes; SEED=… to repeat)
	$(BIN)/python -m tests.server.attack $(if $(SEED),--seed $(SEED))

.PHONY: chaos-http
chaos-http: $(DEV) ## Kill the server with -9 a hundred times under four workers, restart it twenty times, and audit the folder (6 minutes)
	$(BIN)/python -m tests.process.http_chaos $(if $(SEED),--seed $(SEED))

.PHONY: fuzz-http
fuzz-http: $(DEV) ## Send the server more than 10,000 requests made from its reference, right and wrong ones (5 minutes)
	$(BIN)/python -m tests.server.fuzzing $(if $(SEED),--seed $(SEED))

.PHONY: conformance-http
conformance-http: $(DEV) ## Run the whole conformance suite over a socket, PostgreSQL behind the server included (5 minutes)
	LEASEMILL_FULL_HTTP=1 $(BIN)/python -m pytest tests/store/http

.PHONY: check
check: $(DEV) ## Format, lint, types and import contracts, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy $(CHECKED)
	$(BIN)/basedpyright --warnings
	$(BIN)/lint-imports

# Debian's packages prometheus and systemd have the two programs; nothing is installed here.
.PHONY: check-deploy
check-deploy: $(DEV) ## Run what is in deploy/, and check it with promtool and systemd-analyze (fails if one is missing)
	LEASEMILL_TEST_DEPLOY_TOOLS=1 $(BIN)/python -m pytest tests/deploy

.PHONY: format
format: $(DEV) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

UV := build/uv-$(UV_VERSION)/bin/uv
$(UV):
	$(PYTHON) -m venv $(@:/bin/uv=)
	$(@:/uv=)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The largest is resolved first, and the smaller ones take their versions from it.
LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate pyproject.toml
.PHONY: lock
lock: $(UV) ## Resolve pyproject.toml again and write the lock files
	$(LOCK) --upgrade --all-extras --group bench --output-file build/bench.lock
	$(LOCK) --all-extras --group dev --constraint build/bench.lock --output-file build/dev.lock
	$(LOCK) --group build --constraint build/bench.lock --output-file build/run.lock
	{ echo "# The package and what builds it, with hashes. Written by: make lock"; cat build/run.lock; } > requirements.lock
	{ echo "# And its extras, the tests and the checks. Written by: make lock"; cat build/dev.lock; } > requirements-dev.lock
	{ echo "# And the queues it is measured beside. Written by: make lock"; cat build/bench.lock; } > requirements-bench.lock
	rm build/bench.lock build/dev.lock build/run.lock

# What a user installs is taken at its floor; what only the tests need is not.
.PHONY: test-floors
FLOORS := build/floors
test-floors: $(UV) ## Install each dependency at the lowest version pyproject.toml allows, test apps and the command line
	$(UV) venv --quiet --clear --python $(PYTHON) $(FLOORS)
	$(UV) pip install --quiet --python $(FLOORS) --resolution lowest-direct --editable '.[postgres,testing]'
	$(UV) pip freeze --python $(FLOORS) --exclude-editable > $(FLOORS)/floors.txt
	$(UV) pip install --quiet --python $(FLOORS) --constraint $(FLOORS)/floors.txt --group dev
	$(FLOORS)/bin/python -m pytest $(PYTEST_ARGS) tests/api tests/cli tests/operator tests/store/postgres/test_app_and_worker.py

.PHONY: bench-kernel bench-embedded bench-worker bench-worklease bench-rules bench-http bench-dashboard
bench-kernel: $(DEV) ## Measure the kernel alone
bench-embedded: $(BENCH) ## Measure file: beside embedded queues
bench-worker: $(BENCH) ## Measure a worker, whole path, beside huey; what hooks and telemetry cost, what processes bring (20 minutes; BENCH_ARGS="--only watched")
bench-worklease: $(BENCH) ## Measure a stream of offsets through WorkLease on file:, and what ended ones cost (8 minutes)
bench-rules: $(DEV) ## Measure what limits, unique keys, groups and schedules cost, and how rates are held, on file: and PostgreSQL (10 minutes; BENCH_ARGS="--only members --members 1000000")
bench-http: $(DEV) ## Measure a store behind a server beside the same store in process, and a thousand calls that wait (3 minutes)
bench-dashboard: $(DEV) ## Measure every page of the dashboard beside a worker, and what ten open overviews cost it (8 minutes; BENCH_ARGS="--only file")
bench-kernel bench-embedded bench-worker bench-worklease bench-rules bench-http bench-dashboard:
	$(BIN)/python -m benchmarks.$(@:bench-%=%) $(BENCH_ARGS)

.PHONY: bench-postgres
bench-postgres: $(BENCH) ## Measure a worker on postgresql:// beside six others, 25 minutes (BENCH_ARGS="--only drain" to narrow)
	$(BIN)/python -m benchmarks.postgres $(BENCH_ARGS)

.PHONY: bench-long
bench-long: $(DEV) ## Put 10,000,000 jobs through PostgreSQL and keep them: does it stay as fast? (20 minutes; JOBS=200000 to shorten)
	$(BIN)/python -m benchmarks.long $(if $(JOBS),--jobs $(JOBS)) $(BENCH_ARGS)

.PHONY: bench
bench: bench-kernel bench-embedded bench-worker bench-worklease bench-rules bench-http bench-dashboard bench-postgres bench-long ## Run every benchmark (one after the other: not with -j)

.PHONY: wheel
wheel: $(RUN) ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

.PHONY: check-wheel
check-wheel: wheel $(DEV) ## Install the wheel in a new environment and follow the README in an empty folder
	$(BIN)/python -m tests.docs.new_user

.PHONY: check-guides
check-guides: wheel $(DEV) ## Follow every page in an environment that has the wheel and what the page says (10 minutes; PAGE=fastapi for one)
	$(BIN)/python -m tests.docs.new_user --guides $(PAGE)

.PHONY: clean
clean: ## Remove everything that is built, .venv included
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
