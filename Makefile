PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench-quality bench-why bench-speed docs clean

demo: .venv/demo
	$(BIN)/python examples/letter_mlp.py

test: .venv/test
	$(BIN)/python -m pytest

lint: .venv/test
	$(BIN)/python -m pytest tests/test_style.py

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/demo: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[examples]"
	touch $@

.venv/docs: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

.venv/test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[test,vision]"
	touch $@

docs: .venv/docs
	$(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv build site *.egg-info

bench-quality: .venv/demo
	$(BIN)/python benchmarks/quality.py

bench-why: .venv/demo
	$(BIN)/python benchmarks/why.py

bench-speed: .venv/demo
	$(BIN)/python benchmarks/speed.py
