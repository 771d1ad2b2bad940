# `make demo` and `make test` install all that they need into .venv; neither Java nor Redis has to be on the machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A cluster starts in two thirds of the processor's time where modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE

# Unit tests sync thousands of small files: to memory, where that has a gigabyte to spare.
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 1000000 2>/dev/null && echo TMPDIR=/dev/shm)

.PHONY: env demo test long simulation check quick static archive format bench dist docs pictures clean

env: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	# setuptools warns, in a frame of stars, of what an editable installation is for: to import the checkout.
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/pip install --quiet --editable '.[java,redis-server,examples,notebook,kubernetes,oidc,test,fuzz,docs,dev]'
	@touch $@

demo: env
	$(BIN)/understudy demo

test: env
	$(MAKE) --no-print-directory --jobs 2 --output-sync static archive
	$(IN_MEMORY) $(BIN)/python -m pytest --numprocesses auto tests/unit
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile \
		tests/contract tests/fuzz tests/browser tests/integration tests/faults tests/upgrade

# New random seeds, which are printed: faults in the whole control plane, simulated in one process.
simulation: env
	$(BIN)/python -W ignore -m tests.simulation run --minutes 3

# The long forms of the tests, in an order of chance. `make long SEED=N` repeats an order, and the seeds of faults.
long: SEED := $(or $(SEED),$(shell shuf --input-range 1-999999 --head-count 1))
long: env archive
	UNDERSTUDY_SEED=$(SEED) $(BIN)/python -m pytest --numprocesses auto --dist loadfile --shuffle $(SEED) -m slow tests

check: env
	$(MAKE) --no-print-directory --jobs 2 --output-sync static quick

# The unit tests without those that take long.
quick: env
	$(IN_MEMORY) $(BIN)/python -m pytest --numprocesses auto --quick tests/unit

static: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m conf.reference --check
	$(BIN)/python -m tests.prose

# Spark's classes, from which the drivers of the tests start.
archive: env
	$(BIN)/python -m tests.class_archive

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site"

# The pictures of README, from a real run; needs Chromium.
pictures: env
	$(BIN)/python -m docs.pictures

bench: env
	$(BIN)/python -m tests.bench submit --json -

# The wheel and the source distribution of the last commit, with the same bytes on every machine.
dist: env
	$(BIN)/python -m tests.release

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
