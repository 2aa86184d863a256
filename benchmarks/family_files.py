"""What a family file saves: the time of `rs.load` and of a trace without the file, relative to those with it.

    RHEOSCOPE_REAL_MODELS=FOLDER python benchmarks/family_files.py    the checkpoints of a folder, then tiny ones of every type with a file
    python benchmarks/family_files.py --smallest                      one tiny checkpoint, seconds, nothing is stored
    python benchmarks/family_files.py --write-docs                    the table of the documentation, from the stored results

All times are CPU seconds. A ratio is a median over interleaved rounds, with half of its interquartile range. Without its file, a type is
found: on a recorded forward pass when it is first opened, and on the stored tape when it is opened again. The View of both descriptions
is the same (tests/pretrained/finder/test_same_as_families.py), and both are proved on every opening.
"""

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from timing import RESULTS, interleaved, make_parser, ratio, store_rows

import rheoscope as rs
from rheoscope.pretrained import families
from rheoscope.pretrained.checkpoint import model_class, silence_libraries
from rheoscope.pretrained.families import FAMILIES
from rheoscope.pretrained.finder.tape_file import cache_folder
from rheoscope.space.trace import Trace

FILE, DOCS_PAGE = RESULTS / "family_files.json", Path(__file__).parents[1] / "docs" / "how-to" / "add_a_family.md"
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 199}
GROUPED = {**TINY, "num_key_value_heads": 2}
OPT = {name: x for name, x in TINY.items() if name != "intermediate_size"} | {"ffn_dim": 96, "word_embed_proj_dim": 64}
CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": lambda: hf.BertConfig(**TINY),
    "gemma3_text": lambda: hf.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=512),
    "gpt2": lambda: hf.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=199),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**TINY),
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "mistral": lambda: hf.MistralConfig(**GROUPED, sliding_window=512),
    "opt": lambda: hf.OPTConfig(**OPT),
    "phi3": lambda: hf.Phi3Config(**GROUPED, pad_token_id=0),
    "qwen2": lambda: hf.Qwen2Config(**GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED, head_dim=16),
    "roberta": lambda: hf.RobertaConfig(**TINY),
}
"""A tiny config of every type with a family file."""
LENGTH = 64
"""Tokens of the traced text."""


def make_tiny(name: str, folder: Path) -> Path:
    """A checkpoint of a type with its initial weights."""
    config = CONFIGS[name]()
    model_class(config)(config).save_pretrained(folder / name)
    return folder / name


def real_checkpoints() -> list[Path]:
    """The checkpoints of RHEOSCOPE_REAL_MODELS whose types have a family file."""
    configs = sorted(Path(os.environ.get("RHEOSCOPE_REAL_MODELS", ".")).glob("*/config.json"))
    return [x.parent for x in configs if json.loads(x.read_text(encoding="utf-8")).get("model_type") in FAMILIES]


@contextmanager
def no_family_files() -> Iterator[None]:
    """Inside, every type is found."""
    families.FAMILIES = {}
    try:
        yield
    finally:
        families.FAMILIES = FAMILIES


def find(source: Path, is_first: bool) -> Any:
    """Open a checkpoint without its family file: for the first time, or again."""
    if is_first:
        shutil.rmtree(cache_folder(), ignore_errors=True)
    with no_family_files():
        return rs.load(source)


def all_weights(trace: Trace) -> list[Any]:
    return [heads.all_weights(trace.layer_input(layer)) for layer, heads in enumerate(trace.view.layer_heads)]


def all_displacements(trace: Trace) -> list[Any]:
    return [trace.displacements(layer) for layer in range(trace.view.layers)]


def compare(source: Path, rounds: int) -> dict[str, Any]:
    """The ratios of one checkpoint."""
    with silence_libraries():
        openings = {
            "written": partial(rs.load, source),
            "first": partial(find, source, True),
            "again": partial(find, source, False),
        }
        seconds = interleaved(openings, rounds, warm=1, clock=time.process_time)
        written, unwritten = rs.load(source), find(source, False)
    row: dict[str, Any] = {"name": source.name, "type": written.view.facts["type"], "layers": written.view.layers}
    row["seconds"] = statistics.median(seconds["written"])
    for name in ("first", "again"):
        row[name], row[f"noise of {name}"] = ratio(seconds, "written", name)
    ids = torch.randint(3, len(written.view.embed), (LENGTH,), generator=torch.Generator().manual_seed(0))
    traces = {"written": written.trace(ids), "found": unwritten.trace(ids)}
    computations: dict[str, dict[str, Callable[[], object]]] = {
        "trace": {"written": partial(written.trace, ids), "found": partial(unwritten.trace, ids)},
        "weights": {name: partial(all_weights, trace) for name, trace in traces.items()},
        "displacements": {name: partial(all_displacements, trace) for name, trace in traces.items()},
    }
    for name, methods in computations.items():
        row[name], row[f"noise of {name}"] = ratio(
            interleaved(methods, 2 * rounds, clock=time.process_time), "written", "found"
        )
    return row


RATIOS = {
    "first": "first opening",
    "again": "later openings",
    "trace": "trace",
    "weights": "weights",
    "displacements": "displacements",
}


def as_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the documentation."""
    header = ["checkpoint", "layers", "opening with the file", *RATIOS.values()]
    lines = [
        [f"`{row['name']}`", str(row["layers"]), f"{row['seconds']:.2f} s", *(f"{row[name]:.2f}" for name in RATIOS)]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines])


def stored_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    return rows


def write_docs() -> None:
    """Replace the table of the page by that of the stored results."""
    page = DOCS_PAGE.read_text(encoding="utf-8")
    start = page.index("| checkpoint |")
    end = page.index("\n\n", start)
    DOCS_PAGE.write_text(page[:start] + as_table(stored_rows()) + page[end:], encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the table of the documentation, measure nothing"
    )
    options = parser.parse_args(argv)
    if options.write_docs:
        write_docs()
        return
    rounds, before = 2 if options.smallest else 5 if options.quick else 11, os.environ.get("XDG_CACHE_HOME")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            names = list(CONFIGS)[: 1 if options.smallest else None]
            real = [] if options.smallest else real_checkpoints()
            for source in [*real, *(make_tiny(name, Path(folder)) for name in names)]:
                row = compare(source, rounds)
                rows.append(row)
                numbers = ", ".join(f"{name} {row[name]:.2f} ± {row[f'noise of {name}']:.2f}" for name in RATIOS)
                print(f"{row['name']:16} {row['seconds']:.3f} s; {numbers}", flush=True)
        finally:
            os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)
    store_rows("family_files", rows, options.smallest)


if __name__ == "__main__":
    main()
