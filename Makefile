# Everything is installed into .venv from the package index; python3 and make are all that is needed beforehand.
PYTHON ?= python3
PY := .venv/bin/python
OUT ?= out/demo
export NO_MKDOCS_2_WARNING = 1

.PHONY: demo test lint docs bench clean

demo: .venv/.plot  ## explain the embedded scenes with every method and say where the pictures are
	$(PY) -m vitrail demo --out $(OUT)

test: .venv/.dev lint  ## lint, types, tests, examples in docstrings and docs
	$(PY) -m pytest -n 2 --dist worksteal

lint: .venv/.dev
	$(PY) -m ruff check .
	$(PY) -m mypy

docs: .venv/.docs  ## build the documentation into site/
	$(PY) -m mkdocs build --strict

bench: .venv/.dev  ## speed and memory as ratios to the bare model
	$(PY) benchmarks/speed.py --device cpu --batches 8 --repeats 3 --out benchmarks/results/speed-cpu.json

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"

.venv/.plot: .venv/bin/python pyproject.toml
	$(PY) -m pip install --quiet -e ".[plot]"
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml
	$(PY) -m pip install --quiet -e ".[timm,hf,clip,plot,data,bench,ray,web]" --group dev
	@touch $@ .venv/.plot

.venv/.docs: .venv/.dev
	$(PY) -m pip install --quiet --group docs
	@touch $@

clean:
	rm -rf .venv out site dist
