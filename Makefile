# Two commands on a fresh machine: `make demo` and `make test`. They need Python 3.11 or newer with venv and pip.
# `make test` takes seven to nine minutes on two cores, installs included; `make test-slow` runs the rest.

PYTHON ?= python3
JOBS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-compile --constraint constraints.txt
# pip compiles modules one after the other; this uses all cores. Files that do not compile are never imported.
COMPILE := $(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true

# What is installed, as files: torch alone, the runtime, everything a developer runs.
TORCH := .venv/torch.stamp
RUNTIME := .venv/runtime.stamp
DEV := .venv/dev.stamp
SERVER := .venv/server.stamp
FLEET := .venv/fleet.stamp
OLDEST := .venv-oldest/dev.stamp

# The tests of one file stay in one process, where they share their models. Files run in the order of `testpaths`, which
# ends with the short examples in docstrings, so that no process waits long for the last one.
PYTEST := -m pytest --numprocesses $(JOBS) --dist loadscope --no-loadscope-reorder
QUICK := "not slow and not network and not scale"

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-slow test-scale test-gpu test-clients test-oldest test-docs bench audit lint fmt size docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(DEV) ## create .venv and install spectr with the developer's tools

demo: $(RUNTIME) ## answer a question with the default model (installs the runtime, fetches the model once)
	$(BIN)/spectr generate "Explain tides in two sentences." --seed 7

test: lint ## lint, then the tests and doctests that are neither slow nor need a network
	$(BIN)/python $(PYTEST) -m $(QUICK)

test-slow: $(DEV) ## the tests marked slow or network
	$(BIN)/python $(PYTEST) -m "(slow or network) and not scale"

test-scale: $(FLEET) ## several processes: batches, failover, Ray (installed once), one model over three; at most six minutes
	$(BIN)/python -m pytest -m scale tests

test-gpu: $(DEV) ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

test-clients: $(DEV) ## clients of others against the server: openai 2 and 3, schemathesis, lm-eval, aiperf (not in CI)
	$(BIN)/python tools/clients

test-oldest: $(OLDEST) ## the tests of `make test` with the oldest supported torch and transformers
	.venv-oldest/bin/python $(PYTEST) -m $(QUICK)

serve: $(SERVER) ## serve the default model on 127.0.0.1:8000 (installs the server once); FLAGS="--port 9000" adds flags
	$(BIN)/spectr serve $(FLAGS)

bench: $(RUNTIME) ## compare methods on the default model, at most ten minutes; an interrupted run goes on
	@mkdir -p build
	$(BIN)/spectr bench run --preset quick --minutes 9 --out build/bench.json
	$(BIN)/spectr bench report build/bench.json --out build/bench.html --markdown build/bench.md

audit: $(RUNTIME) ## check the output law of every rule, planted faults and transformers; below ten minutes
	OMP_NUM_THREADS=1 $(BIN)/spectr audit --all --samples 50000 --out benchmarks/audit.json

lint: $(DEV) ## ruff, formatting, strict types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

fmt: $(DEV) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

size: ## function and file sizes against the aims
	@$(PYTHON) tools/size.py

docs: $(DEV) ## build the documentation site into build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "the site is build/site/index.html"

test-docs: $(DEV) ## run every example in the pages and the docstrings (`make test` does, too)
	$(BIN)/python -m pytest src README.md docs

clean: ## remove caches and build outputs, keep .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(TORCH): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "spectr needs Python 3.11 or newer: make PYTHON=...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing torch"
	@$(INSTALL) torch
	@touch $@

$(RUNTIME): $(TORCH) pyproject.toml
	@echo "installing spectr"
	@$(INSTALL) --editable '.[plot,models]'
	@$(COMPILE)
	@touch $@

$(SERVER): $(RUNTIME) pyproject.toml
	@echo "installing the server"
	@$(INSTALL) --editable '.[plot,models,serve,grammar]'
	@$(COMPILE)
	@touch $@

$(DEV): $(TORCH) pyproject.toml
	@echo "installing spectr and the developer's tools"
	@$(INSTALL) --editable '.[dev]'
	@$(COMPILE)
	@touch $(RUNTIME) $@

$(FLEET): $(DEV) pyproject.toml
	@echo "installing Ray"
	@$(INSTALL) --editable '.[dev,ray]'
	@$(COMPILE)
	@touch $@

$(OLDEST): constraints-oldest.txt pyproject.toml
	@.venv-oldest/bin/python -m pip --version >/dev/null 2>&1 || { echo "creating .venv-oldest"; $(PYTHON) -m venv .venv-oldest; }
	@echo "installing spectr with the oldest supported torch and transformers"
	@.venv-oldest/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-oldest.txt --editable '.[dev]'
	@touch $@
