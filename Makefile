# Two commands: `make demo` runs the shipped model, `make test` runs the test suite.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(VENV)/bin/hybridrt demo

test: $(VENV)/installed-test
	# In two runs, as workers get slower with what they did before.
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal tests/models
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --ignore tests/models

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) -e '.[test]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed-test
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
