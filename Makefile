# `make up` starts Longhaul, `make test` proves it. Both begin from nothing and skip what is there.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet
REQS   := config/requirements
# vLLM's build for this machine: gpu where an NVIDIA GPU answers, else cpu. `make up ENGINE=cpu` decides otherwise.
ENGINE ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)
# More for `longhaul up`: make up ARGS="--model Qwen/Qwen3-8B --workers 2"
ARGS   ?=

# Processes that share the tests out; one of them has the engines (tests/support/sharing.py).
JOBS   ?= 2
# The tests of gpt-oss and of the tool servers, for `make tools`.
TOOLS  := tests/e2e/test_gpt_oss.py tests/engine/test_gpt_oss.py tests/toolservers \
	tests/integration/toolservers/test_browser.py tests/integration/toolservers/test_browser_web.py \
	tests/integration/mcp/test_shipped.py

.PHONY: help up install install-dev test tools check format unit integration e2e faults bench bench-path bench-scale bench-fleet bench-write clean
.DEFAULT_GOAL := help

help:  ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

up: install  ## Install what is missing, start everything, say where it listens (Ctrl-C stops it)
	@exec $(BIN)/longhaul up $(ARGS)

install: $(VENV)/.project $(VENV)/.worker-$(ENGINE) $(VENV)/.tools-$(ENGINE)  ## The virtual environment with API and worker

install-dev: install $(VENV)/.dev  ## The same with the tools for tests and checks

test: install-dev  ## Install what is missing, then every check and every test
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest tests --numprocesses $(JOBS) --no-loadscope-reorder

tools: install-dev  ## Only the tests of gpt-oss and of the tool servers, with every attempt to get out of the sandbox
	$(BIN)/python -m pytest $(TOOLS)

check: install-dev  ## Format, lint, types, import rules, declared dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry --no-ansi app workers config migrations

format: install-dev  ## Let ruff format and repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: install-dev  ## Pure tests
	$(BIN)/python -m pytest tests/unit

integration: install-dev  ## Tests on real Postgres and Valkey, without a model
	$(BIN)/python -m pytest tests/integration

e2e: install-dev  ## Tests of all processes with a real vLLM engine
	$(BIN)/python -m pytest tests/e2e

faults: install-dev  ## The whole fault suite: 1000 faults over 2000 responses (25 minutes); ARGS="--seed 2" for others
	$(BIN)/python -m tests.faults $(ARGS)

bench: install-dev  ## Longhaul beside bare vLLM and `vllm serve`, against the targets (an hour; ARGS=--quick: minutes)
	$(BIN)/python -m tests.bench $(ARGS)

bench-path: install-dev  ## Our own path alone, on the scripted engine
	$(BIN)/python -m tests.bench path $(ARGS)

bench-scale: install-dev  ## How cost grows (an hour; ARGS="readers --sizes 1,100": one measurement)
	$(BIN)/python -m tests.bench scale $(ARGS)

bench-fleet: install-dev  ## What a worker costs those that it shares with others, and what follows for a thousand (4 minutes)
	$(BIN)/python -m tests.bench fleet $(ARGS)

bench-write: install-dev  ## What was measured, into docs/performance.md and docs/scaling.md
	$(BIN)/python -m tests.bench write $(ARGS)

clean:  ## Remove the virtual environment and caches; the data folder stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find app workers config migrations tests -name __pycache__ -prune -exec rm -rf {} +

# A virtual environment that works is kept, whoever made it.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "Longhaul needs Python 3.11 or newer, and there is no '$(PYTHON)' (another one: make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Longhaul needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (another one: make PYTHON=python3.12 ...)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@touch $@

$(VENV)/.base: $(REQS)/base.txt $(VENV)/.made
	@echo "installing $<"
	@$(PIP) --no-deps -r $<
	@touch $@

$(VENV)/.worker-cpu: $(REQS)/worker-cpu.txt $(VENV)/.base
	@echo "installing $< (vLLM and torch: a few hundred megabytes the first time)"
	@$(PIP) --no-deps -r $<
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch-libraries
	@touch $@

# pip took PyTorch's build for CUDA. With PIP_EXTRA_INDEX_URL naming PyTorch's index for CPUs it would have taken the small one.
.PHONY: torch-libraries
torch-libraries:
	@echo "installing what PyTorch's build for CUDA needs (gigabytes; its build for CPUs is smaller: see README)"
	@$(PIP) --no-warn-conflicts -c $(REQS)/base.txt $$($(BIN)/python $(REQS)/torch_libraries.py)

$(VENV)/.worker-gpu: $(REQS)/worker-gpu.txt $(VENV)/.base
	@echo "installing $< (vLLM and torch for CUDA: gigabytes the first time)"
	@$(PIP) -r $< -c $(REQS)/base.txt
	@touch $@

$(VENV)/.tools-$(ENGINE): $(REQS)/tools.txt $(VENV)/.worker-$(ENGINE)
	@echo "installing $<"
	@$(PIP) --no-deps -r $<
	@touch $@

$(VENV)/.dev: $(REQS)/dev.txt $(VENV)/.base
	@echo "installing $<"
	@$(PIP) --no-deps -r $<
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.base
	@echo "installing longhaul"
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
