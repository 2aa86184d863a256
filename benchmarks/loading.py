"""How fast models open: `rs.load` relative to transformers alone, for real checkpoints and for tiny random ones.

    RHEOSCOPE_REAL_MODELS=FOLDER python benchmarks/loading.py     every checkpoint of a folder, then tiny ones
    python benchmarks/loading.py --smallest                       two tiny checkpoints, seconds, nothing is stored

All times are CPU seconds, as medians over interleaved rounds. What an opening leaves behind is collected before the next one. A ratio is
that of `rs.load` (weights, digest, description, proof,
tokenizer) divided by that of `from_pretrained` for the same weights and tokenizer, with half of its interquartile range. Tiny checkpoints
of one size show what a type costs: those that a family file describes, and those that are found.

A type that is found is recorded when it is first opened, and its tape is stored. Every round opens it without a stored tape and then with
one, as a new process would. Every type needs a digest of all weights and a proof. What a found type needs besides is its description.
"""

import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from timing import interleaved, make_parser, ratio, store_rows

import rheoscope as rs
from rheoscope.pretrained import build_view, proven_model
from rheoscope.pretrained.checkpoint import model_class, silence_libraries
from rheoscope.pretrained.finder.tape_file import cache_folder

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 199}
PAIR_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 0}
MARIAN = {"d_model": 64} | {
    f"{side}_{size}": value
    for side in ("encoder", "decoder")
    for size, value in {"layers": 4, "attention_heads": 4, "ffn_dim": 96}.items()
}
TINY_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**TINY),
    "granite": lambda: hf.GraniteConfig(**TINY),
    "mistral": lambda: hf.MistralConfig(**TINY, num_key_value_heads=2, sliding_window=512),
    "gpt2": lambda: hf.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=199),
    "bert": lambda: hf.BertConfig(**TINY),
    "olmo2": lambda: hf.Olmo2Config(**TINY, num_key_value_heads=2),
    "gemma2": lambda: hf.Gemma2Config(**TINY, num_key_value_heads=2, head_dim=16, sliding_window=512),
    "bloom": lambda: hf.BloomConfig(hidden_size=64, n_layer=4, n_head=4, vocab_size=199),
    "distilbert": lambda: hf.DistilBertConfig(dim=64, hidden_dim=96, n_layers=4, n_heads=4, vocab_size=199),
    "t5": lambda: hf.T5Config(**PAIR_IDS, d_model=64, d_kv=16, d_ff=96, num_layers=4, num_heads=4, vocab_size=199),
    "marian": lambda: hf.MarianConfig(**PAIR_IDS, **MARIAN, vocab_size=199, max_position_embeddings=128),
    "granite of 40 layers": lambda: hf.GraniteConfig(**TINY | {"num_hidden_layers": 40}),
    "olmo2 of 32 layers": lambda: hf.Olmo2Config(**TINY | {"num_hidden_layers": 32}, num_key_value_heads=2),
}
"""Types with a family file and types without one."""


def make_tiny(name: str, folder: Path) -> Path:
    """A checkpoint of a type with its initial weights."""
    config = TINY_CONFIGS[name]()
    model_class(config)(config).save_pretrained(folder / name)
    return folder / name


def load_plainly(source: Path) -> Any:
    """What users of transformers call: weights in float32, and the tokenizer if there is one."""
    config = hf.AutoConfig.from_pretrained(source)
    network = model_class(config).from_pretrained(source, dtype=torch.float32)
    has_tokenizer = any(source.glob("token*")) or any(source.glob("vocab*"))
    return network.eval(), hf.AutoTokenizer.from_pretrained(source) if has_tokenizer else None


PARTS = {
    "digest": (build_view, "facts"),
    "description": (proven_model, "describe_model"),
    "proof": (proven_model, "certify"),
}
"""The parts of opening a model, and the functions that do them. The description contains the digest."""


@contextmanager
def measured(seconds: dict[str, list[float]]) -> Iterator[None]:
    """Inside, the CPU seconds of the parts of every opening."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.process_time()
            result = function(*args)
            seconds[name].append(time.process_time() - start)
            return result

        return call

    originals = {name: getattr(module, function) for name, (module, function) in PARTS.items()}
    for name, (module, function) in PARTS.items():
        setattr(module, function, timed(name, originals[name]))
    try:
        yield
    finally:
        for name, (module, function) in PARTS.items():
            setattr(module, function, originals[name])


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Inside, tapes are stored in this folder."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


def open_first(source: Path) -> Any:
    """Open a checkpoint of a type that was never opened before."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    return rs.load(source)


def compare(source: Path, rounds: int) -> dict[str, Any]:
    """The times of one checkpoint."""
    parts: dict[str, list[float]] = {name: [] for name in PARTS}
    with silence_libraries(), measured(parts):
        family = rs.load(source).view.facts["family"]
        methods = {
            "transformers": lambda: load_plainly(source),
            "first": lambda: open_first(source),
            "again": lambda: rs.load(source),
        }
        seconds = interleaved(methods, rounds, warm=1, clock=time.process_time, before=gc.collect)
    own = [d - h for d, h in zip(parts["description"], parts["digest"], strict=True)][-2 * rounds :]
    inverse, noise = ratio(seconds, "transformers", "again")
    median = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "name": source.name,
        "described_by": family,
        **median,
        "more_first": median["first"] - median["transformers"],
        "more_again": median["again"] - median["transformers"],
        "digest": statistics.median(parts["digest"][-2 * rounds :]),
        "first_description": statistics.median(own[::2]),
        "description": statistics.median(own[1::2]),
        "proof": statistics.median(parts["proof"][-2 * rounds :]),
        "ratio": inverse,
        "noise": noise,
    }


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    rounds = 2 if options.smallest else 5 if options.quick else 11
    real = [] if options.smallest else sorted(Path(os.environ.get("RHEOSCOPE_REAL_MODELS", ".")).glob("*/config.json"))
    names = list(TINY_CONFIGS)[: 2 if options.smallest else None]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, own_cache(Path(folder) / "cache"):
        sources = [*(file.parent for file in real), *(make_tiny(name, Path(folder)) for name in names)]
        for source in sources:
            row = compare(source, rounds)
            rows.append(row)
            store_rows("loading", rows, options.smallest)
            print(
                f"{row['name']:24} {row['described_by']:8} transformers {row['transformers']:.2f} s, rs.load {row['more_first']:.2f} s "
                f"more the first time, {row['more_again']:.2f} s more again (digest {row['digest']:.2f}, description first "
                f"{row['first_description']:.2f}, again {row['description']:.2f}, proof {row['proof']:.2f}); "
                f"ratio {row['ratio']:.2f} ± {row['noise']:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
