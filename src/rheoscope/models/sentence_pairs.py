"""Sentence pairs for translation: one vocabulary for both languages, and batches of similar length.

prepare_pairs(sources, targets, out)    aligned lines ─► tokenizer.json · train.bin · train_ends.bin · … · corpus.json
PairCorpus.open(out).batch(step, …)     padded ids of a batch, a function of (seed, step)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from rheoscope.files import atomic_file
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.text_files import read_lines
from rheoscope.models.token_corpus import OnProgress, seeded_generator
from rheoscope.models.token_files import (
    TOKENIZER,
    memory_map,
    read_manifest,
    tokenise_texts,
    write_manifest,
    write_tokenizer,
    writing_corpus,
)
from rheoscope.models.vocabulary import END, PAD, SPECIALS, START, train_bpe
from rheoscope.shapes import RheoscopeError

HELD_OUT_DIVISOR = 50
"""One pair in fifty, from the end, is held out if no validation files are given."""

Batch = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sentence pairs as one row of tokens: source 0, target 0, source 1, …, where `ends` holds the end of each sentence."""

    tokens: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends) // 2

    def widths(self) -> np.ndarray:
        """The width of each pair in a batch: its longer side, with ``<|start|>`` and ``<|end|>``."""
        return np.diff(self.ends, prepend=0).reshape(-1, 2).max(axis=1) + 2

    def padded_batch(self, pair_indices: Iterable[int]) -> Batch:
        """These pairs as ids: sources end with ``<|end|>``, targets start with ``<|start|>`` and end with ``<|end|>``."""
        indices = np.fromiter(pair_indices, np.int64)
        sources, targets = (self._with_end_token(2 * indices + side) for side in (0, 1))
        return sources, functional.pad(targets, (1, 0), value=START)

    def _with_end_token(self, sentence_indices: np.ndarray) -> Int[Tensor, "b w"]:
        """These sentences, each followed by ``<|end|>``, padded."""
        starts = np.where(sentence_indices > 0, self.ends[sentence_indices - 1], 0)[:, None]
        lengths = self.ends[sentence_indices][:, None] - starts
        positions = np.arange(lengths.max() + 1)
        ids, is_token = np.full((len(sentence_indices), len(positions)), PAD, np.int64), positions < lengths
        ids[is_token] = self.tokens[(starts + positions)[is_token]]
        ids[positions == lengths] = END
        return torch.from_numpy(ids)


@dataclass(frozen=True, eq=False)
class PairCorpus:
    """Aligned sentences as tokens of one `vocabulary`. Ids 0, 1, 2 are ``<|pad|>``, ``<|start|>``, ``<|end|>``."""

    train: Pairs
    held_out: Pairs
    vocabulary: int
    tokenizer: Path

    @staticmethod
    def open(directory: Path) -> "PairCorpus":
        """The corpus that `prepare_pairs` wrote. Raises if the directory is incomplete or was changed.

        >>> PairCorpus.open(Path("nowhere"))
        Traceback (most recent call last):
        rheoscope.shapes.RheoscopeError: there is no directory nowhere; choose one that prepare_pairs(…) wrote
        """
        manifest = read_manifest(directory, "pairs", "prepare_pairs")
        train, held_out = (
            Pairs(
                memory_map(directory / f"{part}.bin", manifest[part]["tokens"], manifest["dtype"]),
                memory_map(directory / f"{part}_ends.bin", 2 * manifest[part]["pairs"], "<i8"),
            )
            for part in ("train", "held_out")
        )
        return PairCorpus(train, held_out, manifest["vocabulary"], directory / TOKENIZER)

    def batch(self, step: int, max_tokens: int, seed: int = 0) -> Batch:
        """The padded sources and targets of a step: pairs of similar length, at most `max_tokens` ids per side.

        A pure function of its arguments. An epoch has `steps_per_epoch(max_tokens)` steps, in which every pair occurs once. Each epoch
        shuffles the pairs of equal length and the order of the batches. The order of lengths is the same for every seed, so batches of
        one step can be stacked with little padding.

        >>> pairs = Pairs(np.arange(3, 13), np.array([1, 3, 6, 10]))  # 3 ─► 4 5 and 6 7 8 ─► 9 10 11 12
        >>> corpus = PairCorpus(pairs, pairs, 13, Path("tokenizer.json"))
        >>> sorted(corpus.batch(step, max_tokens=6)[1].tolist() for step in range(corpus.steps_per_epoch(max_tokens=6)))
        [[[1, 4, 5, 2]], [[1, 9, 10, 11, 12, 2]]]
        """
        epoch, index = divmod(step, self.steps_per_epoch(max_tokens))
        return self.train.padded_batch(_epoch_batches(self.train, max_tokens, seed, epoch)[index].tolist())

    def steps_per_epoch(self, max_tokens: int) -> int:
        """The number of batches of at most `max_tokens` ids in an epoch. It is the same for all epochs."""
        return len(_batch_starts(self.train, max_tokens)) + 1

    def held_out_batches(self, max_tokens: int) -> Iterator[Batch]:
        """Every held-out pair once, in file order, so that translations can be compared with their references."""
        widths = self.held_out.widths()
        _check_widths(widths, max_tokens)
        first, widest = 0, 0
        for index, width in enumerate(widths.tolist()):
            widest = max(widest, width)
            if (index + 1 - first) * widest > max_tokens:
                yield self.held_out.padded_batch(range(first, index))
                first, widest = index, width
        yield self.held_out.padded_batch(range(first, len(widths)))


