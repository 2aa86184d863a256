"""What a model is trained on: text as one memory-mapped row of tokens, or sentence pairs; every batch a function of (seed, step).

    prepare(files, out)               texts ─► tokenizer.json · train.bin · held_out.bin · corpus.json
    Corpus.open(out).batch(step, …)   windows of the training part
    Corpus.open(out).windows(…)       the held-out part, once, in order

Nothing remembers where a run is: a run that is taken up again at step s asks for step s and gets what it would have got.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from rheoscope.files import whole_file
from rheoscope.models.text_files import END_OF_TEXT, fragments
from rheoscope.models.token_files import (
    TOKENIZER,
    filling,
    mapped,
    read_manifest,
    token_rows,
    write_manifest,
    write_tokenizer,
)
from rheoscope.models.vocabulary import MASK, byte_pairs, characters, load_tokenizer, starting_with
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASKED = (END_OF_TEXT, MASK)
"""The special tokens of a text whose tokens are masked."""
USES = {END_OF_TEXT: "which divides documents", MASK: "which hides tokens from an encoder"}

IGNORED = -100
"""The target that cross entropy leaves out."""

PIECE = 1 << 15
"""Bytes after which a document is handed to the tokenizer, at the next end of a line: memory stays bounded."""

Progress = Callable[[str, float], object]
"""Called with what is being done and the share that is done."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as tokens: `train` and `held_out`, memory-mapped rows of ids below `vocabulary`.

    Each document begins with ``<|endoftext|>`` (id 0 unless the tokenizer was brought along); a document that is split
    by position goes on in the held-out part without one. `held_out_bytes` counts the UTF-8 bytes of the held-out text,
    so that bits per byte = nats over `windows` / ln 2 / `held_out_bytes`, whatever the tokenizer.
    """

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int
    held_out_bytes: int
    tokenizer: Path

    def __reduce__(self) -> Any:
        """Sent to another process, what is memory-mapped is opened there: files travel by name."""
        if isinstance(self.train, np.memmap):
            return Corpus.open, (self.tokenizer.parent.resolve(),)
        return Corpus, tuple(getattr(self, one.name) for one in fields(self))

    @staticmethod
    def open(directory: Path) -> "Corpus":
        """The corpus that `prepare` wrote; a directory that is half-written or was changed is refused.

        >>> Corpus.open(Path("nowhere"))
        Traceback (most recent call last):
        rheoscope.shapes.RheoscopeError: there is no directory nowhere; type one that prepare(…) made
        """
        told = read_manifest(directory, "text", "prepare")
        train, held_out = (
            mapped(directory / f"{part}.bin", told[part]["tokens"], told["dtype"]) for part in ("train", "held_out")
        )
        return Corpus(train, held_out, told["vocabulary"], told["held_out"]["bytes"], directory / TOKENIZER)

    def batch(
        self, step: int, batch: int, context: int, seed: int = 0, part: int = 0, parts: int = 1
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """Windows of the training part, drawn uniformly, and the same windows one token later: x and its targets y.

        A pure function of its arguments: y[:, :-1] == x[:, 1:], and the `parts` of a step (for gradients that are
        accumulated, or for several machines), one below the other, are the batch of that step whatever their number.

        >>> corpus = Corpus(np.arange(100), np.arange(9), 100, 9, Path("tokenizer.json"))
        >>> x, y = corpus.batch(step=3, batch=2, context=4, seed=1)
        >>> x.shape, bool((y == x + 1).all()), bool((corpus.batch(3, 2, 4, seed=1, part=1, parts=2)[0] == x[1]).all())
        (torch.Size([2, 4]), True, True)
        """
        if len(self.train) <= context:
            raise RheoscopeError(_too_few("training", len(self.train), context))
        if batch < 1 or batch % parts or not 0 <= part < parts:
            raise RheoscopeError(
                f"cannot take part {part} of {parts} of {batch} windows; type a batch that {parts} divides"
            )
        starts = torch.randint(len(self.train) - context, (batch,), generator=seeded(seed, step)).numpy()
        own = starts[part * batch // parts : (part + 1) * batch // parts]
        rows = torch.from_numpy(self.train[own[:, None] + np.arange(context + 1)].astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def rows(self, context: int, batch: int) -> Iterator[Int[Tensor, "b n"]]:
        """The held-out part once, in order, every token: rows of `context` tokens, and what is left over as a shorter one.

        >>> corpus = Corpus(np.arange(9), np.arange(8), 9, 8, Path("tokenizer.json"))
        >>> [x.tolist() for x in corpus.rows(context=3, batch=8)]
        [[[0, 1, 2], [3, 4, 5]], [[6, 7]]]
        """
        if not len(self.held_out):
            raise RheoscopeError(_too_few("held-out", 0, 1))
        whole = len(self.held_out) // context * context
        for start in range(0, whole, context * batch):
            part = self.held_out[start : min(start + context * batch, whole)]
            yield torch.from_numpy(part.astype(np.int64)).view(-1, context)
        if whole < len(self.held_out):
            yield torch.from_numpy(self.held_out[whole:].astype(np.int64))[None]

    def windows(self, context: int, batch: int) -> Iterator[tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]]:
        """The held-out part once, in order: windows that do not overlap, the last one filled up with targets of -100.

        Every held-out token but the first is a target exactly once.

        >>> corpus = Corpus(np.arange(9), np.arange(6), 9, 6, Path("tokenizer.json"))
        >>> [(x.tolist(), y.tolist()) for x, y in corpus.windows(context=3, batch=8)]
        [([[0, 1, 2], [3, 4, 0]], [[1, 2, 3], [4, 5, -100]])]
        """
        if len(self.held_out) < 2:
            raise RheoscopeError(_too_few("held-out", len(self.held_out), 1))
        for start in range(0, len(self.held_out) - 1, context * batch):
            tokens = torch.from_numpy(self.held_out[start : start + context * batch + 1].astype(np.int64))
            short = -(len(tokens) - 1) % context
            x = torch.nn.functional.pad(tokens[:-1], (0, short))
            y = torch.nn.functional.pad(tokens[1:], (0, short), value=IGNORED)
            yield x.view(-1, context), y.view(-1, context)


def prepare(
    files: Sequence[Path],
    out: Path,
    vocabulary: int | str = 4096,
    tokenizer: Path | None = None,
    held_out: float | Sequence[Path] = 0.02,
    progress: Progress | None = None,
    specials: Sequence[str] = (END_OF_TEXT,),
) -> Corpus:
    """Make a corpus of text files: learn a byte-level BPE, write the tokens, keep a part aside that is never trained on.

    A file is UTF-8 text, plain or gzipped: one document, or several between form feeds or ``<|endoftext|>``; or a
    MediaWiki dump: one document an article, as prose. Held out is the last `held_out` share of the documents of the LAST
    file, at least one; where that file is one document, the last share of its characters; or the files that `held_out`
    names. The vocabulary is learned from
    the training part alone. ``vocabulary="characters"`` makes every character of the texts a token;
    `tokenizer`, a tokenizer.json with the `specials`, is used as it is. An encoder, which learns masked tokens, needs
    ``specials=MASKED``.

    `out` holds tokenizer.json, train.bin and held_out.bin (little-endian uint16 or uint32) and corpus.json, written last:
    a directory without it is half-written. Memory stays bounded; the cleaned text lies in `out` while this runs.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("to be or not to be\\n" * 10)
    >>> corpus = prepare([file], file.parent / "out", vocabulary="characters", held_out=0.1)
    >>> len(corpus.train), len(corpus.held_out), corpus.vocabulary  # 171 characters and <|endoftext|>, 19, 8 + 1
    (172, 19, 9)
    """
    share, aside = (held_out, []) if isinstance(held_out, float) else (0.5, [Path(file) for file in held_out])
    files, out = [*map(Path, files), *aside], Path(out)
    if len(files) == len(aside) or not 0 < share < 1:
        raise RheoscopeError(
            f"prepare needs files and a held-out share between 0 and 1, got {len(files) - len(aside)} and {held_out}"
        )
    told = progress or (lambda stage, share: None)
    with filling(out), tempfile.TemporaryFile(dir=out) as spool:
        places = _spooled(files, spool, told)
        train, kept = _parted(spool, places, len(aside)) if aside else _split(spool, places, share, files[-1])
        told("learning the vocabulary", 0.0)
        used = _tokenizer(train, kept, vocabulary, tokenizer, specials)
        write_tokenizer(out, used)
        counts = {
            "train": _write_part(out / "train.bin", train, used, told),
            "held_out": _write_part(out / "held_out.bin", kept, used, told),
        }
        write_manifest(out, "text", used, files, counts)
    return Corpus.open(out)


def seeded(*key: int) -> torch.Generator:
    """A generator whose stream is a function of the key alone, and unrelated for keys that are neighbours."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@dataclass(frozen=True, eq=False)
