"""Token files of a prepared corpus: written whole or not at all, described by corpus.json, opened as memory maps."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import made, whole_file
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
REQUEST = "request.json"
PARTS = (REQUEST, TOKENIZER, "train.bin", "held_out.bin", "train_ends.bin", "held_out_ends.bin")
"""What a corpus is made of, beside its manifest."""
BEGUN = ".writing"
"""Lies in a directory while a corpus is written there, and after it where that was broken off."""
TEXTS_AT_ONCE = 32
"""How many pieces of text are tokenised together: enough for every core, few enough to stay within some 100 MB."""


@contextmanager
def filling(out: Path) -> Iterator[None]:
    """Around the writing of a corpus: the directory exists, a full disk is told in one line, and what was made for nothing goes.

    Files of others that have the names of a corpus's, such as the tokenizer of a model, are not written over.
    """
    check_own(out)
    try:
        with made(out):
            (out / BEGUN).touch()
            yield
            (out / BEGUN).unlink(missing_ok=True)
    except OSError as error:
        raise RheoscopeError(
            f"cannot write the corpus to {out}: {error.strerror or error}; free some space, or type another directory"
        ) from error
    finally:
        if (out / BEGUN).exists() and not any((out / name).exists() for name in PARTS):
            (out / BEGUN).unlink()


def check_own(out: Path) -> None:
    """Refuse a directory in which others' files have the names of a corpus's."""
    strange = next((name for name in PARTS if (out / name).exists()), None)
    if strange is not None and not (out / MANIFEST).exists() and not (out / BEGUN).exists():
        raise RheoscopeError(f"{out} holds a {strange} that is of no corpus of Rheoscope; type another directory")


def dtype_for(vocabulary: int) -> np.dtype:
    """The narrowest little-endian integers that hold every token id.

    >>> dtype_for(50257).str, dtype_for(256000).str
    ('<u2', '<u4')
    """
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def token_rows(texts: Iterable[str], tokenizer: "Tokenizer") -> Iterator[np.ndarray]:
    """The token ids of each text, in order; texts are tokenised some at a time, on every core."""
    stream, dtype = iter(texts), dtype_for(tokenizer.get_vocab_size())
    while group := list(islice(stream, TEXTS_AT_ONCE)):
        for encoding in tokenizer.encode_batch_fast(group, add_special_tokens=False):
            yield np.asarray(encoding.ids, dtype=dtype)


def write_tokenizer(out: Path, tokenizer: "Tokenizer") -> None:
    """tokenizer.json, the first file to be written: from here until the new corpus.json nobody may open the directory."""
    (out / MANIFEST).unlink(missing_ok=True)
    with whole_file(out / TOKENIZER) as file:
        file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def write_manifest(out: Path, kind: str, tokenizer: "Tokenizer", files: Iterable[Path], parts: dict[str, Any]) -> None:
    """corpus.json, the last file to be written: what the others hold, and how to read them."""
    vocabulary = tokenizer.get_vocab_size()
    manifest = {
        "kind": kind,
        "vocabulary": vocabulary,
        "dtype": dtype_for(vocabulary).str,
        **parts,
        "files": [file.name for file in files],
        "tokenizer_sha256": _sha(out / TOKENIZER),
    }
    with whole_file(out / MANIFEST) as file:
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
        found = manifest["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(f"{path} cannot be read ({error}); {prepare} the corpus again") from error
    if found != kind:
        raise RheoscopeError(f"{directory} holds a corpus of {found}, expected one of {kind}; {prepare} one")
    tokenizer = directory / TOKENIZER
    if not tokenizer.is_file() or _sha(tokenizer) != manifest["tokenizer_sha256"]:
        raise RheoscopeError(f"{tokenizer} is not the one this corpus was made with; {prepare} the corpus again")
    return manifest


def mapped(path: Path, count: int, dtype: str) -> np.ndarray:
    """`count` numbers of a file, not read until they are used; a file of another size is refused."""
    expected, found = count * np.dtype(dtype).itemsize, path.stat().st_size if path.is_file() else 0
    if found != expected:
        raise RheoscopeError(
            f"{path} has {found:,} bytes, but {MANIFEST} tells of {expected:,} ({count:,} numbers); prepare the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype)


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
