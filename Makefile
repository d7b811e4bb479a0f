# Two commands matter: `make demo` (text in, a trained model out) and `make test`.
# Both make .venv from constraints.txt; no compiler and no network but a package index is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo and the tests use two threads on any machine, so that their figures compare.
SHELL := /bin/bash

.PHONY: demo test fast check venv clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "ladle: $(PYTHON) is not on PATH: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ladle: $(PYTHON) is $$($(PYTHON) -V 2>&1), but 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "ladle: $(PYTHON) has no venv module: on Debian or Ubuntu, apt-get install python3-venv"; exit 2; }
	@echo "ladle: installing into $(VENV) (once)"
	@test -x $(BIN)/python && $(BIN)/python -c 'import sys' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' \
		|| { echo "ladle: pip could not install the packages above: check that a package index is reachable"; exit 2; }
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	@$(BIN)/python -m pytest

fast: $(STAMP)
	@$(BIN)/python -m pytest -m 'not slow and not peer'

check: $(STAMP)
	@./check

clean:
	rm -rf $(VENV) runs data
