# Everything goes through .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# One thread for each process: the numbers do not depend on the machine, and two cores are enough.
# Compiled files are kept, whatever the shell says: each worker and each command that a test starts would compile all of
# them again. Nobody logs, so no test need be listened to.
ONE := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -q -p no:logging
PYTEST := $(ONE) -n 2 --dist worksteal
FAST := not slow and not gpu and not learn
SHAPED := tests/core tests/ops tests/parts tests/models

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup check test test-slow test-learn test-gpu mutants rows bench performance demo clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv and install anyformer with its development tools

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: anyformer needs Python 3.11 or newer. Name one: make setup PYTHON=python3.12"; exit 1; }
	@echo "Installing into .venv (some minutes the first time) ..."
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

check: $(STAMP) ## Format, lint, types, import contracts, size budgets
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/architecture

# Shapes are checked where tests call parts directly, and not under the compiler, which does not go through the checker.
# One process checks them beside the two workers: a second would import and collect all that again. Its report comes last.
# What tests/architecture holds, `make check` has said already.
test: $(STAMP) ## The fast tests
	@mkdir -p build; \
	$(ONE) -m "$(FAST) and not compile" --shapes $(SHAPED) >build/shapes.log 2>&1 & shapes=$$!; \
	trap 'kill $$shapes' INT TERM; \
	$(PYTEST) -m "$(FAST) and (compile or not shaped)" --unshaped --ignore tests/architecture --ignore tests/gpu; \
	others=$$?; wait $$shapes; shaped=$$?; cat build/shapes.log; exit $$((others | shaped))

test-slow: $(STAMP) ## The few tasks that prove a mechanism by learning (up to half an hour)
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,cluster,lm-eval,onnx]" accelerate # no skips
	$(PYTEST) -m "slow and not gpu and not learn" --durations=30

test-learn: $(STAMP) ## Training runs without a time limit
	$(PYTEST) -m "learn and not gpu" || test $$? -eq 5 # 5: nothing is marked so yet

test-gpu: $(STAMP) ## What only a GPU can show: captured steps, kernels, the CPU's numbers (needs one)
	$(BIN)/pytest -q -m gpu tests/gpu

# It goes on where it stopped. MUTANTS="--minutes 30" stops after half an hour; the table is of all results so far.
mutants: $(STAMP) ## Change the source at 500 random places, and see whether a test fails (about an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants $(MUTANTS)
	@$(BIN)/python -m tools.mutants --table

rows: $(STAMP) ## Write the documents that are made from the tests, the presets and the program
	$(BIN)/python tools/rows.py
	$(BIN)/python tools/presets.py
	$(BIN)/python tools/pictures.py
	$(BIN)/python tools/exports.py
	$(BIN)/python tools/catalogue.py

bench: $(STAMP) ## Measure against the peers on this CPU, and compare with the ratios that were accepted
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.cpu --out build/performance.jsonl
	$(BIN)/python -m benchmarks.regress build/performance.jsonl

performance: $(STAMP) ## Write docs/performance.md from the rows that were accepted
	$(BIN)/python -m benchmarks.document

demo: $(STAMP) ## Compare four architectures on text that comes with Python: table, verdict, report (some minutes)
	@$(BIN)/anyformer compare recipes/demo.toml --out runs/demo-$$(date +%H%M%S)

clean: ## Remove .venv and all caches
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
