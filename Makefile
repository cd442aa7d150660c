# Dependencies are installed into .venv from the package index; python3 and make are needed beforehand.
PYTHON ?= python3
PY := .venv/bin/python
OUT ?= out/demo
WORKERS ?= 2
SLOW ?= slow and not exhaustive
# COVERAGE=1 measures the coverage of the fast tests and compares it with its floors.
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist worksteal
# On a busy machine the browser may not answer in time: such a test, and no other, is run once more, and named.
RERUN := --reruns 1 --only-rerun "^TimeoutError: (Page|Frame|Locator|Browser)" -rR
export NO_MKDOCS_2_WARNING = 1
# Workers and the processes that tests start read each other's bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-rest test-all lint docs wheel bench clean

demo: .venv/.plot  ## explain the included images; make demo ALL=1 with the slow methods too
	$(PY) -m vitrail demo --out $(OUT) $(if $(ALL),--all)

test: .venv/.dev  ## lint, types and the fast tests, side by side
	$(MAKE) -j2 lint test-fast

test-all:  ## everything: all tests, doctests, coverage, documentation, wheel
	$(MAKE) test COVERAGE=1
	$(MAKE) test-rest SLOW=slow

test-fast: .venv/.dev
	$(PYTEST) -m "not slow" $(if $(COVERAGE),--cov --cov-report=)
	$(if $(COVERAGE),$(PY) -m coverage run -p .ci/imports.py && $(PY) -m coverage combine -q --append && $(PY) .ci/coverage.py)

test-rest: .venv/.docs  ## what make test leaves out
	$(MAKE) -j2 docs wheel
	$(PYTEST) -m "$(SLOW)" $(RERUN)

lint: .venv/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: .venv/.docs  ## build the documentation into site/
	$(PY) -m mkdocs build --strict

wheel: .venv/.dev  ## build the package and use it in an environment of its own
	$(PY) .ci/wheel.py

bench: .venv/.dev  ## speed and memory as ratios to the bare model
	$(PY) benchmarks/run.py speed --repeats 3 --set shapes=float32:8 --out benchmarks/results

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"

.venv/.plot: .venv/bin/python pyproject.toml
	$(PY) -m pip install --quiet -e ".[plot]"
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml
	$(PY) -m pip install --quiet -e ".[timm,hf,clip,plot,data,bench,ray,sources,web]" --group dev
	@touch $@ .venv/.plot

.venv/.docs: .venv/.dev
	$(PY) -m pip install --quiet --group docs
	@touch $@

clean:
	rm -rf .venv out site dist .coverage
