# make serve | test | test-slow | test-soak | test-gpu | test-engines | test-clients | lint | bench | bench-exact
#     | bench-train | bench-router | bench-client | bench-memory | wheel (make help says more)
PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
TORCH_INDEX ?=
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
INSTALL := $(PIP) install --quiet -c constraints-$(TORCH).txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PINS := pyproject.toml constraints.txt constraints-$(TORCH).txt
EXTRAS := $(if $(filter cuda,$(TORCH)),gpu,engine)
ENGINE := $(VENV)/.engine-$(TORCH)
DEV := $(VENV)/.dev-$(TORCH)
GPU := $(VENV)/.gpu-$(TORCH)
ifeq ($(SETUP),no)
ENGINE :=
DEV :=
GPU :=
endif

PYTEST := $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 8 --dist worksteal
# Where it is set (in many images), every worker would compile all tests and every server that a test starts all of eyas.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test test-slow test-soak test-gpu test-engines test-clients lint bench bench-exact bench-train \
	bench-router bench-client bench-memory wheel clean
.DEFAULT_GOAL := help

help:
	@echo "make serve        serve the demo model on http://127.0.0.1:8000; ARGS='MODEL --port 9000' for more"
	@echo "make test         the tests that every change must pass: at most 8 minutes on two cores; ARGS='tests/gateway -x'"
	@echo "                  for some, ARGS='--random-order-seed=1' for another order"
	@echo "make test-slow    those that take long and rarely fail: at most 30 minutes on two cores; .ci/run runs both"
	@echo "make test-soak    those that take many minutes each, one after the other: hours; before a release"
	@echo "make test-gpu     those that need an NVIDIA GPU, in one run"
	@echo "make test-engines those with other engines: builds llama-server (cmake, a C++ compiler), asks their parsers"
	@echo "make test-clients those with the real Claude Code, which it installs from npm into .clients/: at most 15 minutes"
	@echo "make lint         ruff and mypy"
	@echo "make bench        speed of the engine by batch size and draft tokens"
	@echo "make wheel        builds dist/eyas-*.whl, installs it into a fresh environment, asks it a question"
	@echo "make bench-exact  200 requests, with speculation and without: the same tokens"
	@echo "make bench-train  what heads learn by loss and supervision: acceptance lengths, against bounds; 40 minutes on one"
	@echo "                  core; ARGS='--seeds 1 --arms kl,hard' for less, the same command goes on"
	@echo "make bench-router what eyas router adds to an answer, beside LiteLLM's proxy, which it installs into .clients/; needs"
	@echo "                  both cores idle; ARGS='--no-litellm' without it"
	@echo "make bench-client what a chunk of a streamed answer costs eyas.AsyncClient, beside the openai SDK"
	@echo "make bench-memory what it costs that a model is loaded for a request and another unloaded; needs both cores idle"
	@echo
	@echo "Variables: PYTHON=python3.12, VENV=.venv, TORCH=cpu|cuda (here: $(TORCH)),"
	@echo "           TORCH_INDEX=URL of a package index to take torch builds from,"
	@echo "           SETUP=no to run what is in VENV as it is and install nothing"

serve: $(ENGINE)
	$(BIN)/python -m eyas serve $(ARGS)

test: $(DEV)
	$(PYTEST) $(PARALLEL) $(ARGS)

test-slow: $(DEV)
	$(PYTEST) $(PARALLEL) -m 'slow and not soak and not engines and not clients' --timeout 1500 $(ARGS)

test-soak: $(DEV)
	$(PYTEST) -m soak -s --timeout 14400 $(ARGS)

# Only these files: others import what is in the dev group alone.
test-gpu: $(GPU)
	$(PYTEST) -m gpu $$(grep -rl --include='test_*.py' 'mark\.gpu' tests) $(ARGS)

test-engines: $(DEV)
	$(BIN)/python tools/llama_server.py
	$(PYTEST) -m engines $(ARGS)

test-clients: $(DEV)
	$(BIN)/python tools/llama_server.py
	$(PYTEST) -m clients --timeout 900 $(ARGS)

lint: $(DEV)
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

bench: $(ENGINE)
	$(BIN)/python -m eyas bench engine $(ARGS)

bench-exact: $(DEV)
	$(PYTEST) -m soak -k exact -s $(ARGS)

bench-train: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python tools/bench_train.py --out runs/bench-train \
		train.epochs=1 train.precision=bf16 $(ARGS)

bench-router: $(DEV)
	$(BIN)/python tools/bench_router.py $(ARGS)

bench-client: $(DEV)
	$(BIN)/python tools/bench_client.py $(ARGS)

bench-memory: $(DEV)
	$(BIN)/python tools/llama_server.py
	$(BIN)/python -m tools.bench_memory $(ARGS)

wheel: $(BIN)/python
	$(BIN)/python tools/wheel.py -c constraints-$(TORCH).txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "eyas needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'

$(ENGINE): $(PINS) | $(BIN)/python
	$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $@

# --group needs pip 25.1
$(DEV): $(ENGINE)
	$(INSTALL) -e '.[$(EXTRAS)]' --group dev
	@$(PYTEST) --collect-only >/dev/null || true  # compiles the tests once, before all workers would at a time
	@touch $@

$(GPU): $(ENGINE)
	$(INSTALL) -e '.[$(EXTRAS)]' pytest
	@touch $@
