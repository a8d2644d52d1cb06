# The verbs of this repository, for people and for CI alike; `make help` lists them.
#
# PYTHON          the interpreter that makes .venv (3.11 or newer), and that runs the GPU verbs, which use no .venv
# TORCH_INDEX_URL an index of PyTorch builds, for torch alone; without it torch comes from pip's own index
# ARGS            further arguments for the verb's program
# GPU_WORKERS     processes that share the GPU in `make test-gpu`

PYTHON ?= python3
TORCH_INDEX_URL ?=
ARGS ?=
GPU_WORKERS ?= 8

VENV := .venv
VPY := $(VENV)/bin/python
RUNTIME := gateway,generator,embedder,reranker,prepare,examples
# Versions chosen by hand: this triton is the one that this torch's CUDA build requires.
CHOSEN := torch==2.13.0 triton==3.7.1
SOURCES := services shared tools tests examples $(wildcard benchmarks)
SHARED = $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && printf "%s" "-n $(GPU_WORKERS) --dist worksteal -p no:benchmark")

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup up down demo models fmt lint docs type arch test test-containers test-clients check test-gpu bench bench-gpu bench-gpu-encoders bench-gpu-http bench-gpu-peers profile-gpu bench-kernels pins clean

# $(call install,EXTRAS): torch first and alone, so that TORCH_INDEX_URL is asked for nothing else.
define install
	$(if $(TORCH_INDEX_URL),$(VPY) -m pip install --no-deps -c constraints.txt --index-url $(TORCH_INDEX_URL) torch)
	$(VPY) -m pip install -c constraints.txt -e ".[$(1)]"
endef

# Stamps: a change of the pins or of the requirements installs again, nothing else does.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trivium needs Python 3.11 or newer; name one with PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/.made
	@echo 'Installing what the services need into $(VENV) (once; some minutes)'
	$(call install,$(RUNTIME))
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.made
	@echo 'Installing what the services and their tests need into $(VENV) (once; some minutes)'
	$(call install,dev)
	@touch $(VENV)/.runtime $@

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## make .venv with everything that running and developing need

# `exec`, and a launcher that leaves when make does: a signal to make must reach the services.
up: models ## start the four services on this machine, until Ctrl-C
	@exec $(VPY) -m tools.stack up --with-parent $(ARGS)

down: ## stop what `make up` started in another terminal
	@if [ -x $(VPY) ]; then exec $(VPY) -m tools.stack down; fi

demo: models ## start the services, ask a folder of documents some questions, stop
	@exec $(VPY) -m tools.stack up --with-parent --demo $(ARGS)

models: $(VENV)/.runtime ## prepare the embedded models in models/
	@$(VPY) -m tools.prepare_models

fmt: $(VENV)/.dev ## format the code and fix what ruff can fix
	$(VPY) -m ruff format $(SOURCES)
	$(VPY) -m ruff check --fix $(SOURCES)

lint: $(VENV)/.dev ## check format and style of the code, and sizes and names of files
	$(VPY) -m ruff format --check $(SOURCES)
	$(VPY) -m ruff check $(SOURCES)
	$(VPY) -m tools.check_files
	$(VPY) -m tools.check_sizes
	$(VPY) -m tools.check_names
	$(VPY) -m tools.api_fields --check

docs: $(VENV)/.dev ## write the generated pages of docs/
	$(VPY) -m tools.api_fields

type: $(VENV)/.dev ## check the types
	$(VPY) -m mypy

arch: $(VENV)/.dev ## check who may import whom
	$(VENV)/bin/lint-imports

# Kernels run in Triton's interpreter there, also on a machine with a GPU. Two workers, each file's tests in one of them, so that its
# models are made once; each worker's torch takes one core.
test: $(VENV)/.dev models ## run every test that needs no GPU
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VPY) -m pytest -m "not gpu" -n 2 --dist loadfile $(ARGS)