class _Part:
    """Documents of the spool, by the bytes where they begin and end; `goes_on` where the first one began in another part."""

    spool: IO[bytes]
    spans: list[tuple[int, int]]
    goes_on: bool = False

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.spans)

    def pieces(self, mark: str = "") -> Iterator[str]:
        """The text in pieces that end with a line or with their document; each document begins with `mark`."""
        for at, (start, end) in enumerate(self.spans):
            before = "" if at == 0 and self.goes_on else mark
            while start < end:
                self.spool.seek(start)
                block = self.spool.read(min(PIECE, end - start))
                block += self.spool.readline(end - start - len(block))  # no character and no line is cut in two
                yield before + block.decode()
                before, start = "", start + len(block)


def _spooled(files: list[Path], spool: IO[bytes], told: Progress) -> list[list[tuple[int, int]]]:
    """Write the text of every file to the spool; where each document of each file lies."""
    places: list[list[tuple[int, int]]] = []
    for at, file in enumerate(files):
        told("reading", at / len(files))
        places.append([])
        start, blank = spool.tell(), True
        for piece in fragments(file):
            if piece is not None:
                spool.write(piece.encode())
                blank = blank and not piece.strip()
            elif blank:
                spool.seek(start)
            else:
                places[-1].append((start, spool.tell()))
                start, blank = spool.tell(), True
        if not places[-1]:
            raise RheoscopeError(f"{file} holds no text (white space, or a dump without articles); type another file")
    told("reading", 1.0)
    return places


