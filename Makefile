# Needs Python >= 3.11 and make; everything else is installed into .venv.
#   make test | slow | matrix | exhaustive | fuzz | lint | types | quickstart | bench
#   make bench-test | validate | validate-kernels CORPUS=folder | figures | notebooks
#   make leave-one-out CORPUS=folder | judge-kernels CORPUS=folder | docs | bench-all | clean | notebooks-refresh
#   make docs-update | faults | strangers | versions | vendor-tests CORPUS=folder | arm64

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NOTEBOOKS_STAMP := $(VENV)/.installed-notebooks
DOCS_STAMP := $(VENV)/.installed-docs
# Only `notebooks` needs nbval, and importing it takes seconds in each process.
PYTEST := $(BIN)/python -m pytest -p no:nbval --timeout=600 -n 2 --dist worksteal
CODE := $(wildcard src tests benchmarks examples scripts docs)

# The emulator is defined on every host; its tests run where every host can follow.
export JAX_PLATFORMS ?= cpu

.PHONY: help .venv test slow lint format types quickstart bench bench-test validate \
	validate-kernels validate-numerics leave-one-out judge-kernels vendor-tests \
	figures bench-all matrix exhaustive fuzz notebooks notebooks-refresh docs \
	docs-update faults strangers versions arm64 clean

help:
	@sed -n 's/^# *make /make /p' Makefile

.venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	touch $@

test: $(STAMP)
	$(PYTEST) -m "not slow and not matrix and not exhaustive and not fuzz" tests $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(STAMP)
	$(BIN)/pyright

quickstart: $(STAMP)
	$(BIN)/neuronjax quickstart

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py $(ARGS)

# The tests of the benchmarks themselves, and of the time model against published times.
bench-test: $(STAMP)
	$(PYTEST) -m "not slow" benchmarks/tests $(ARGS)

# How many numerical faults `compare` finds, and on how many healthy programs it is wrong;
# fails, after the page is written, where a whole set misses a target.
faults: $(STAMP)
	$(BIN)/python -m benchmarks.faults --keep $(ARGS); status=$$?; \
	  $(BIN)/python -m benchmarks.page && exit $$status

# All benchmarks, then docs/benchmarks.md; peers that are not installed are skipped:
# .venv/bin/pip install -e '.[peers]' installs them, after a torch for the CPU.
bench-all: $(STAMP)
	$(BIN)/python -m benchmarks.native $(ARGS)
	$(BIN)/python -m benchmarks.peers $(ARGS)
	$(BIN)/python -m benchmarks.scaling $(ARGS)
	$(BIN)/python -m benchmarks.time_model $(ARGS)
	$(BIN)/python -m benchmarks.regression $(ARGS); status=$$?; \
	  $(BIN)/python -m benchmarks.page && exit $$status

# The time model against published times.
validate: $(STAMP)
	$(BIN)/python -m benchmarks.validation $(ARGS)
	$(BIN)/python benchmarks/validate_collectives.py

# The same for kernels of two public repositories; it says what to fetch.
CORPUS ?= corpus
validate-kernels: $(STAMP)
	$(BIN)/python -m benchmarks.validate_kernels $(CORPUS) $(ARGS)

# Numbers of the same kernels against distances that were measured on chips; hours.
validate-numerics: $(STAMP)
	$(BIN)/python -m benchmarks.validate_numerics $(CORPUS) $(ARGS)

# The same kernels judged, each as it is; an hour or two.
judge-kernels: $(STAMP)
	$(BIN)/python -m benchmarks.judge_kernels $(CORPUS) $(ARGS)

# The vendor's own unit tests of kernels, unmodified: which pass, and why others do not.
vendor-tests: $(STAMP)
	$(BIN)/python -m benchmarks.vendor_tests $(CORPUS) $(ARGS)

# How its figures generalise: each op of the kernels is left out in turn.
#     make leave-one-out CORPUS=folder
leave-one-out: $(STAMP)
	$(BIN)/python -m benchmarks.leave_one_out $(CORPUS) $(ARGS)

# The pictures of README and docs.
figures: $(STAMP)
	PYTHONPATH=. $(BIN)/python docs/figures.py
	$(BIN)/neuronjax quickstart --output docs/images/loss_curves.png

# All long proofs, which take more than an hour; `.ci/run` takes a part of one case of
# each: ARGS="--one-of-each --part 1/4".
slow: $(STAMP)
	$(PYTEST) -m slow tests benchmarks/tests $(ARGS)

matrix: $(STAMP)
	$(PYTEST) -m matrix tests $(ARGS)

exhaustive: $(STAMP)
	$(PYTEST) --timeout=1800 -m exhaustive tests $(ARGS)

# The whole of `make test` on every Python, each with the newest JAX for it; an hour.
PYTHONS ?= python3.11 python3.12 python3.13
versions:
	scripts/versions.sh $(PYTHONS)

# The bits of an emulated arm64 beside those of this x86-64; hours. ARGS="flush sums"
# chooses parts of tests/host_bits.py, ARM64_SECONDS bounds the emulated run.
arm64: $(STAMP)
	scripts/arm64.sh $(ARGS)

# Random programs, FUZZ_MINUTES=10 of them from FUZZ_SEED=1.
fuzz: $(STAMP)
	$(PYTEST) -m fuzz tests/fuzz $(ARGS)

# The notebooks are executed; cells marked so must print what they printed.
$(NOTEBOOKS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[notebooks]'
	touch $@

notebooks: $(NOTEBOOKS_STAMP)
	NEURONJAX_PROGRESS=0 PATH="$(abspath $(BIN)):$$PATH" $(PYTEST) -p nbval --dist loadfile --nbval-lax -p no:cacheprovider notebooks $(ARGS)

notebooks-refresh: $(NOTEBOOKS_STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python notebooks/refresh.py $(ARGS)

# Small programs over forty public JAX libraries, each against jax.jit, in an environment
# of their own; half an hour. ARGS="optax haiku" chooses. Of TensorFlow Probability the
# stable release, which others ask for, does not import with this JAX.
STRANGERS := .venv-strangers
STRANGERS_STAMP := $(STRANGERS)/.installed
STRANGERS_LIST := tests/strangers/requirements.txt

$(STRANGERS_STAMP): $(STRANGERS_LIST) pyproject.toml
	$(PYTHON) -m venv $(STRANGERS)
	$(STRANGERS)/bin/python -m pip install --quiet --requirement $(STRANGERS_LIST) --editable .
	$(STRANGERS)/bin/python -m pip install --quiet --no-deps --force-reinstall $$(grep ^tfp-nightly $(STRANGERS_LIST))
	touch $@

strangers: $(STRANGERS_STAMP)
	$(STRANGERS)/bin/python -m tests.strangers $(ARGS)

# The site, in site/, and every block of code of its pages and of README.
$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(PYTEST) docs $(ARGS)

docs-update: $(DOCS_STAMP)
	$(BIN)/python -m docs.made
	NEURONJAX_UPDATE_DOCS=1 $(PYTEST) docs $(ARGS)

clean:
	rm -rf $(VENV) .venv-* .arm64 build dist site .pytest_cache .ruff_cache .hypothesis .cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
