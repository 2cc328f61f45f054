# Two commands: `make demo` runs the shipped model, `make test` runs the test suite.
PYTHON ?= python3
VENV ?= .venv
# Python compiles what is imported when it first is, which is less than what pip would compile. It
# must keep that, whatever the environment says: each of the many processes of the tests would
# compile all of torch again.
export PYTHONDONTWRITEBYTECODE :=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
	-c constraints.txt

.PHONY: demo test lint clean

demo: $(VENV)/installed
	$(VENV)/bin/hybridrt demo

test: $(VENV)/installed-test
	# In two runs, as workers get slower with what they did before. By the second one, kernels are
	# compiled, which tests/models/test_annotations.py would wait for in a single test.
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --ignore tests/models
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal tests/models

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Each holds what the ones before it hold, and pip takes a while to see that it needs nothing.
$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[test]'
	touch $(VENV)/installed $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	touch $(VENV)/installed $(VENV)/installed-test $@

clean:
	rm -rf $(VENV)
