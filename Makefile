# One word per thing. `make` alone lists them.
PYTHON ?= python3
# torch is named with its version: a bare name or a wider range may bring gigabytes of CUDA.
TORCH ?= torch==2.13.0
# Set TORCH_INDEX to the address of a CPU index where the default one serves CUDA builds only.
TORCH_INDEX ?=
BIN := .venv/bin
# The second environment, of the other declared line of transformers and numpy: docs/adr/0010.
SECOND := .venv-transformers5
# pip of the environment whose stamp file is being made
PIP = $(@D)/bin/python -m pip --disable-pip-version-check
INSTALL_TORCH = $(PIP) install --quiet $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
# The tests beside conftest.py are the runner's; what names the platform is not installed in the second environment.
RUNNER_TESTS = $(shell grep -L dare_platform tests/test_*.py)
.DEFAULT_GOAL := help
.PHONY: help install develop demo down check models test services docs study bench bench-attention bench-decode \
  bench-train bench-eval bench-platform clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: .venv/.installed ## make .venv and install DARE into it

develop: .venv/.developing ## the same, with what the tests need

demo: .venv/.installed ## the whole way once, on this machine's CPU; QUICK=1 for one seed
	$(BIN)/dare demo $(if $(QUICK),--quick)

down: .venv/.installed ## stop what `make demo` left running
	$(BIN)/dare down

check: .venv/.developing ## fast tier: format, lint, types, contracts, unit and property tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/typos
	$(BIN)/mypy -p dare -p dare_platform -p leaderboard
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 -m "not full" --cov --cov-report=term:skip-covered

models: $(SECOND)/.installed ## the runner's tests once more, on transformers 5 and numpy 2
	$(SECOND)/bin/pytest -q -n 2 -m "not full" $(RUNNER_TESTS)

test: check models services ## everything: the fast tier, models, then containers, databases, broker and browser
	$(BIN)/pytest -q -n 2 --dist loadfile -m full

services: ## PostgreSQL, Redis and Chromium for the tests, by apt where they are missing
	@bash tests/services.sh

bench: .venv/.developing ## speed and memory, as ratios: minutes
	$(BIN)/python -m benchmarks

bench-attention: .venv/.developing ## packing, masks and shared heads
	$(BIN)/python -m benchmarks attention

bench-decode: .venv/.developing ## every way to decode in one table: half an hour on a quiet machine
	$(BIN)/python -m benchmarks.decode

bench-train: .venv/.developing ## one optimiser step of every method, the plain way and ours: half an hour
	$(BIN)/python -m benchmarks.train

bench-eval: .venv/.developing ## judges, sandbox and OpenCompass beside generation: a minute
	$(BIN)/python -m benchmarks.evaluation

bench-platform: .venv/.developing ## the platform under load: three minutes
	$(BIN)/python -m benchmarks.platform

study: .venv/.developing ## does every method learn, over seeds, beside a control: an hour; continues where it stopped
	$(BIN)/python -m studies.learning

docs: .venv/.developing ## write what is generated in docs
	$(BIN)/python -m dare.algorithm_pages
	$(BIN)/python -m dare.task_pages

clean: ## remove the environment and everything that was built
	rm -rf .venv $(SECOND) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache artefacts

.venv/bin/python $(SECOND)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "DARE needs Python 3.11 or newer; $(PYTHON) is older. Use make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=) || { echo "This Python has no venv module; on Debian: apt-get install python3-venv"; exit 1; }

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing DARE into .venv: one to three minutes, mostly $(TORCH)."
	$(INSTALL_TORCH)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[runner,platform,leaderboard]'
	@touch $@

.venv/.developing: .venv/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[runner,platform,leaderboard,evaluator,second-opinion,dev]'
	@touch $@

$(SECOND)/.installed: pyproject.toml constraints-transformers5.txt | $(SECOND)/bin/python
	@echo "Installing the runner into $(SECOND): one to three minutes, mostly $(TORCH)."
	$(INSTALL_TORCH)
	$(PIP) install --quiet --constraint constraints-transformers5.txt --editable '.[runner,test]'
	@touch $@
