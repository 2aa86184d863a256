"""Files of a prepared corpus: written atomically, described by corpus.json, opened as memory maps."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import atomic_file, created_files
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
SPEC_FILE = "request.json"
CORPUS_FILES = (SPEC_FILE, TOKENIZER, "train.bin", "held_out.bin", "train_ends.bin", "held_out_ends.bin")
"""The files of a corpus besides its manifest."""
IN_PROGRESS = ".writing"
"""A marker that exists while a corpus is written, and remains if writing is interrupted."""
TEXTS_PER_BATCH = 32
"""Texts that are tokenised together: enough for all cores, within about 100 MB of memory."""


@contextmanager
def writing_corpus(out: Path) -> Iterator[None]:
    """Create the directory of a corpus, explain a full disk in one line, and clean up after a failure.

    Files of others with the names of corpus files, such as the tokenizer of a model, are not overwritten.
    """
    check_no_foreign_files(out)
    try:
        with created_files(out):
            (out / IN_PROGRESS).touch()
            yield
            (out / IN_PROGRESS).unlink(missing_ok=True)
    except OSError as error:
        raise RheoscopeError(
            Message(
                "cannot write the corpus to {directory} ({reason}); free some space or choose another directory",
                directory=str(out),
                reason=error.strerror or str(error),
            )
        ) from error
    finally:
        if (out / IN_PROGRESS).exists() and not any((out / name).exists() for name in CORPUS_FILES):
            (out / IN_PROGRESS).unlink()


def check_no_foreign_files(out: Path) -> None:
    """Raise if a directory holds files of others under the names of corpus files."""
    foreign = next((name for name in CORPUS_FILES if (out / name).exists()), None)
    if foreign is not None and not (out / MANIFEST).exists() and not (out / IN_PROGRESS).exists():
        raise RheoscopeError(
            Message(
                "{directory} contains {file}, which belongs to no corpus of Rheoscope; choose another directory",
                directory=str(out),
                file=foreign,
            )
        )


def dtype_for(vocabulary: int) -> np.dtype:
    """The narrowest little-endian integer type that holds every token id.

    >>> dtype_for(50257).str, dtype_for(256000).str
    ('<u2', '<u4')
    """
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def tokenise_texts(texts: Iterable[str], tokenizer: "Tokenizer") -> Iterator[np.ndarray]:
    """The token ids of each text, in order. Texts are tokenised in batches, on all cores."""
    remaining, dtype = iter(texts), dtype_for(tokenizer.get_vocab_size())
    while chunk := list(islice(remaining, TEXTS_PER_BATCH)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            yield np.asarray(encoding.ids, dtype=dtype)


def write_tokenizer(out: Path, tokenizer: "Tokenizer") -> None:
    """Write tokenizer.json, the first file. Until the new corpus.json exists, the corpus cannot be opened."""
    (out / MANIFEST).unlink(missing_ok=True)
    with atomic_file(out / TOKENIZER) as file:
        file.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def write_manifest(
    out: Path, kind: str, tokenizer: "Tokenizer", files: Iterable[Path], part_counts: dict[str, Any]
) -> None:
    """Write corpus.json, the last file: the contents of the other files and how to read them."""
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
    """The content of corpus.json. Raises if the directory is incomplete or of another kind."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise RheoscopeError(
            Message(
                "there is no directory {directory}; choose one that {function}(…) wrote",
                directory=str(directory),
                function=prepare,
            )
        )
    if not path.is_file():
        raise RheoscopeError(
            Message(
                "{directory} has no {file}, so it is not a corpus or it is incomplete; run {function} again",
                directory=str(directory),
                file=MANIFEST,
                function=prepare,
            )
        )
    try:
        manifest = json.loads(path.read_bytes())
        actual_kind = manifest["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(
            Message(
                "cannot read {path} ({reason}); run {function} again",
                path=str(path),
                reason=str(error),
                function=prepare,
            )
        ) from error
    if actual_kind != kind:
        raise RheoscopeError(
            Message(
                "{directory} is a corpus of kind {kind}, expected {expected}; run {function}",
                directory=str(directory),
                kind=actual_kind,
                expected=kind,
                function=prepare,
            )
        )
    tokenizer = directory / TOKENIZER
    if not tokenizer.is_file() or _sha256(tokenizer) != manifest["tokenizer_sha256"]:
        raise RheoscopeError(
            Message(
                "{tokenizer} is not the tokenizer of this corpus; run {function} again",
                tokenizer=str(tokenizer),
                function=prepare,
            )
        )
    return manifest


def memory_map(path: Path, count: int, dtype: str) -> np.ndarray:
    """`count` numbers of a file as a memory map. Raises if the file has another size."""
    expected_bytes, actual_bytes = count * np.dtype(dtype).itemsize, path.stat().st_size if path.is_file() else 0
    if actual_bytes != expected_bytes:
        raise RheoscopeError(
            Message(
                "{path} has {actual:,} bytes, but {manifest} declares {expected:,} ({n:,} numbers); prepare the corpus again",
                path=str(path),
                actual=actual_bytes,
                manifest=MANIFEST,
                expected=expected_bytes,
                n=count,
            )
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
