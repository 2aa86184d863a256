"""Training corpora: text as one memory-mapped row of tokens. Every batch is a function of (seed, step).

    prepare(files, out)                        texts ─► tokenizer.json · train.bin · held_out.bin · corpus.json
    Corpus.open(out).batch(step, …)            windows of the training part
    Corpus.open(out).held_out_windows(…)       the held-out part, once, in order

The corpus has no state. A run that resumes at step s requests the batch of step s.
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

from rheoscope.files import atomic_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, plural
from rheoscope.models.config import set_fields
from rheoscope.models.text_files import END_OF_TEXT, read_fragments
from rheoscope.models.token_files import (
    TOKENIZER,
    memory_map,
    read_manifest,
    tokenise_texts,
    write_manifest,
    write_tokenizer,
    writing_corpus,
)
from rheoscope.models.vocabulary import MASK_TOKEN, character_tokenizer, load_tokenizer, train_bpe, with_start_token
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASKED_SPECIALS = (END_OF_TEXT, MASK_TOKEN)
"""The special tokens of a corpus for masked prediction."""
SPECIAL_TOKEN_USES = {END_OF_TEXT: Message("separates documents"), MASK_TOKEN: Message("masks tokens for an encoder")}
"""The use of each special token, as a predicate."""

IGNORE_INDEX = -100
"""The target that the cross entropy ignores."""

CHUNK_BYTES = 1 << 15
"""The bytes after which a document is passed to the tokenizer, at the next line end, to bound memory."""

OnProgress = Callable[[str, float], object]
"""Called with the current stage and the fraction that is done."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as tokens: `train` and `held_out` are memory-mapped rows of ids below `vocabulary`.

    Each document starts with ``<|endoftext|>`` (id 0 unless the tokenizer was supplied). A document that is split by position
    continues in the held-out part without it. `held_out_bytes` counts the UTF-8 bytes of the held-out text, so bits per byte
    = nats over `held_out_windows` / ln 2 / `held_out_bytes` for any tokenizer.
    """

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int
    held_out_bytes: int
    tokenizer: Path

    def __reduce__(self) -> Any:
        """Pickle a memory-mapped corpus as its directory, which the other process opens."""
        if isinstance(self.train, np.memmap):
            return Corpus.open, (self.tokenizer.parent.resolve(),)
        return Corpus, tuple(getattr(self, corpus_field.name) for corpus_field in fields(self))

    @staticmethod
    def open(directory: Path) -> "Corpus":
        """The corpus that `prepare` wrote. Raises if the directory is incomplete or was changed.

        >>> Corpus.open(Path("nowhere"))
        Traceback (most recent call last):
        rheoscope.shapes.RheoscopeError: there is no directory nowhere; choose one that prepare(…) wrote
        """
        manifest = read_manifest(directory, "text", "prepare")
        train, held_out = (
            memory_map(directory / f"{part}.bin", manifest[part]["tokens"], manifest["dtype"])
            for part in ("train", "held_out")
        )
        return Corpus(train, held_out, manifest["vocabulary"], manifest["held_out"]["bytes"], directory / TOKENIZER)

    def batch(
        self, step: int, batch_size: int, context: int, seed: int = 0, part: int = 0, n_parts: int = 1
    ) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """Uniformly sampled windows of the training part, and the same windows one token later: x and its targets y.

        A pure function of its arguments, with y[:, :-1] == x[:, 1:]. The parts of a step (for gradient accumulation or several
        machines) stack to the batch of that step, whatever `n_parts` is.

        >>> corpus = Corpus(np.arange(100), np.arange(9), 100, 9, Path("tokenizer.json"))
        >>> x, y = corpus.batch(step=3, batch_size=2, context=4, seed=1)
        >>> x.shape, bool((y == x + 1).all()), bool((corpus.batch(3, 2, 4, seed=1, part=1, n_parts=2)[0] == x[1]).all())
        (torch.Size([2, 4]), True, True)
        """
        if len(self.train) <= context:
            raise _too_few_tokens(Message("training"), len(self.train), context)
        if batch_size < 1 or batch_size % n_parts or not 0 <= part < n_parts:
            raise RheoscopeError(
                Message(
                    "cannot take part {part} of {n_parts} from a batch of {n}",
                    n=batch_size,
                    n_parts=n_parts,
                    part=part,
                ),
                Advice(f"batch_size={max(n_parts, 1)}"),
            )
        starts = torch.randint(len(self.train) - context, (batch_size,), generator=seeded_generator(seed, step)).numpy()
        part_starts = starts[part * batch_size // n_parts : (part + 1) * batch_size // n_parts]
        rows = torch.from_numpy(self.train[part_starts[:, None] + np.arange(context + 1)].astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def held_out_rows(self, context: int, batch_size: int) -> Iterator[Int[Tensor, "b n"]]:
        """Every held-out token once, in order: rows of `context` tokens, and a shorter last row.

        >>> corpus = Corpus(np.arange(9), np.arange(8), 9, 8, Path("tokenizer.json"))
        >>> [x.tolist() for x in corpus.held_out_rows(context=3, batch_size=8)]
        [[[0, 1, 2], [3, 4, 5]], [[6, 7]]]
        """
        if not len(self.held_out):
            raise _too_few_tokens(Message("held-out"), 0, 1)
        n_full = len(self.held_out) // context * context
        for start in range(0, n_full, context * batch_size):
            chunk = self.held_out[start : min(start + context * batch_size, n_full)]
            yield torch.from_numpy(chunk.astype(np.int64)).view(-1, context)
        if n_full < len(self.held_out):
            yield torch.from_numpy(self.held_out[n_full:].astype(np.int64))[None]

    def held_out_windows(
        self, context: int, batch_size: int
    ) -> Iterator[tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]]:
        """The held-out part once, in order, as disjoint windows. The last one is padded with targets of -100.

        Every held-out token except the first is a target exactly once.

        >>> corpus = Corpus(np.arange(9), np.arange(6), 9, 6, Path("tokenizer.json"))
        >>> [(x.tolist(), y.tolist()) for x, y in corpus.held_out_windows(context=3, batch_size=8)]
        [([[0, 1, 2], [3, 4, 0]], [[1, 2, 3], [4, 5, -100]])]
        """
        if len(self.held_out) < 2:
            raise _too_few_tokens(Message("held-out"), len(self.held_out), 1)
        for start in range(0, len(self.held_out) - 1, context * batch_size):
            tokens = torch.from_numpy(self.held_out[start : start + context * batch_size + 1].astype(np.int64))
            n_padding = -(len(tokens) - 1) % context
            x = torch.nn.functional.pad(tokens[:-1], (0, n_padding))
            y = torch.nn.functional.pad(tokens[1:], (0, n_padding), value=IGNORE_INDEX)
            yield x.view(-1, context), y.view(-1, context)


def prepare(
    files: Sequence[Path],
    out: Path,
    vocabulary: int | str = 4096,
    tokenizer: Path | None = None,
    held_out: float | Sequence[Path] = 0.02,
    progress: OnProgress | None = None,
    specials: Sequence[str] = (END_OF_TEXT,),
) -> Corpus:
    """Tokenise text files into a corpus: train a byte-level BPE, write the tokens, and hold out a part.

    **Settings** A file is UTF-8 text, plain or gzipped. It is one document, or several separated by form feeds or
    ``<|endoftext|>``. A MediaWiki dump has one document of prose per article. `held_out` is a fraction of the documents of the LAST
    file, at least one, or of its characters if the file is one document. It may also name held-out files. The vocabulary is learned
    from the training part only. ``vocabulary="characters"`` makes every character a token. `tokenizer`, a tokenizer.json with the
    `specials`, is used unchanged. An encoder, which learns masked tokens, needs ``specials=MASKED_SPECIALS``.

    **Returns** The corpus. `out` holds tokenizer.json, train.bin and held_out.bin (little-endian uint16 or uint32), and last
    corpus.json. A directory without corpus.json is incomplete. Memory is bounded, because the cleaned text is spooled to `out`.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("to be or not to be\\n" * 10)
    >>> corpus = prepare([file], file.parent / "out", vocabulary="characters", held_out=0.1)
    >>> len(corpus.train), len(corpus.held_out), corpus.vocabulary  # 171 characters and <|endoftext|>, 19, 8 + 1
    (172, 19, 9)
    """
    fraction, held_out_files = (
        (held_out, []) if isinstance(held_out, float) else (0.5, [Path(file) for file in held_out])
    )
    files, out = [*map(Path, files), *held_out_files], Path(out)
    if len(files) == len(held_out_files) or not 0 < fraction < 1:
        raise RheoscopeError(
            Message(
                "prepare needs files and a held-out fraction between 0 and 1, got {n} and {held_out}",
                n=len(files) - len(held_out_files),
                held_out=str(held_out),
            ),
            set_fields(held_out=0.02),
        )
    on_progress = progress or (lambda stage, fraction: None)
    with writing_corpus(out), tempfile.TemporaryFile(dir=out) as spool:
        spans_by_file = _spool_texts(files, spool, on_progress)
        train_part, held_out_part = (
            _split_by_files(spool, spans_by_file, len(held_out_files))
            if held_out_files
            else _split_last_file(spool, spans_by_file, fraction, files[-1])
        )
        on_progress(Message("training the tokenizer"), 0.0)
        corpus_tokenizer = _make_tokenizer(train_part, held_out_part, vocabulary, tokenizer, specials)
        write_tokenizer(out, corpus_tokenizer)
        counts = {
            "train": _write_part(out / "train.bin", train_part, corpus_tokenizer, on_progress),
            "held_out": _write_part(out / "held_out.bin", held_out_part, corpus_tokenizer, on_progress),
        }
        write_manifest(out, "text", corpus_tokenizer, files, counts)
    return Corpus.open(out)


def seeded_generator(*key: int) -> torch.Generator:
    """A generator that depends only on the key. Neighbouring keys give unrelated streams."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@dataclass(frozen=True, eq=False)
