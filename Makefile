# Every target with a ## line shows up in `make help`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := uv==0.13.8
PROTOS := $(shell find protos -name '*.proto')

# A virtual environment holds its own path: a clone that was moved or copied gets a new one.
ifneq ($(shell cat $(VENV)/.path 2>/dev/null),$(CURDIR))
$(shell rm -f $(VENV)/.installed)
endif

.DEFAULT_GOAL := help
.PHONY: help setup run test demo faults audit bench bench-peers lint format docs lock contract clean

help: ## List every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed gen/.generated ## Virtual environment, pinned dependencies, generated code (quick when nothing changed)

run: setup ## Bring the whole suite up on this machine; Ctrl-C stops it
	@exec $(BIN)/glossa up

test: setup ## Run the whole test suite on embedded parts, in parallel
	@$(BIN)/pytest -n $${GLOSSA_TEST_WORKERS:-auto} $(PYTEST_ARGS)

demo: setup ## Two users, one PDF: watch the first generate live and the second get it at once
	@$(BIN)/glossa demo

faults: setup ## Everything that may go wrong, half an hour; SEED=1 replays a schedule, FAULT_MINUTES=8 is its length
ifdef SEED
	@$(BIN)/pytest -s -m faults tests/faults/test_random_schedule.py $(PYTEST_ARGS)
else
	@GLOSSA_MODEL_EXAMPLES=20000 GLOSSA_FUZZ_EXAMPLES=100 $(BIN)/pytest -n $${GLOSSA_TEST_WORKERS:-auto} \
		tests/protocol tests/security --timeout 1200 $(PYTEST_ARGS)
	@$(BIN)/pytest -s -m "faults or not faults" tests/faults $(PYTEST_ARGS)
endif

audit: setup ## Known vulnerabilities in what requirements.lock pins; asks the advisory service, so it needs the network
	@$(BIN)/pip-audit --requirement requirements.lock --disable-pip --require-hashes --strict --progress-spinner off

bench: setup bench-peers ## How fast, against limits and peers, in one table; ROWS="1 4" for some (needs a quiet machine)
	@$(BIN)/python -m tests.bench $(ROWS)

bench-peers: setup ## Install what benchmarks compare with, in an environment of its own
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	@VIRTUAL_ENV=.venv-bench $(BIN)/uv pip install --quiet -r tests/bench/peers.txt

lint: setup ## ruff, mypy strict, import contracts, buf lint/format/breaking, squawk, generated documents
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/buf lint && $(BIN)/buf format --diff --exit-code
	@$(BIN)/buf breaking --against protos/contract.binpb
	@$(BIN)/buf build -o - | cmp -s - protos/contract.binpb || { echo "protos changed compatibly: run 'make contract' and commit the result"; exit 1; }
	@$(BIN)/squawk --config tools/squawk.toml services/*/migrations/*.sql
	@$(BIN)/python -m tools.metrics_docs --check
	@$(BIN)/python -m tools.dashboard --check
	@echo "lint: all clean"

format: setup ## Format Python and protos in place
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet . ; $(BIN)/buf format -w

contract: setup ## Record the protos as the contract later changes are held against
	@if [ -f protos/contract.binpb ]; then $(BIN)/buf breaking --against protos/contract.binpb; fi
	@$(BIN)/buf build -o protos/contract.binpb

docs: setup ## Write docs/metrics.md and the Grafana dashboard from the code
	@$(BIN)/python -m tools.metrics_docs
	@$(BIN)/python -m tools.dashboard

lock: $(VENV)/.installed ## Resolve pyproject.toml into the hashed requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-annotate --custom-compile-command "make lock" \
		pyproject.toml -o requirements.lock

clean: ## Remove the environment and generated code (local state in .glossa stays)
	@rm -rf $(VENV) gen

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Glossa needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python && test "$$(cat $(VENV)/.path)" = "$(CURDIR)" || $(PYTHON) -m venv --clear $(VENV)
	@echo "$(CURDIR)" > $(VENV)/.path
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --require-hashes -r requirements.lock \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

gen/.generated: $(VENV)/.installed $(PROTOS)
	@rm -rf gen && mkdir -p gen
	@$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=gen --grpc_python_out=gen \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--mypy_out=quiet:gen --mypy_grpc_out=quiet,only_async:gen $(PROTOS)
	@touch $@
