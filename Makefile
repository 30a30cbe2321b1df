# Two commands do all the set-up: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test faults check clean

demo: $(STAMP)
	$(BIN)/python -m lopa.tools.demo.run --output demo-bundle

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadscope tests

# Every damage of every file and field (minutes); make test runs a part. Prints the table.
faults: $(STAMP)
	LOPA_FAULTS=all $(BIN)/python -m pytest -n 2 --dist loadscope tests/faults

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/typecheck.py

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[cpu,export,report,parity,tensorrt-rtx,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build demo-bundle *.egg-info