class _CorpusPart:
    """Documents of the spool as byte ranges. `is_continuation` means that the first one starts in the other part."""

    spool: IO[bytes]
    spans: list[tuple[int, int]]
    is_continuation: bool = False

    @property
    def n_bytes(self) -> int:
        return sum(end - start for start, end in self.spans)

    def text_chunks(self, separator: str = "") -> Iterator[str]:
        """The text in chunks that end with a line or a document. Each document starts with `separator`."""
        for index, (start, end) in enumerate(self.spans):
            prefix = "" if index == 0 and self.is_continuation else separator
            while start < end:
                self.spool.seek(start)
                chunk = self.spool.read(min(CHUNK_BYTES, end - start))
                chunk += self.spool.readline(end - start - len(chunk))  # chunks end at line ends
                yield prefix + chunk.decode()
                prefix, start = "", start + len(chunk)


def _spool_texts(files: list[Path], spool: IO[bytes], on_progress: OnProgress) -> list[list[tuple[int, int]]]:
    """Write the text of every file to the spool, and return the byte ranges of the documents of each file."""
    spans_by_file: list[list[tuple[int, int]]] = []
    for index, file in enumerate(files):
        on_progress(Message("reading"), index / len(files))
        spans_by_file.append([])
        start, is_blank = spool.tell(), True
        for fragment in read_fragments(file):
            if fragment is not None:
                spool.write(fragment.encode())
                is_blank = is_blank and not fragment.strip()
            elif is_blank:
                spool.seek(start)
            else:
                spans_by_file[-1].append((start, spool.tell()))
                start, is_blank = spool.tell(), True
        if not spans_by_file[-1]:
            raise RheoscopeError(
                Message(
                    "{file} has no text (only white space, or a dump without articles); choose another file",
                    file=str(file),
                )
            )
    on_progress(Message("reading"), 1.0)
    return spans_by_file


