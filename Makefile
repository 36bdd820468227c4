# `make up` starts Longhaul, `make test` tests it. Both install what is missing and skip what is there.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
# pip compiles modules one by one, which is half of its time; this takes all cores. Some packages carry files that are no Python 3.
COMPILE = $(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
REQS   := config/requirements
# The same pins with the hashes of their files, which pip checks: `make hashes` writes them.
HASHES := $(REQS)/hashes
HASHED := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate
# vLLM's build for this machine: gpu if an NVIDIA GPU answers, else cpu. `make up ENGINE=cpu` chooses by hand.
ENGINE ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && echo gpu || echo cpu)
# More arguments of `longhaul up`: make up ARGS="--model Qwen/Qwen3-8B --workers 2"
ARGS   ?=

# The suite starts Python hundreds of times: compiled modules are kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# Processes that run the tests; one of them runs all tests with an engine (tests/support/sharing.py).
JOBS   ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --no-loadscope-reorder
# The tests of gpt-oss and of the shipped MCP servers, for `make tools`.
TOOLS  := tests/e2e/test_gpt_oss.py tests/engine/test_gpt_oss.py tests/toolservers \
	tests/integration/toolservers/test_browser.py tests/integration/toolservers/test_browser_web.py \
	tests/integration/mcp/test_shipped.py

# Codex, opencode, the AI SDK and OpenAI's packages for Node, which tests/clients runs. Stays in the clone, as the rest.
NODE   := tests/clients/node
HAVE_NODE := $(shell command -v node >/dev/null && command -v npm >/dev/null && echo yes)

.PHONY: help up install install-dev install-clients test test-long short-tests clients tools check format hashes unit integration e2e faults attacks bench bench-path bench-write dist clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

up: install  ## Install what is missing, start everything and print the URLs (Ctrl-C stops it)
	@exec $(BIN)/longhaul up $(ARGS)

install: $(VENV)/.project $(VENV)/.worker-$(ENGINE) $(VENV)/.tools-$(ENGINE)  ## Make the virtual environment for API and worker

install-dev: install $(VENV)/.dev  ## Make it with the tools for tests and checks, too

install-clients: $(if $(HAVE_NODE),$(NODE)/node_modules/.installed)
	@$(if $(HAVE_NODE),,echo "there is no node and npm here: tests of the clients for Node are skipped (in CI they fail)")

test: install-dev install-clients  ## Install what is missing, then run every check and every test but those of `make test-long`
	@$(MAKE) --no-print-directory --jobs 2 check short-tests

# The checks run beside them: they end first, so the last line is pytest's.
short-tests: install-dev install-clients
	$(PYTEST) -m "not long" tests

test-long: install-dev install-clients  ## Run the long faults, and the tests of the laboratories: bench, attacks, faults
	$(PYTEST) -m long tests

clients: install-dev install-clients  ## Run the tests of real clients: Codex, opencode, the AI SDK, LangChain, ...
	$(BIN)/python -m pytest tests/clients

tools: install-dev  ## Run the tests of gpt-oss and of the shipped MCP servers, with every attempt to escape the sandbox
	$(BIN)/python -m pytest $(TOOLS)

check: install-dev  ## Check format, lint, types, import rules and declared dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry --no-ansi app workers config migrations

format: install-dev  ## Let ruff format the code and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hashes: install-dev  ## Write the hashes of the pinned packages, after a change of a pin
	for name in base worker-cpu tools dev; do $(HASHED) --no-deps $(REQS)/$$name.txt --output-file $(HASHES)/$$name.txt; done
	$(HASHED) $(REQS)/worker-gpu.txt --constraint $(REQS)/base.txt --output-file $(HASHES)/worker-gpu.txt

unit: install-dev  ## Run the tests without services
	$(BIN)/python -m pytest tests/unit

integration: install-dev  ## Run the tests on real Postgres and Valkey, without a model
	$(BIN)/python -m pytest tests/integration

