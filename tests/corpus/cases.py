"""Shared cases of the tests of corpus/: a tiny model in a directory, a file of texts, a job, and the bytes of a folder."""

import random
from pathlib import Path
from typing import Any

import torch

from rheoscope.corpus.corpus_job import Job
from rheoscope.models.checkpoint import save
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.models.vocabulary import character_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz "
ANALYSES: dict[str, dict[str, Any]] = {"trajectory": {"draws": 4}, "head_types": {}, "agreement": {"draws": 0}}


def tiny_model(folder: Path) -> str:
    """A two-layer model with a character tokenizer, as a directory."""
    torch.manual_seed(0)
    config = Config(vocabulary=40, width=16, depth=2, heads=2, hidden=24, context=64)
    save(Transformer(config), folder, tokenizer=character_tokenizer([LETTERS], []))
    return str(folder)


def lines(count: int, seed: int = 0) -> list[str]:
    """Texts of 12 to 60 letters."""
    generator = random.Random(seed)
    return ["".join(generator.choices(LETTERS[:-1], k=generator.randint(12, 60))) for _ in range(count)]


def text_file(path: Path, texts: list[str]) -> str:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def job(model: str, texts: str, **changes: Any) -> Job:
    """Three analyses of short texts, in several shards and batches."""
    defaults = {"analyses": ANALYSES, "length": 32, "least": 12, "batch": 128, "shard": 500, "top": 3}
    return Job(**{"texts": (texts,), "model": model} | defaults | changes)


def content(folder: Path) -> dict[str, bytes]:
    """All files of a run except its lock and its cache of checked digests."""
    hidden = (".lock", ".verified.json")
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.name not in hidden)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