# Standard library only, hence any Python: nothing needs to be installed to learn that there is no engine.
test-containers: ## build the CPU images and try the whole stack in containers; skips where there is no engine
	@exec $(PYTHON) -m tests.containers

# Their versions are theirs: an environment of its own, so that they meet none of ours.
test-clients: $(VENV)/.dev models ## try clients of other projects (Cohere, LangChain, LlamaIndex, OpenAI for Node) against the suite
	$(PYTHON) -m venv .run/clients
	.run/clients/bin/python -m pip install --quiet cohere langchain-openai langchain-cohere \
	  llama-index-embeddings-openai-like llama-index-postprocessor-cohere-rerank llama-index-postprocessor-jinaai-rerank
	if command -v npm >/dev/null; then mkdir -p .run/clients/node && npm install --silent --prefix .run/clients/node openai; fi
	$(VPY) -m pytest tests/clients $(ARGS)

check: lint type arch test test-containers ## everything that CI runs

# On a GPU machine with an environment of its own: no .venv, no pytest plug-in that it may lack, and only the tests that need no
# more than torch, triton, numpy and pytest. Most of their time is the compiler's, on the CPU: where pytest-xdist is there,
# GPU_WORKERS processes share the device.
test-gpu: ## run the tests that need a GPU, with PYTHON and no .venv
	OMP_NUM_THREADS=2 $(PYTHON) -m pytest -o addopts="--strict-markers -ra" -m gpu $(SHARED) tests/kernels tests/gpu $(ARGS)

bench: $(VENV)/.dev models ## run the CPU benchmarks
	$(VPY) -m benchmarks.engine.scheduling
	$(VPY) -m benchmarks.serving.chat
	$(VPY) -m benchmarks.serving.adapters
	$(VPY) -m benchmarks.serving.embeddings
	$(VPY) -m benchmarks.serving.rerank
	$(VPY) -m benchmarks.serving.gateway
	$(VPY) -m benchmarks.serving.memory
	$(VPY) -m benchmarks.serving.encoder_memory
	$(VPY) -m benchmarks.serving.images

bench-kernels: ## time the kernels alone on a GPU, with PYTHON and no .venv; ARGS takes --out DIR and --rows PATTERN
	$(PYTHON) -m benchmarks.kernels $(ARGS)

bench-gpu: ## time the whole generator on a GPU; likewise
	$(PYTHON) -m benchmarks.gpu $(ARGS)

bench-gpu-encoders: ## time embedder and reranker on a GPU beside transformers; likewise
	$(PYTHON) -m benchmarks.gpu.encoders $(ARGS)

bench-gpu-http: ## the 64-row steps of that table as clients of the service see them; likewise
	$(PYTHON) -m benchmarks.gpu.over_http $(ARGS)

bench-gpu-peers: ## transformers and peft on the same workload; likewise, needs both packages
	$(PYTHON) -m benchmarks.gpu.peers $(ARGS)

profile-gpu: ## where the time of decode steps and of prompts goes; ARGS takes --rows PATTERN
	$(PYTHON) -m benchmarks.gpu.profile $(ARGS)

# Local versions (+cpu) are cut off, and what torch's CUDA build pins by itself is left out: one file fits both builds.
pins: ## write constraints.txt again: CHOSEN, and the newest of all else that pyproject.toml allows
	rm -rf .run/pins && $(PYTHON) -m venv .run/pins
	.run/pins/bin/python -m pip install -e ".[dev]" $(CHOSEN)
	.run/pins/bin/python -m pip check
	@{ echo '# Exact versions for reproducible installs: `pip install -c constraints.txt …`. Written by `make pins`.'; \
	  .run/pins/bin/python -m pip freeze --exclude-editable | sed -E '/^(nvidia|cuda)[-_]/d; s/\+[^ ]*$$//'; } >.run/constraints.txt
	mv .run/constraints.txt constraints.txt

clean: ## remove caches, logs and build output, but neither .venv nor models/
	rm -rf .run build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find services shared tools tests examples -name __pycache__ -prune -exec rm -rf {} +
