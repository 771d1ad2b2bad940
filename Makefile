# `make demo` and `make test` install all that they need into .venv; neither Java nor Redis has to be on the machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: env demo test check format bench docs clean

env: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[java,redis-server,examples,notebook,kubernetes,test,fuzz,docs,dev]'
	@touch $@

demo: env
	$(BIN)/python -m runtime.cluster demo

test: check
	$(BIN)/python -m pytest --numprocesses 4 tests/contract
	$(BIN)/python -m pytest tests/fuzz tests/browser tests/integration tests/faults

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m conf.reference --check
	$(BIN)/python -m pytest --numprocesses auto tests/unit

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site"

bench: env
	$(BIN)/python -m tests.bench submit --json -

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
