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
.PHONY: help install develop demo up down logs backup restore images locks check coverage models test services docs study study-faults \
  bench bench-attention bench-decode bench-train bench-eval bench-platform clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: .venv/.installed ## make .venv and install DARE into it

develop: .venv/.developing ## the same, with what the tests need

demo: .venv/.installed ## the whole way once, on this machine's CPU; QUICK=1 for one seed
	$(BIN)/dare demo $(if $(QUICK),--quick)

up: images ## the whole platform in containers: site, workers, PostgreSQL, Redis; says where the site is
	@bash images/environment.sh
	@docker compose up --detach --wait
	@echo "The site: http://$$(docker compose port web 8501)"

down: ## stop what `make up` or `make demo` left running; what they know is kept
	@if [ -f "$${COMPOSE_ENV_FILES:-.env}" ]; then docker compose down; fi
	@if [ -x $(BIN)/dare ]; then $(BIN)/dare down; fi

logs: ## what the parts of `make up` say, as they say it; SERVICE=control for one
	@docker compose logs --follow --tail 100 $(SERVICE) || true

backup: ## copy what the stack of `make up` knows into a folder, while it works: TO=FOLDER
	@test -n "$(TO)" || { echo "Say where to: make backup TO=FOLDER"; exit 2; }
	@docker compose exec -T control dare backup /backups/dare
	@mkdir -p "$(TO)"
	@docker compose exec -T control tar -C /backups/dare -c . | tar -C "$(TO)" -x

restore: ## the way back, into a stack that has never been started: FROM=FOLDER, and `make up` after it
	@test -n "$(FROM)" || { echo "Say where from: make restore FROM=FOLDER"; exit 2; }
	@bash images/environment.sh
	@docker compose up --detach --wait postgres
	@tar -C "$(FROM)" -c . | docker compose run --rm -T --no-deps control sh -c \
	  'mkdir -p /backups/dare && tar -C /backups/dare -x && dare restore /backups/dare'

images: ## build what `make up` runs; VARIANT=cuda for GPUs, IMAGES=default for every image
	@SOURCE_REVISION=$$(git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null) TORCH_INDEX=$(TORCH_INDEX) \
	  docker buildx bake --file docker-bake.hcl $(or $(IMAGES),stack)

locks: .venv/.developing ## choose anew, by pip's resolver, what each image installs
	$(BIN)/python images/locks.py $(LOCKS)

check: .venv/.developing ## fast tier: format, lint, types, contracts, unit and property tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/typos
	$(BIN)/mypy -p dare -p dare_platform -p leaderboard
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 -m "not full"

coverage: .venv/.developing ## the fast tier's tests again, and which lines they leave out: a third slower
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

study-faults: .venv/.developing services ## what is killed, cut off and full costs nothing, with its page: a quarter of an hour
	$(BIN)/python -m studies.faults
	$(BIN)/python -m studies.chaos --runs 200 --workers 6 --seed 0

study: .venv/.developing ## does every method learn, over seeds, beside a control: an hour; continues where it stopped
	$(BIN)/python -m studies.statistics
	$(BIN)/python -m studies.learning
	$(MAKE) study-faults

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
