# Everything a newcomer needs: `make demo` and `make test` do their own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV   := .venv
PYTHON := $(VENV)/bin/python
export FLOODMARK_JARS ?= $(CURDIR)/.cache/jars

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.ready .cache/jars/.ready ## Make .venv from the hashed lock file and fetch the Spark jars (once)

$(VENV)/.ready: requirements.lock scripts/bootstrap.lock scripts/setup.sh pyproject.toml
	@scripts/setup.sh
	@touch $@

.cache/jars/.ready: src/floodmark/lake/jars.py $(VENV)/.ready
	@jars="$(VENV)/bin/floodmark jars --for s3 --for postgresql"; $$jars --archive || $$jars  # the tests have lakes in S3 and PostgreSQL; where Java cannot write an archive of classes, it starts without
	@mkdir -p $(@D) && touch $@  # FLOODMARK_JARS may name another place

.PHONY: demo
demo: setup ## Run the main job end to end on a scratch store and show what happened
	@$(VENV)/bin/floodmark demo

.PHONY: test
test: setup ## Run the checks and all tests: what CI runs
	@scripts/services.sh
	@$(MAKE) --no-print-directory check
	@scripts/test.sh

.PHONY: check
check: $(VENV)/.ready ## Linters, types and layers only
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache

.PHONY: docs
docs: $(VENV)/.ready ## The documents as a site, in .cache/site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "Open $(CURDIR)/.cache/site/index.html"

.PHONY: bench
bench: setup $(VENV)/.bench-ready ## Measure, as ratios in one run; writes bench/records and docs/explanation/performance.md
	@$(PYTHON) -m bench --record

$(VENV)/.bench-ready: bench/requirements.lock $(VENV)/.ready
	@scripts/uv.sh pip install --quiet --require-hashes --python $(PYTHON) --requirement bench/requirements.lock
	@touch $@

.PHONY: model
model: $(VENV)/.ready ## All interleavings of small cases; writes docs/explanation/model.md (BOUND=large, SHOW="a seeded bug")
	@$(PYTHON) -m tests.model $(if $(filter large,$(BOUND)),--large) $(if $(SHOW),--show "$(SHOW)")

.PHONY: soak
soak: setup ## Upkeep in any order on Spark, real kills for MINUTES=60, simulated crashes for as long; prints the seed that fails
	@TEST_SEED=fresh SIXTY_STEPS_SEEDS=5 SIMULATION_SCHEDULES=2400 $(PYTHON) -m pytest -p no:cacheprovider tests/acceptance/test_sixty_steps.py tests/simulation
	@TEST_SEED=fresh TOPOLOGY_STEPS=40 $(PYTHON) -m pytest -p no:cacheprovider --timeout 7200 tests/acceptance/test_on_a_cluster.py tests/acceptance/test_over_spark_connect.py
	@TEST_SEED=fresh $(PYTHON) -m pytest -p no:cacheprovider -m "not spark" tests/unit tests/scenarios tests/scenarios/eventlog tests/scenarios/sources tests/scenarios/hub
	@$(PYTHON) -m tests.chaos --minutes $(or $(MINUTES),60)
	@TEST_SEED=fresh FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),2000) $(PYTHON) -m pytest -p no:cacheprovider --timeout 7200 tests/fuzz
	@$(PYTHON) -m tests.simulation --minutes $(or $(MINUTES),60)

.PHONY: evidence
evidence: setup ## Run every proof and write docs/explanation/evidence.md anew (real kills for MINUTES=6)
	@$(MAKE) --no-print-directory model
	@$(PYTHON) -m tests.simulation --schedules 1200 --page
	@$(PYTHON) -m tests.chaos --minutes $(or $(MINUTES),6) --record
	@FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),300) $(PYTHON) -m pytest -q -p no:cacheprovider --timeout 3600 tests/fuzz

.PHONY: screenshots
screenshots: setup ## Make the pictures of the dashboard in docs/images again
	@scripts/services.sh
	@SCREENSHOTS=docs/images $(PYTHON) -m pytest -q -p no:cacheprovider -m "not spark" tests/browser

.PHONY: lock
lock: $(VENV)/.ready ## Resolve the lock files again after a change in pyproject.toml
	@scripts/uv.sh pip compile -q --universal --generate-hashes --no-header --no-annotate scripts/bootstrap.in -o scripts/bootstrap.lock
	@scripts/uv.sh pip compile -q --universal --generate-hashes --no-header --extra dev --extra postgres --extra connect --extra otel pyproject.toml -o requirements.lock
	@scripts/uv.sh pip compile -q --universal --generate-hashes --no-header --no-annotate --constraint requirements.lock bench/requirements.in -o bench/requirements.lock

.PHONY: clean
clean: ## Remove everything that the targets above made
	rm -rf .venv .bootstrap .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
