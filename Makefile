# The commands of this repository; `make help` lists them. The first one that needs .venv sets it up.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help train test slow check nightly mutants lint docs bench clean

help:  ## list the commands
	@sed -n 's/^\([a-z]*\): .*## /make \1  \t/p' Makefile

train: $(READY)  ## train the tiny model on countdown, into a new directory under runs/ (no GPU needed)
	@$(BIN)/tinyzero train --task countdown

test: $(READY)  ## run the fast tests (about a minute)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

# One more worker than cores: many slow tests wait for processes that start.
PYTEST_WAITING = @PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist worksteal

slow: $(READY)  ## run the slow tests (several minutes)
	$(PYTEST_WAITING) -m "slow and not nightly and not gpu"

check: $(READY)  ## run the fast and the slow tests together
	$(PYTEST_WAITING) -m "not nightly and not gpu"

nightly: $(READY)  ## run all tests, with more examples, and those that take too long for every change; for a release
	@PYTHONDONTWRITEBYTECODE= HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu"

SAMPLE ?= 60

mutants: $(READY)  ## plant faults in the core, and count those that the fast tests notice (hours)
	@$(BIN)/python benchmarks/mutants.py --whole
	@PYTHONPATH=$$($(BIN)/python -m tests.environments mutmut) $(BIN)/python benchmarks/mutation_score.py --sample $(SAMPLE) --whole

lint: $(READY)  ## check style (ruff), types (mypy) and the order of imports (import-linter)
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m mypy
	@PYTHONPATH=plugins/reasoning_gym:plugins/flash_attention_4 $(BIN)/lint-imports --no-logo

docs: $(READY)  ## build the documentation as a site, in build/site
	@PYTHONPATH=$$($(BIN)/python -m tests.environments mkdocs) NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs -q build

# Modules without results, and scripts that need a GPU or much longer than a few minutes on two cores.
NOT_IN_BENCH = common commands training fixed_task shapes trl_step compare pretrained \
  step update memory engines rollout mismatch several_gpus screenshots soak kills mutants mutation_score walk

bench: $(READY)  ## run the benchmarks that need no GPU and take minutes
	@for script in $(filter-out $(NOT_IN_BENCH:%=benchmarks/%.py),$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

clean:  ## delete .venv, builds and caches, but not runs/
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml trainer/pyproject.toml $(wildcard plugins/*/pyproject.toml) requirements.txt constraints.txt .ci/setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON) is missing or older than Python 3.11; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -u .ci/setup.py $(VENV)
	@touch $@