def stack_batches(batches: Sequence[tuple[Tensor, Tensor]]) -> Batch:
    """Batches of several seeds stacked, each padded to the same number of rows and tokens.

    An added row has an empty source and no target. Sizes are rounded up (`round_up`), so that a GPU sees few different shapes.

    >>> first = torch.tensor([[5, 2]]), torch.tensor([[1, 6, 2]])
    >>> second = torch.tensor([[2], [2]]), torch.tensor([[1, 2], [1, 2]])
    >>> [side.tolist() for side in stack_batches([first, second])]
    [[[5, 2, 0], [2, 0, 0], [2, 0, 0], [2, 0, 0]], [[1, 6, 2], [0, 0, 0], [1, 2, 0], [1, 2, 0]]]
    """
    rows, width = (round_up(max(side.shape[axis] for batch in batches for side in batch)) for axis in (0, 1))
    sources, targets = (_pad_and_stack(side, rows, width) for side in zip(*batches, strict=True))
    sources[sources[:, 0] == PAD, 0] = END
    return sources, targets


def round_up(size: int) -> int:
    """The next number of the form 2ⁿ or 3 · 2ⁿ.

    >>> [round_up(size) for size in (1, 3, 5, 13, 100)]
    [1, 3, 6, 16, 128]
    """
    power_of_two = 1 << (size - 1).bit_length()
    return power_of_two * 3 // 4 if power_of_two >= 4 and size <= power_of_two * 3 // 4 else power_of_two


def _pad_and_stack(sides: Sequence[Int[Tensor, "_ _"]], rows: int, width: int) -> Int[Tensor, "b w"]:
    return torch.cat([functional.pad(ids, (0, width - ids.shape[1], 0, rows - len(ids)), value=PAD) for ids in sides])


