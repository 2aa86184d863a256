"""Open a tiny random network of every model type of the installed transformers, and prove what was opened.

    python benchmarks/families.py [--sample 40 | --types TYPE … [--store] | --write-docs | --smallest] [--workers N]

Each type is built with 2 to 6 layers of width 64 and opened with `rs.load`. Its weights, its updates, M and F are then compared
with the network's own run in float64, on texts of 60 tokens (`network_proofs.py`). Whatever differs by more than 1e-6 is wrong.
The command fails if anything is wrong, or if a type does not open that opened when the stored results were written.
"""

import json
import multiprocessing
import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from timing import RESULTS, make_parser

TOLERANCE, SECONDS_PER_TYPE, STORE_EVERY = 1e-6, 120, 20
SMALLEST_TYPES = ["granite", "bloom", "mamba"]
FILE, DOCS_PAGE = RESULTS / "families.json", Path(__file__).parents[1] / "docs" / "model_types.md"
OPENED = ("opened", "opened with opaque blocks")
STATUSES = (*OPENED, "refused", "wrong", "not built", "out of scope")


@dataclass(frozen=True)
class Row:
    """The result of one model type."""

    type: str
    status: str
    reason: str = ""
    family: str = ""
    opaque_blocks: str = ""
    error: float | None = None
    """The largest error of all comparisons."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Comparisons that this network does not allow, with the reason."""


def examine(model_type: str) -> Row:
    """Build, open and prove one type."""
    from float64_arithmetic import float64_arithmetic
    from network_proofs import prove
    from tiny_networks import NotBuilt, build_network, scope_problem

    import rheoscope as rs

    try:
        problem = scope_problem(model_type)
    except ImportError as error:
        return Row(model_type, "not built", " ".join(str(error).split())[:160])
    if problem is not None:
        return Row(model_type, "out of scope", problem)
    with float64_arithmetic():
        try:
            network = build_network(model_type)
        except NotBuilt as error:
            return Row(model_type, "not built", str(error))
        try:
            model = rs.load(network)
        except rs.RheoscopeError as error:
            return Row(model_type, "refused", str(error))
        proof = prove(model)
    facts = model.view.facts
    family, opaque_blocks = facts["family"], facts.get("opaque_blocks", "")
    gaps = {name: error for name, error in proof.errors.items() if not error <= TOLERANCE}
    if gaps:
        reason = ", ".join(f"{name} off by {error:.1e}" for name, error in gaps.items())
        return Row(model_type, "wrong", reason, family, opaque_blocks)
    worst = float(f"{max(proof.errors.values()):.0e}")
    return Row(model_type, OPENED[bool(opaque_blocks)], "", family, opaque_blocks, worst, proof.skipped)


def _examine_in_process(model_type: str, results: Connection) -> None:
    try:
        row = examine(model_type)
    except Exception as error:  # whatever else happens is a bug
        row = Row(model_type, "wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    results.send(row)


def examine_all(types: Sequence[str], n_workers: int) -> Iterator[Row]:
    """The results as they arrive. Each type has a process of its own, which is killed after its time."""
    context, pending = multiprocessing.get_context("fork"), list(reversed(types))
    running: dict[Connection, tuple[str, Any, float]] = {}
    while pending or running:
        while pending and len(running) < n_workers:
            model_type = pending.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_examine_in_process, args=(model_type, sender))
            process.start()
            sender.close()
            running[receiver] = model_type, process, time.monotonic()
        ready = wait(list(running), timeout=1.0)
        late = [x for x, (_, _, start) in running.items() if time.monotonic() - start > SECONDS_PER_TYPE]
        for receiver in {*ready, *late}:
            model_type, process, _ = running.pop(receiver)  # type: ignore[index]
            yield _received_row(model_type, receiver if receiver in ready else None)  # type: ignore[arg-type]
            process.kill()
            process.join()


def _received_row(model_type: str, receiver: Connection | None) -> Row:
    if receiver is None:
        return Row(model_type, "wrong", f"no result within {SECONDS_PER_TYPE} s")
    try:
        return receiver.recv()
    except EOFError:
        return Row(model_type, "wrong", "the process ended without a result")


def prepare_process() -> None:
    """Settings that all processes inherit, with the imports that take seconds."""
    import warnings

    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    examine(SMALLEST_TYPES[0])  # imports whatever a type needs


def stored_rows() -> list[Row]:
    if not FILE.is_file():
        return []
    return [Row(**row) for row in json.loads(FILE.read_text(encoding="utf-8"))["types"]]


