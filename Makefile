PYTHON ?= python3
VENV := .venv
DEMO := .venv-demo
EXTRAS := dev,plot,decode,parallel,notebooks

.PHONY: demo test test-slow bench lint clean

# The demo's environment has no torch: the theory half must work without it.
demo: $(DEMO)/.stamp
	@! $(DEMO)/bin/python -c "import torch" 2>/dev/null || { echo "demo: torch is installed in $(DEMO)" >&2; exit 1; }
	$(DEMO)/bin/lpverify examples
	$(DEMO)/bin/lpverify solve skewed-3 --paths 3
	$(DEMO)/bin/lpverify solve tree-v3-l4 --paths 4

test: $(VENV)/.stamp
	$(VENV)/bin/python -m pytest -m "not slow"

# Sampled tests at full length: about half an hour.
test-slow: $(VENV)/.stamp
	$(VENV)/bin/python -m pytest -m slow

bench: $(VENV)/.stamp
	$(VENV)/bin/python -m pytest tests/bench

lint: $(VENV)/.stamp
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy

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