def _split_by_files(
    spool: IO[bytes], spans_by_file: list[list[tuple[int, int]]], n_held_out: int
) -> tuple[_CorpusPart, _CorpusPart]:
    """The training part and the held-out part, which is the last `n_held_out` files."""
    train, held_out = (
        [span for file in part for span in file] for part in (spans_by_file[:-n_held_out], spans_by_file[-n_held_out:])
    )
    return _CorpusPart(spool, train), _CorpusPart(spool, held_out)


def _split_last_file(
    spool: IO[bytes], spans_by_file: list[list[tuple[int, int]]], fraction: float, last_file: Path
) -> tuple[_CorpusPart, _CorpusPart]:
    """The training part and the held-out part: the end of the last file, by documents or by characters."""
    *earlier_files, last_spans = spans_by_file
    earlier_spans = [span for file in earlier_files for span in file]
    if len(last_spans) > 1:
        first_held_out = len(last_spans) - max(1, int(len(last_spans) * fraction))
        return _CorpusPart(spool, earlier_spans + last_spans[:first_held_out]), _CorpusPart(
            spool, last_spans[first_held_out:]
        )
    cut = _split_byte(_CorpusPart(spool, last_spans), fraction)
    start, end = last_spans[0]
    if not start < cut < end:
        raise RheoscopeError(
            Message(
                "{file} is too short to hold out a fraction of {fraction}; use a longer file or a larger fraction",
                file=str(last_file),
                fraction=fraction,
            )
        )
    return _CorpusPart(spool, [*earlier_spans, (start, cut)]), _CorpusPart(spool, [(cut, end)], is_continuation=True)


