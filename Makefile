PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow lint bench-quality bench-why bench-speed clean

demo: .venv/demo
	$(BIN)/python examples/letter_mlp.py

test: .venv/test
	$(BIN)/python -m pytest

# What is too long for every change: a thousand checks, and ten thousand examples for each formula.
test-slow: .venv/test
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest tests/functional/test_extremes.py --hypothesis-profile=thorough

lint: .venv/test
	$(BIN)/python -m pytest tests/test_style.py

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/demo: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[examples]"
	touch $@

.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[test,vision]"
	touch $@

clean:
	rm -rf .venv build *.egg-info

bench-quality: .venv/demo
	$(BIN)/python benchmarks/quality.py

bench-why: .venv/demo
	$(BIN)/python benchmarks/why.py

bench-speed: .venv/demo
	$(BIN)/python benchmarks/speed.py