e2e: install-dev  ## Run the tests of all processes with a real vLLM engine
	$(BIN)/python -m pytest tests/e2e

faults: install-dev  ## Run the fault suite: 1000 faults over 2000 responses and 200 batches (25 minutes; ARGS="--seed 2" draws others)
	$(BIN)/python -m tests.faults $(ARGS)

attacks: install-dev  ## Attack an installation of its own as one caller would (minutes; ARGS="--only references")
	$(BIN)/python -m tests.attacks $(ARGS)

bench: install-dev  ## Compare Longhaul with `vllm serve` (ARGS=--quick: 10 minutes; ARGS="--model FOLDER": another model)
	$(BIN)/python -m tests.bench $(ARGS)

bench-path: install-dev  ## Measure our own path alone, on the scripted engine
	$(BIN)/python -m tests.bench path $(ARGS)

bench-write: install-dev  ## Write the results into docs/internals/performance.md
	$(BIN)/python -m tests.bench write $(ARGS)

dist: install-dev  ## Build sdist and wheel into dist/: the same bytes from the same commit
	rm -rf dist
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} \
		$(BIN)/python -m hatchling build --directory dist --target sdist --target wheel

clean:  ## Remove the virtual environment, the clients for Node and caches; the data folder stays
	rm -rf $(VENV) $(NODE)/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find app workers config migrations tests -name __pycache__ -prune -exec rm -rf {} +

# Keeps a virtual environment that works, even if something else made it.
$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "Longhaul needs Python 3.11 or newer, and there is no '$(PYTHON)' (another one: make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Longhaul needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (another one: make PYTHON=python3.12 ...)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@touch $@

$(VENV)/.base: $(HASHES)/base.txt $(VENV)/.made
	@echo "installing $<"
	@$(PIP) --no-deps --require-hashes -r $<
	@touch $@

$(VENV)/.worker-cpu: $(HASHES)/worker-cpu.txt $(REQS)/torch.txt $(VENV)/.base
	@echo "installing $< (vLLM and torch: a few hundred megabytes the first time)"
	@$(PIP) --no-deps --require-hashes -r $<
	@$(PIP) --no-deps -r $(REQS)/torch.txt
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(MAKE) --no-print-directory torch-libraries
	@touch $@

# For when pip took PyTorch's build for CUDA: it takes the small build for CPUs only if PIP_EXTRA_INDEX_URL names PyTorch's index.
.PHONY: torch-libraries
torch-libraries:
	@echo "installing what PyTorch's build for CUDA needs (gigabytes; its build for CPUs is smaller: see README)"
	@$(PIP) --no-warn-conflicts -c $(REQS)/base.txt $$($(BIN)/python $(REQS)/torch_libraries.py)

$(VENV)/.worker-gpu: $(HASHES)/worker-gpu.txt $(VENV)/.base
	@echo "installing $< (vLLM and torch for CUDA: gigabytes the first time)"
	@$(PIP) --no-deps --require-hashes -r $<
	@touch $@

$(VENV)/.tools-$(ENGINE): $(HASHES)/tools.txt $(VENV)/.worker-$(ENGINE)
	@echo "installing $<"
	@$(PIP) --no-deps --require-hashes -r $<
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: $(HASHES)/dev.txt $(VENV)/.base
	@echo "installing $<"
	@$(PIP) --no-deps --require-hashes -r $<
	@$(COMPILE)
	@touch $@

$(NODE)/node_modules/.installed: $(NODE)/package-lock.json $(NODE)/package.json
	@echo "installing $< (Codex, opencode and Claude Code: 1 GB)"
	@cd $(NODE) && npm ci --loglevel error
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.base
	@echo "installing longhaul"
	@$(BIN)/python -m pip uninstall --quiet --yes longhaul 2>/dev/null  # its name before 0.3.0
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q app config workers migrations
	@touch $@