def prepare_pairs(
    sources: Sequence[Path],
    targets: Sequence[Path],
    out: Path,
    vocabulary: int = 8000,
    held_out: tuple[Path, Path] | None = None,
    progress: OnProgress | None = None,
) -> PairCorpus:
    """Write a corpus of aligned lines: line i of a target file translates line i of its source file.

    One byte-level BPE is trained on both sides of the training part. `held_out` names a source and a target file for validation.
    Without it, the last fiftieth of the pairs is held out. Files are UTF-8 text, plain or gzipped. `out` receives tokenizer.json,
    train.bin and train_ends.bin (tokens and sentence ends), the same for held_out, and last corpus.json.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "en").write_text("a dog\\n" * 60), (folder / "de").write_text("ein Hund\\n" * 60)
    >>> corpus = prepare_pairs([folder / "en"], [folder / "de"], folder / "out", vocabulary=280)
    >>> len(corpus.train), len(corpus.held_out)
    (59, 1)
    """
    files = [(Path(s), Path(t)) for s, t in _match_files(sources, targets)]
    n_pairs = sum(_count_aligned(source, target) for source, target in files)
    if held_out is not None:
        held_out_files = [(Path(held_out[0]), Path(held_out[1]))]
        parts = {"train": (files, 0, n_pairs), "held_out": (held_out_files, 0, _count_aligned(*held_out_files[0]))}
    else:
        n_train = n_pairs - max(1, n_pairs // HELD_OUT_DIVISOR)
        parts = {"train": (files, 0, n_train), "held_out": (files, n_train, n_pairs)}
    on_progress, out = progress or (lambda stage, fraction: None), Path(out)
    with writing_corpus(out):
        on_progress(Message("training the tokenizer"), 0.0)
        tokenizer = train_bpe(_sentences(*parts["train"]), vocabulary, SPECIALS)
        write_tokenizer(out, tokenizer)
        counts = {}
        for name, part in parts.items():
            on_progress(Message("tokenising {part}", part=name), 0.0)
            counts[name] = _write_pairs(out, name, tokenise_texts(_sentences(*part), tokenizer))
        write_manifest(out, "pairs", tokenizer, chain(*files, held_out or ()), counts)
    return PairCorpus.open(out)


def _match_files(sources: Sequence[Path], targets: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    if not sources or len(sources) != len(targets):
        raise RheoscopeError(
            Message(
                "every source file needs a target file, got {n_sources} and {n_targets}",
                n_sources=len(sources),
                n_targets=len(targets),
            )
        )
    return zip(sources, targets, strict=True)


def _count_aligned(source: Path, target: Path) -> int:
    """The number of lines of two aligned files. Raises if they differ."""
    n_source, n_target = (sum(1 for _ in read_lines(file)) for file in (source, target))
    if n_source != n_target:
        raise RheoscopeError(
            Message(
                "{source} has {n_source:,} lines but {target} has {n_target:,}; use files that are aligned line by line",
                source=str(source),
                n_source=n_source,
                target=str(target),
                n_target=n_target,
            )
        )
    return n_source


def _sentences(files: Iterable[tuple[Path, Path]], first: int, last: int) -> Iterator[str]:
    """Sources and targets in turn, from pair `first` to before pair `last`."""
    pairs = chain.from_iterable(zip(read_lines(source), read_lines(target), strict=True) for source, target in files)
    return (side.strip() for pair in islice(pairs, first, last) for side in pair)


def _write_pairs(out: Path, name: str, rows: Iterable[np.ndarray]) -> dict[str, Any]:
    """Write <name>.bin and <name>_ends.bin."""
    n_tokens, n_sentences = 0, 0
    with (
        atomic_file(out / f"{name}.bin") as tokens_path,
        atomic_file(out / f"{name}_ends.bin") as ends_path,
        tokens_path.open("wb") as tokens_file,
        ends_path.open("wb") as ends_file,
    ):
        for row in rows:
            n_tokens, n_sentences = n_tokens + len(row), n_sentences + 1
            tokens_file.write(row.tobytes())
            ends_file.write(np.int64(n_tokens).astype("<i8").tobytes())
    return {"tokens": n_tokens, "pairs": n_sentences // 2}


def _check_widths(widths: np.ndarray, max_tokens: int) -> None:
    if widths.size and (widest := int(widths.max())) > max_tokens:
        raise RheoscopeError(
            Message(
                "the longest pair has {n:,} ids, more than the {max_tokens:,} of a batch",
                n=widest,
                max_tokens=max_tokens,
            ),
            Advice(f"max_tokens={widest}"),
        )


@lru_cache(maxsize=4)  # needed at every step, and the same for a whole run
def _batch_starts(pairs: Pairs, max_tokens: int) -> tuple[int, ...]:
    """Where batches start among pairs sorted by width, without the first 0. Every batch is as full as `max_tokens` allows.

    The starts depend only on the sorted widths, so every epoch has the same number of batches.
    """
    widths = np.sort(pairs.widths())
    _check_widths(widths, max_tokens)
    starts, first = [], 0
    for index, width in enumerate(widths.tolist()):
        if (index + 1 - first) * width > max_tokens:
            starts.append(index)
            first = index
    return tuple(starts)


@lru_cache(maxsize=64)  # one entry per seed that is trained in parallel
def _epoch_batches(pairs: Pairs, max_tokens: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch as indices of pairs: shuffled, stably sorted by width, split, and shuffled again."""
    generator = seeded_generator(seed, epoch)
    shuffled = torch.randperm(len(pairs), generator=generator).numpy()
    by_width = shuffled[np.argsort(pairs.widths()[shuffled], kind="stable")]
    batches = np.split(by_width, _batch_starts(pairs, max_tokens))
    return [batches[index] for index in torch.randperm(len(batches), generator=seeded_generator(epoch)).tolist()]
