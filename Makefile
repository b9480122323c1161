# make demo: what torchweld does for bert-base on this machine.  make test: the tests, but for those of
# make test-slow.  All set up .venv first (once); they need python3 >= 3.10, make and g++.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Two threads a worker, so that parallel code runs in parallel, and passive waiting, because workers outnumber cores.
# Bytecode is kept: each of dozens of processes would compile 700 modules again. The plugins are named, because pytest
# rewrites the assertions of a whole package that brings a plugin, which torchweld is.
TEST_ENV := OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE= PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
PYTEST := -m pytest -p xdist -p hypothesispytest -p torchweld.pytest_plugin -n auto --dist worksteal

.PHONY: demo test test-slow test-gpu lint pure bench site clean
.DEFAULT_GOAL := demo

demo: $(STAMP)
	$(BIN)/torchweld report bert-base

test: lint pure $(STAMP)
	$(TEST_ENV) $(BIN)/python $(PYTEST) --durations=15 -m "not slow" tests --ignore=tests/pure

# Whole models, campaigns, kernels that take seconds to compile.
test-slow: $(STAMP)
	$(TEST_ENV) $(BIN)/python $(PYTEST) --durations=15 -m slow tests --ignore=tests/pure

lint: $(STAMP)
	$(BIN)/ruff check src tests bench

pure: $(STAMP)
	@start=$$(date +%s); $(TEST_ENV) $(BIN)/python $(PYTEST) tests/pure && \
	echo "pure tier: $$(( $$(date +%s) - start )) s (it should stay under 20)"

# Every GPU test, within ten minutes on one GPU.
test-gpu: $(STAMP)
	$(BIN)/python tests/gpu_run.py

bench: $(STAMP)
	if $(BIN)/python -c "import torch, sys; sys.exit(not torch.cuda.is_available())"; \
	then $(BIN)/python bench/gpu.py; else $(BIN)/python bench/cpu.py; fi

# The documentation as pages, in build/site. Links that lead nowhere fail.
site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(STAMP): constraints.txt pyproject.toml
	@command -v g++ >/dev/null || { echo "g++ is missing: install it (Debian, Ubuntu: apt-get install g++)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "$(PYTHON) is missing or older than 3.10: install Python 3.10 or newer, or name one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	$(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install --quiet pip; } 2>/dev/null || \
	{ echo "$(PYTHON) cannot make a virtual environment with pip: install its venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[zoo,test]" triton
	@touch $@

clean:
	rm -rf $(VENV)
