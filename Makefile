# Needs Python >= 3.11 and make; everything else is installed into .venv. A line that
# begins with "#:" is what `make help` prints.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Only `notebooks` needs nbval, and importing it takes seconds in each process.
PYTEST := $(BIN)/python -m pytest -p no:nbval --timeout=600 -n 2 --dist worksteal
CODE := $(wildcard src tests benchmarks examples scripts docs)

PROOFS := slow matrix exhaustive fuzz
BENCHMARKS := bench bench-all faults healthy-steps validate validate-collectives \
	validate-kernels validate-numerics judge-kernels vendor-tests leave-one-out
HOSTS := versions strangers torch arm64

# The emulator is defined on every host; its tests run where every host can follow.
export JAX_PLATFORMS ?= cpu

.PHONY: help .venv test $(PROOFS) lint format types docs docs-update notebooks quickstart \
	$(BENCHMARKS) $(HOSTS) clean

help:
	@sed -n 's/^#: //p' Makefile

.venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	touch $@

# An extra of pyproject.toml by its name: docs, notebooks.
$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

#: make quickstart    train a small GPT under three policies: verdict, times, dollars
quickstart: .venv
	$(BIN)/neuronjax quickstart

#: make test          the quick tests, ten minutes; TESTS=benchmarks/tests for others
TESTS ?= tests
test: .venv
	$(PYTEST) -m "not slow and not matrix and not exhaustive and not fuzz" $(TESTS) $(ARGS)

#: make slow          long proofs; also make matrix, exhaustive, fuzz (FUZZ_MINUTES=10)
$(PROOFS): .venv
	$(PYTEST) --timeout=1800 -m $@ tests benchmarks/tests $(ARGS)

#: make lint          ruff, on all code
lint: .venv
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

#: make format        the same, with what can be mended
format: .venv
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

#: make types         pyright
types: .venv
	$(BIN)/pyright

#: make docs          the site in site/, and every block of code of its pages
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(PYTEST) docs $(ARGS)

#: make docs-update   write the pages that are made from code; see docs/figures.py too
docs-update: $(VENV)/.installed-docs
	$(BIN)/python -m docs.made
	NEURONJAX_UPDATE_DOCS=1 $(PYTEST) docs $(ARGS)

#: make notebooks     run the notebooks; notebooks/refresh.py writes what they print
notebooks: $(VENV)/.installed-notebooks
	NEURONJAX_PROGRESS=0 PATH="$(abspath $(BIN)):$$PATH" $(PYTEST) -p nbval --dist loadfile --nbval-lax -p no:cacheprovider notebooks $(ARGS)

#: make bench         speed against JAX alone; `python -m benchmarks` lists the others
CORPUS ?=
$(BENCHMARKS): .venv
	$(BIN)/python -m benchmarks $@ $(CORPUS) $(ARGS)

#: make versions      the tests elsewhere: other Pythons; make strangers, torch, arm64
$(HOSTS): .venv
	scripts/$@.sh $(ARGS)

#: make clean         remove what is made in minutes; .venv-* and .arm64 stay
clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis .cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
