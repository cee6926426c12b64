# Everything starts here. Each target sets up what it needs in .venv and skips what is there already.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test lint bench peers calibration clean

quickstart: $(VENV)/.run  ## run the main job and write its report (minutes; goes on where it was interrupted)
	$(BIN)/attnbench run experiments/quickstart.toml --out results/my_quickstart --resume

test: lint  ## everything that must hold
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## speed: ratios, and every variant side by side; run it while nothing else runs
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-sort=min \
		--benchmark-columns=min,median,iqr,rounds -s -rs

peers: $(VENV)/.peers  ## the same weights through public packages, then speed against them (12 minutes); likewise
	$(BIN)/pytest tests/peers -rs
	$(BIN)/python tests/peers $(PEERS)

calibration: $(VENV)/.run  ## what the instrument itself is worth (a quarter of an hour); run it while nothing else runs
	$(BIN)/python -m attnbench.calibration -o docs/calibration.md

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .hypothesis

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit("attnbench needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/pip pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e ".[test,dev]"
	touch $@

$(VENV)/.peers: $(VENV)/.test
	$(PIP) -e ".[test,dev,peers]"
	touch $@
