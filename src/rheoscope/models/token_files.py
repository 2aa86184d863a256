"""Token files of a prepared corpus: written whole or not at all, described by corpus.json, opened as memory maps."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import atomic_file, created_files
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
SPEC_FILE = "request.json"
CORPUS_FILES = (SPEC_FILE, TOKENIZER, "train.bin", "held_out.bin", "train_ends.bin", "held_out_ends.bin")
"""What a corpus is made of, beside its manifest."""
IN_PROGRESS = ".writing"
"""Lies in a directory while a corpus is written there, and after it where that was broken off."""
TEXTS_PER_BATCH = 32
"""How many pieces of text are tokenised together: enough for every core, few enough to stay within some 100 MB."""


@contextmanager
def writing_corpus(out: Path) -> Iterator[None]:
    """Around the writing of a corpus: the directory exists, a full disk is told in one line, and what was made for nothing goes.

    Files of others that have the names of a corpus's, such as the tokenizer of a model, are not written over.
    """
    check_no_foreign_files(out)
    try:
        with created_files(out):
            (out / IN_PROGRESS).touch()
            yield
            (out / IN_PROGRESS).unlink(missing_ok=True)
    except OSError as error:
        raise RheoscopeError(
            f"cannot write the corpus to {out}: {error.strerror or error}; free some space, or type another directory"
        ) from error
    finally:
        if (out / IN_PROGRESS).exists() and not any((out / name).exists() for name in CORPUS_FILES):
            (out / IN_PROGRESS).unlink()


def check_no_foreign_files(out: Path) -> None:
    """Refuse a directory in which others' files have the names of a corpus's."""
    foreign = next((name for name in CORPUS_FILES if (out / name).exists()), None)
    if foreign is not None and not (out / MANIFEST).exists() and not (out / IN_PROGRESS).exists():
        raise RheoscopeError(f"{out} holds a {foreign} that is of no corpus of Rheoscope; type another directory")


def dtype_for(vocabulary: int) -> np.dtype:
    """The narrowest little-endian integers that hold every token id.

    >>> dtype_for(50257).str, dtype_for(256000).str
    ('<u2', '<u4')
    """
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def tokenise_texts(texts: Iterable[str], tokenizer: "Tokenizer") -> Iterator[np.ndarray]:
    """The token ids of each text, in order; texts are tokenised some at a time, on every core."""
    remaining, dtype = iter(texts), dtype_for(tokenizer.get_vocab_size())
    while chunk := list(islice(remaining, TEXTS_PER_BATCH)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            yield np.asarray(encoding.ids, dtype=dtype)


def write_tokenizer(out: Path, tokenizer: "Tokenizer") -> None:
    """tokenizer.json, the first file to be written: from here until the new corpus.json nobody may open the directory."""
    (out / MANIFEST).unlink(missing_ok=True)
    with atomic_file(out / TOKENIZER) as file:
        file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def write_manifest(
    out: Path, kind: str, tokenizer: "Tokenizer", files: Iterable[Path], part_counts: dict[str, Any]
) -> None:
    """corpus.json, the last file to be written: what the others hold, and how to read them."""
    vocabulary = tokenizer.get_vocab_size()
    manifest = {
        "kind": kind,
        "vocabulary": vocabulary,
        "dtype": dtype_for(vocabulary).str,
        **part_counts,
        "files": [file.name for file in files],
        "tokenizer_sha256": _sha256(out / TOKENIZER),
    }
    with atomic_file(out / MANIFEST) as file:
        file.write_text(json.dumps(manifest, indent=1) + "\n")


def read_manifest(directory: Path, kind: str, prepare: str) -> dict[str, Any]:
    """What corpus.json says, once the directory is known to be whole and of this kind."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise RheoscopeError(f"there is no directory {directory}; type one that {prepare}(…) made")
    if not path.is_file():
        raise RheoscopeError(f"{directory} holds no {MANIFEST}: no corpus, or a half-written one; {prepare} it again")
    try:
        manifest = json.loads(path.read_bytes())
        actual_kind = manifest["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(f"{path} cannot be read ({error}); {prepare} the corpus again") from error
    if actual_kind != kind:
        raise RheoscopeError(f"{directory} holds a corpus of {actual_kind}, expected one of {kind}; {prepare} one")
    tokenizer = directory / TOKENIZER
    if not tokenizer.is_file() or _sha256(tokenizer) != manifest["tokenizer_sha256"]:
        raise RheoscopeError(f"{tokenizer} is not the one this corpus was made with; {prepare} the corpus again")
    return manifest


def memory_map(path: Path, count: int, dtype: str) -> np.ndarray:
    """`count` numbers of a file, not read until they are used; a file of another size is refused."""
    expected_bytes, actual_bytes = count * np.dtype(dtype).itemsize, path.stat().st_size if path.is_file() else 0
    if actual_bytes != expected_bytes:
        raise RheoscopeError(
            f"{path} has {actual_bytes:,} bytes, but {MANIFEST} tells of {expected_bytes:,} ({count:,} numbers); prepare the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