def fixed_sample(size: int) -> list[str]:
    """Types that opened when the results were stored, evenly spaced in their order, and some that were refused."""
    opened = [row.type for row in stored_rows() if row.status in OPENED]
    refused = [row.type for row in stored_rows() if row.status == "refused"]
    n_refused = min(size // 10, len(refused))
    return _spaced(opened, size - n_refused) + _spaced(refused, n_refused)


def _spaced(names: list[str], size: int) -> list[str]:
    return [names[i * len(names) // size] for i in range(min(size, len(names)))]


def problems(rows: Sequence[Row]) -> list[str]:
    """What is wrong, and what opened when the results were stored and does not open now."""
    opened = {row.type for row in stored_rows() if row.status in OPENED}
    return [
        f"{row.type} is {row.status}: {row.reason}"
        for row in rows
        if row.status == "wrong" or (row.type in opened and row.status not in OPENED)
    ]


# The page of the docs

PAGE = """# Model types

<!-- written by `python benchmarks/families.py`; `--write-docs` writes it again from the stored results -->

`rs.load` opened {n_opened} of the {n_built} model types that take token ids, pixels or sounds and could be built
(transformers {transformers}).
{n_opaque} of them have blocks without M and F, such as Mamba, delta nets, or blocks that read the keys of another. The flow passes
through these blocks, and M and F exist for the other layers.

Each type was built with random parameters, 2 to 6 layers and width 64, and compared with its own eager attention in float64. The
comparison covers attention weights, updates, M, F and the feed-forward part on texts of 60 tokens: beyond the window, in batches
with padding on either side, and at later positions. Images and sounds are random numbers. An encoder-decoder is compared on one pair,
with its cross-attention.
A difference of more than 1e-6 counts as wrong. Wrong types: {n_wrong}.

```sh
python benchmarks/families.py --types llama gemma2      # build, open and prove these types
```

## Types that open

A type with a file is described by [a family](how-to/add_a_family.md). All others are found on a tape of one forward pass.

| model type | described by | blocks without M and F |
|---|---|---|
{opened}

## Types that are refused

| model type | reason |
|---|---|
{refused}

## Types that were not opened

| reason | model types |
|---|---|
{others}
"""


def as_page(rows: Sequence[Row], transformers_version: str) -> str:
    """The page of the docs."""
    by_status = {status: [row for row in rows if row.status == status] for status in STATUSES}
    opened = sorted(by_status[OPENED[0]] + by_status[OPENED[1]], key=lambda row: row.type)
    others: dict[str, list[str]] = {}
    for row in by_status["out of scope"] + by_status["not built"]:
        others.setdefault(row.reason, []).append(f"`{row.type}`")
    return PAGE.format(
        n_opened=len(opened),
        n_built=len(opened) + len(by_status["refused"]) + len(by_status["wrong"]),
        n_opaque=len(by_status[OPENED[1]]),
        n_wrong=len(by_status["wrong"]),
        transformers=transformers_version,
        opened="\n".join(_table_row(f"`{row.type}`", _description(row), row.opaque_blocks) for row in opened),
        refused="\n".join(_table_row(f"`{row.type}`", row.reason) for row in by_status["refused"] + by_status["wrong"]),
        others="\n".join(
            _table_row(reason, ", ".join(types)) for reason, types in sorted(others.items(), key=lambda x: -len(x[1]))
        ),
    )


def _description(row: Row) -> str:
    return "found" if row.family == "found" else f"`family/{row.family}.py`"


def _table_row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def store(rows: Sequence[Row], is_full: bool) -> None:
    """The results of a full run, or new results of some types among the stored ones, and the page."""
    import transformers

    by_type = {} if is_full else {row.type: row for row in stored_rows()}
    by_type |= {row.type: row for row in rows}
    content = {
        "transformers": transformers.__version__,
        "types": [asdict(by_type[model_type]) for model_type in sorted(by_type)],
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_page()


def write_page() -> None:
    version = json.loads(FILE.read_text(encoding="utf-8"))["transformers"]
    DOCS_PAGE.write_text(as_page(stored_rows(), version), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--sample", type=int, metavar="N", help="a fixed sample of N types")
    chosen.add_argument("--types", nargs="+", metavar="TYPE", help="only these types")
    chosen.add_argument("--write-docs", action="store_true", help="write the page of the docs from the stored results")
    parser.add_argument("--store", action="store_true", help="store the results of the chosen types too")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes at a time")
    options = parser.parse_args(argv)
    if options.write_docs:
        return write_page()
    if not options.smallest:
        prepare_process()
    types = _chosen_types(options)
    rows, is_full = list[Row](), not (options.smallest or options.sample or options.types)
    is_stored = is_full or options.store
    for row in map(examine, types) if options.smallest else examine_all(types, options.workers):
        rows.append(row)
        if is_stored and len(rows) % STORE_EVERY == 0:
            store(rows, is_full=False)
        print(
            f"{len(rows)}/{len(types)} {row.type}: {row.status}{f' ({row.reason})' if row.reason else ''}", flush=True
        )
    rows.sort(key=lambda row: row.type)
    counts = Counter(row.status for row in rows)
    print("\n".join(f"{status}: {counts[status]}" for status in STATUSES))
    new_problems = problems(rows)
    if is_stored:
        store(rows, is_full)
    if new_problems:
        raise SystemExit("\n".join(new_problems))
    return None


def _chosen_types(options: Namespace) -> list[str]:
    from tiny_networks import model_types

    if options.smallest:
        return SMALLEST_TYPES
    return options.types or (fixed_sample(options.sample) if options.sample else model_types())


if __name__ == "__main__":
    main()
