# Everything runs in one virtual environment, which each target first brings in step with requirements.lock.
#   make VENV=path            keeps it somewhere else than in .venv
#   make PYTHON=python3.12    makes it with this interpreter (3.11 to 3.13)
VENV ?= .venv
BIN := $(VENV)/bin
export VENV PYTHON IMAGE VARIANT
# Two test files at a time, the longest first; ARGS="-n 0" runs one after the other, as a debugger needs it.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# Without byte code every start of TFX takes ten seconds longer.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test long check lint format bench gauntlet faults mutants image rehearse-image lock tensorboard clean

help: ## Show this list
	@echo 'make TARGET [ARGS="..."] [PYTHON=python3.12] [VENV=.venv]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

setup: ## Make .venv: the packages of requirements.lock, byte-compiled
	@tools/setup.sh

run: setup ## Run the pipeline on this machine: make run ARGS="--help"
	$(BIN)/python local_runner.py $(ARGS)

test: setup ## Run the tests, the pipeline end to end too: make test ARGS="tests/setup -x"
	$(BIN)/python -m pytest -m "not long" $(PARALLEL) --durations 20 --durations-min 20 $(ARGS)

long: setup ## Run what make test leaves out, then all of make test next to four busy processes: an hour and a half
	$(BIN)/python -m pytest -m long $(PARALLEL) --durations 20 --durations-min 20 $(ARGS)
	$(BIN)/python -m pytest -m "not long" --busy 4 $(PARALLEL) $(ARGS)

check: setup ## Run lint and the fast tests at the same time: a minute and a half on two cores
	@log=$$(mktemp); $(MAKE) --no-print-directory lint > $$log 2>&1 & \
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(ARGS); tests=$$?; \
	wait $$!; lint=$$?; cat $$log; rm $$log; exit $$((tests || lint))

lint: setup ## Check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: run ## Measure again the numbers in the README
	@for file in $(filter-out benchmarks/reference.py,$(wildcard benchmarks/*.py)); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

tensorboard: setup ## Show the training of all runs: make tensorboard ARGS="--port 7007"
	$(BIN)/tensorboard --logdir output $(ARGS)

gauntlet: setup ## Take 186 awkward tables through new, run, predict and serve, for hours: make gauntlet ARGS="iris taxi"
	$(BIN)/python -m tests.gauntlet $(ARGS)

faults: setup ## Break runs in 256 ways and look whether the next one is right, for an hour: make faults ARGS="kill --jobs 2"
	$(BIN)/python -m tests.faults $(ARGS)

mutants: setup ## Change lines of important behaviour and look whether tests notice: make mutants ARGS="canary --sample 20"
	$(BIN)/python -m tests.mutants $(ARGS)

image: setup ## Build and push the images of the Vertex tasks: IMAGE=registry/name:tag, VARIANT=gpu
	$(BIN)/python tools/build_image.py $(ARGS)

rehearse-image: setup ## Build the image here without docker, look into it and run the rehearsal in it: needs root
	$(BIN)/python tools/rehearse_image.py $(ARGS)

lock: setup ## Write the locks of the packages anew from setup.py: UPGRADE=1 takes newer versions, and newer base images
	$(BIN)/uv pip compile setup.py --quiet --all-extras --universal --python-version 3.11 --generate-hashes --no-header $(if $(UPGRADE),--upgrade) --output-file requirements.lock
	$(BIN)/uv pip compile setup.py --quiet --constraint requirements.lock --universal --python-version 3.11 --generate-hashes --no-header --output-file requirements-image.lock
	@echo 'tensorflow[and-cuda]' | $(BIN)/uv pip compile - --quiet --constraint requirements.lock --universal --python-version 3.11 --generate-hashes --no-header $(if $(UPGRADE),--upgrade) --output-file requirements-gpu.lock
	$(if $(UPGRADE),$(BIN)/python tools/base_images.py)

clean: ## Remove .venv and everything the tools left behind
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
