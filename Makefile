# Every job from a fresh clone, on a machine with Python 3.11 or newer and pip: `make test`, `make demo`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/dev.installed
BENCH := $(VENV)/bench.installed
SWEEP := tests/accounting/test_sweep.py# judges itself as a whole, so it runs in one process

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full lint format bench docs clean
.DELETE_ON_ERROR:

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

setup: $(DEV) ## create .venv with hush and everything its tests need (once)

demo: $(DEV) ## train a small network on the digits with and without privacy; show what it promises
	@$(BIN)/python examples/demo.py

test: lint ## ruff, mypy and the tests, expensive sweeps reduced
	@echo "[pytest] tests, sweeps at reduced counts"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --ignore $(SWEEP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(SWEEP)

test-full: lint ## the same with every sweep in full; writes tests/results/full.json
	@echo "[pytest] tests, sweeps in full"
	@HUSH_FULL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=10 --ignore $(SWEEP)
	@HUSH_FULL=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(SWEEP)

lint: $(DEV) ## ruff and mypy only
	@echo "[ruff] check"
	@$(BIN)/ruff check .
	@echo "[ruff] format"
	@$(BIN)/ruff format --check .
	@echo "[mypy] strict, src"
	@$(BIN)/mypy src

format: $(DEV) ## let ruff format and fix the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(BENCH) ## time accounting and training beside their peers
	@$(BIN)/python benchmarks/accounting.py
	@$(BIN)/python benchmarks/training.py

docs: $(DEV) ## the documentation as a site, in site/
	@$(BIN)/python -m pip install --disable-pip-version-check -q -e '.[docs]' -c constraints.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove .venv, caches and drawn pictures
	rm -rf $(VENV) demo site build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "hush needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "[setup] creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "[setup] installing hush and its development tools (a minute or two, once)"
	@$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@$(BIN)/python -m compileall -q src # so that even the first answer comes within a second
	@touch $@
	@echo "[setup] done"

$(BENCH): $(DEV)
	@echo "[setup] installing the peers to compare with"
	@$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev,bench]' -c constraints.txt
	@touch $@