def _parted(spool: IO[bytes], places: list[list[tuple[int, int]]], aside: int) -> tuple[_Part, _Part]:
    """The training part and the held-out one, which is the last files, `aside` of them."""
    train, kept = ([span for file in part for span in file] for part in (places[:-aside], places[-aside:]))
    return _Part(spool, train), _Part(spool, kept)


def _split(spool: IO[bytes], places: list[list[tuple[int, int]]], share: float, last_file: Path) -> tuple[_Part, _Part]:
    """The training part and the held-out one: the end of the last file, by documents, or by characters if it has one."""
    *before, last = places
    earlier = [span for file in before for span in file]
    if len(last) > 1:
        first = len(last) - max(1, int(len(last) * share))
        return _Part(spool, earlier + last[:first]), _Part(spool, last[first:])
    cut = _byte_at(_Part(spool, last), share)
    start, end = last[0]
    if not start < cut < end:
        raise RheoscopeError(
            f"{last_file} is too short to hold out {share} of it; type a longer file, or a larger share"
        )
    return _Part(spool, [*earlier, (start, cut)]), _Part(spool, [(cut, end)], goes_on=True)


def _byte_at(document: _Part, share: float) -> int:
    """The byte of the spool at which the last `share` of a document's characters begins."""
    left = int(sum(map(len, document.pieces())) * (1 - share))
    at = document.spans[0][0]
    for piece in document.pieces():
        at += len(piece[:left].encode())
        left = max(0, left - len(piece))
    return at


def _tokenizer(
    train: _Part, kept: _Part, vocabulary: int | str, given: Path | None, specials: Sequence[str]
) -> "Tokenizer":
    if given is not None:
        tokenizer = load_tokenizer(Path(given))
        for special in specials:
            if tokenizer.token_to_id(special) is None:
                raise RheoscopeError(f"{given} has no token {special}, {USES[special]}; type another tokenizer")
        return tokenizer
    if vocabulary == "characters":
        made = characters((piece for part in (train, kept) for piece in part.pieces()), specials)
        return starting_with(made, END_OF_TEXT)
    if isinstance(vocabulary, str):
        raise RheoscopeError(f"vocabulary is a number of tokens or 'characters', got {vocabulary!r}; type 4096")
    return starting_with(byte_pairs(train.pieces(), vocabulary, specials), END_OF_TEXT)


def _write_part(path: Path, part: _Part, tokenizer: "Tokenizer", told: Progress) -> dict[str, Any]:
    tokens, done, whole_bytes = 0, 0, part.size
    with whole_file(path) as temporary, temporary.open("wb") as file:
        for row in token_rows(part.pieces(mark=END_OF_TEXT), tokenizer):
            file.write(row.tobytes())
            tokens, done = tokens + len(row), done + 1
            if done % 64 == 0:
                told(f"tokenising {path.stem}", min(1.0, done * PIECE / whole_bytes))
    told(f"tokenising {path.stem}", 1.0)
    return {"tokens": tokens, "bytes": part.size, "documents": len(part.spans)}


def _too_few(part: str, tokens: int, context: int) -> str:
    return (
        f"the {part} part has {tokens:,} tokens, a context of {context:,} needs {context + 1:,}; "
        "type a smaller context, or prepare more text"
    )