def _split_byte(document: _CorpusPart, fraction: float) -> int:
    """The byte of the spool at which the last `fraction` of a document's characters starts."""
    n_remaining = int(sum(map(len, document.text_chunks())) * (1 - fraction))
    offset = document.spans[0][0]
    for chunk in document.text_chunks():
        offset += len(chunk[:n_remaining].encode())
        n_remaining = max(0, n_remaining - len(chunk))
    return offset


def _make_tokenizer(
    train: _CorpusPart,
    held_out: _CorpusPart,
    vocabulary: int | str,
    tokenizer_path: Path | None,
    specials: Sequence[str],
) -> "Tokenizer":
    if tokenizer_path is not None:
        tokenizer = load_tokenizer(Path(tokenizer_path))
        for special in specials:
            if tokenizer.token_to_id(special) is None:
                raise RheoscopeError(
                    Message(
                        "{tokenizer} has no token {token}, which {use}; choose another tokenizer",
                        tokenizer=str(tokenizer_path),
                        token=special,
                        use=SPECIAL_TOKEN_USES[special],
                    )
                )
        return tokenizer
    if vocabulary == "characters":
        char_tokenizer = character_tokenizer(
            (chunk for part in (train, held_out) for chunk in part.text_chunks()), specials
        )
        return with_start_token(char_tokenizer, END_OF_TEXT)
    if isinstance(vocabulary, str):
        raise RheoscopeError(
            Message("vocabulary must be a number of tokens or 'characters', got {value!r}", value=vocabulary),
            set_fields(vocabulary=4096),
        )
    return with_start_token(train_bpe(train.text_chunks(), vocabulary, specials), END_OF_TEXT)


def _write_part(path: Path, part: _CorpusPart, tokenizer: "Tokenizer", on_progress: OnProgress) -> dict[str, Any]:
    n_tokens, n_chunks, total_bytes = 0, 0, part.n_bytes
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        for row in tokenise_texts(part.text_chunks(separator=END_OF_TEXT), tokenizer):
            file.write(row.tobytes())
            n_tokens, n_chunks = n_tokens + len(row), n_chunks + 1
            if n_chunks % 64 == 0:
                on_progress(
                    Message("tokenising {part}", part=path.stem), min(1.0, n_chunks * CHUNK_BYTES / total_bytes)
                )
    on_progress(Message("tokenising {part}", part=path.stem), 1.0)
    return {"tokens": n_tokens, "bytes": part.n_bytes, "documents": len(part.spans)}


def _too_few_tokens(part: Message, n_tokens: int, context: int) -> RheoscopeError:
    return RheoscopeError(
        plural(
            "the {part} part has {n} token, but a context of {context:,} needs at least {minimum:,}; "
            "use a smaller context or more text",
            "the {part} part has {n:,} tokens, but a context of {context:,} needs at least {minimum:,}; "
            "use a smaller context or more text",
            n=n_tokens,
            part=part,
            context=context,
            minimum=context + 1,
        )
    )
