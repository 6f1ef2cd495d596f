# Everything a contributor runs. Needs make and Python 3.11 or newer; the rest is installed into .venv
# from requirements.lock. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
PYTEST_ARGS ?= -n 2
UV_VERSION := 0.13.7

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHECKED := src tests $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: venv
venv: $(STAMP) ## Make .venv from the lock, if it is missing or older than the lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Leasemill needs Python 3.11 or newer, and '$(PYTHON)' is not: name one with make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: test
test: $(STAMP) ## Run the tests, in two processes (PYTEST_ARGS="-k lane -x" to narrow)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: mutants
mutants: $(STAMP) ## Put faults into the kernel and see that the tests notice (a few minutes)
	$(BIN)/python -m tests.kernel.mutations

.PHONY: demo
demo: $(STAMP) ## Kill one worker and stop another in the middle of 1,000 jobs, and audit what came of it
	@$(BIN)/leasemill demo

.PHONY: chaos
STORE ?= file
chaos: $(STAMP) ## Break a store in every way, at full length (STORE=file or postgresql, SEED=… to repeat)
	$(BIN)/python -m tests.crash.chaos --store $(STORE) $(if $(SEED),--seed $(SEED))

.PHONY: chaos-workers
chaos-workers: $(STAMP) ## Kill and stop worker processes at full length: zombies, the default lease, the demo (3 minutes)
	$(BIN)/python -m pytest tests/process/chaos.py

.PHONY: chaos-worklease
chaos-worklease: $(STAMP) ## Kill the orchestrator of a partitioned stream fifty times, on file: and on PostgreSQL (3 minutes)
	$(BIN)/python -m pytest -s tests/worklease/chaos.py

.PHONY: check
check: $(STAMP) ## Format, lint, types and import contracts, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy $(CHECKED)
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: lock
lock: ## Resolve pyproject.toml again and write requirements.lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --all-extras --group dev --group bench \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
	  --output-file build/lock/requirements.lock pyproject.toml
	{ echo "# Every package of the project, its extras and its groups, with hashes. Written by: make lock"; \
	  cat build/lock/requirements.lock; } > requirements.lock
	rm -rf build/lock

.PHONY: bench-kernel bench-embedded bench-worker bench-worklease
bench-kernel: $(STAMP) ## Measure the kernel alone
bench-embedded: $(STAMP) ## Measure file: beside embedded queues
bench-worker: $(STAMP) ## Measure a worker on file:, whole path, beside huey
bench-worklease: $(STAMP) ## Measure a stream of offsets through WorkLease on file:, and what ended ones cost (8 minutes)
bench-kernel bench-embedded bench-worker bench-worklease:
	$(BIN)/python -m benchmarks.$(@:bench-%=%) $(BENCH_ARGS)

.PHONY: bench-postgres
bench-postgres: $(STAMP) ## Measure a worker on postgresql:// beside six others, 25 minutes (BENCH_ARGS="--only drain" to narrow)
	$(BIN)/python -m benchmarks.postgres $(BENCH_ARGS)

.PHONY: bench
bench: bench-kernel bench-embedded bench-worker bench-worklease bench-postgres ## Run every benchmark (one after the other: not with -j)

.PHONY: wheel
wheel: $(STAMP) ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

.PHONY: check-wheel
check-wheel: wheel ## Install the wheel in a new environment and follow the README in an empty folder
	$(BIN)/python -m tests.docs.new_user

.PHONY: clean
clean: ## Remove everything that is built, .venv included
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests $(wildcard benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
