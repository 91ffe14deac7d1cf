# Needs Python >= 3.11 and make; everything else is installed into .venv.
#   make test | slow | matrix | exhaustive | fuzz | lint | types | quickstart | bench
#   make validate | figures | clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest --timeout=600 -n 2 --dist worksteal
CODE := $(wildcard src tests benchmarks examples scripts docs)

# The emulator is defined on every host; its tests run where every host can follow.
export JAX_PLATFORMS ?= cpu

.PHONY: help .venv test slow lint format types quickstart bench validate figures matrix exhaustive fuzz clean

help:
	@sed -n 's/^# *make /make /p' Makefile

.venv: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 needed: make PYTHON=python3.x")'
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

# The time model against published times.
validate: $(STAMP)
	$(BIN)/python -m benchmarks.validation $(ARGS)
	$(BIN)/python benchmarks/validate_collectives.py

# The pictures of README and docs.
figures: $(STAMP)
	$(BIN)/python docs/figures.py

slow: $(STAMP)
	$(PYTEST) -m slow tests $(ARGS)

matrix: $(STAMP)
	$(PYTEST) -m matrix tests $(ARGS)

exhaustive: $(STAMP)
	$(PYTEST) --timeout=1800 -m exhaustive tests $(ARGS)

# Random programs, FUZZ_MINUTES=10 of them from FUZZ_SEED=1.
fuzz: $(STAMP)
	$(PYTEST) -m fuzz tests/fuzz $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
