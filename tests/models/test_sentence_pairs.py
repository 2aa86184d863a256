"""Sentence pairs as padded batches: complete, sorted by length, and a function of seed and step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.models.sentence_pairs import PairCorpus, Pairs, prepare_pairs
from rheoscope.models.token_corpus import Corpus
from rheoscope.models.vocabulary import decode, load_tokenizer
from rheoscope.shapes import RheoscopeError

ENGLISH = [f"a dog of {index} years runs{' very' * (index % 5)} fast" for index in range(100)]
GERMAN = [f"ein Hund von {index} Jahren läuft{' sehr' * (index % 5)} schnell" for index in range(100)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, sentences in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / name).write_text("\n".join(sentences) + "\n")
    return tmp_path / "en", tmp_path / "de"


def pairs_of(lengths: list[tuple[int, int]]) -> Pairs:
    """Pairs of these lengths, where every token of pair i has the id i + 3."""
    sides = [side for index, pair in enumerate(lengths) for side in ([index + 3] * pair[0], [index + 3] * pair[1])]
    return Pairs(np.concatenate([np.array(side, np.int64) for side in sides]), np.cumsum([len(side) for side in sides]))


def texts(corpus: PairCorpus, ids: torch.Tensor) -> list[str]:
    tokenizer = load_tokenizer(corpus.tokenizer)
    return [decode(tokenizer, row.tolist()) for row in ids]


def test_an_epoch_shows_every_pair_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = prepare_pairs([files[0]], [files[1]], tmp_path / "out", vocabulary=400)
    decoded = []
    for step in range(corpus.steps_per_epoch(200)):
        sources, targets = corpus.batch(step, 200, seed=5)
        assert max(sources.numel(), targets.numel()) <= 200
        decoded += list(zip(texts(corpus, sources), texts(corpus, targets), strict=True))
    assert sorted(decoded) == sorted(zip(ENGLISH[:98], GERMAN[:98], strict=True))
    assert corpus.vocabulary <= 400


def test_held_out_pairs_come_in_the_order_of_their_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = prepare_pairs([files[0]], [files[1]], tmp_path / "out", vocabulary=400, held_out=files)
    assert len(corpus.train) == len(corpus.held_out) == 100
    batches = list(corpus.held_out_batches(100))
    assert max(side.numel() for batch in batches for side in batch) <= 100
    assert [text for _, targets in batches for text in texts(corpus, targets)] == GERMAN


def test_several_files_are_one_corpus(files: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = prepare_pairs([files[0], files[1]], [files[1], files[0]], tmp_path / "out", vocabulary=400, held_out=files)
    assert len(corpus.train) == 200
    assert texts(corpus, corpus.train.padded_batch([100])[0]) == [GERMAN[0]]


def test_sources_and_targets_are_framed_and_padded() -> None:
    sources, targets = pairs_of([(2, 1), (1, 3), (0, 0)]).padded_batch([0, 1, 2])
    assert sources.tolist() == [[3, 3, 2], [4, 2, 0], [2, 0, 0]]
    assert targets.tolist() == [[1, 3, 2, 0, 0], [1, 4, 4, 4, 2], [1, 2, 0, 0, 0]]


lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60)


@settings(max_examples=30)
@given(lengths, st.integers(14, 80), st.integers(0, 300), st.integers(0, 5))
def test_a_batch_is_a_function_of_seed_and_step(
    sizes: list[tuple[int, int]], tokens: int, step: int, seed: int
) -> None:
    corpus, second_corpus = (PairCorpus(pairs_of(sizes), pairs_of(sizes), 99, Path("tokenizer.json")) for _ in range(2))
    corpus.batch(step + 7, tokens, seed)  # earlier calls do not matter
    for side, repeated in zip(corpus.batch(step, tokens, seed), second_corpus.batch(step, tokens, seed), strict=True):
        assert torch.equal(side, repeated)
        assert side.numel() <= tokens
    epoch = step // corpus.steps_per_epoch(tokens)
    steps = range(epoch * corpus.steps_per_epoch(tokens), (epoch + 1) * corpus.steps_per_epoch(tokens))
    assert sum(len(corpus.batch(index, tokens, seed)[0]) for index in steps) == len(sizes)


def test_similar_lengths_are_batched_together_and_epochs_differ() -> None:
    pairs = pairs_of([(index % 9, index % 9) for index in range(900)])
    corpus = PairCorpus(pairs, pairs, 999, Path("tokenizer.json"))
    steps = corpus.steps_per_epoch(110)
    epochs = [[corpus.batch(index, 110)[1] for index in range(first, first + steps)] for first in (0, steps)]
    padding = sum(int((targets == 0).sum()) for targets in epochs[0]) / sum(targets.numel() for targets in epochs[0])
    assert padding < 0.05
    assert [batch.tolist() for batch in epochs[0]] != [batch.tolist() for batch in epochs[1]]
    widths = [batch.shape[1] for batch in epochs[0]]
    assert widths != sorted(widths)


def test_other_seeds_give_other_pairs_of_the_same_lengths() -> None:
    pairs = pairs_of([(index % 9, index % 9) for index in range(300)])
    corpus = PairCorpus(pairs, pairs, 999, Path("tokenizer.json"))
    for step in (0, 1, corpus.steps_per_epoch(60)):
        (first, _), (second, _) = (corpus.batch(step, 60, seed) for seed in (0, 1))
        assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_mistakes_raise_one_line(files: tuple[Path, Path], tmp_path: Path) -> None:
    out, short = tmp_path / "out", tmp_path / "short"
    short.write_text("eins\nzwei\n")
    cases = [
        (lambda: prepare_pairs([files[0]], [short], out), "en has 100 lines but .*short has 2"),
        (lambda: prepare_pairs([files[0]], [files[1]], out, held_out=(files[0], short)), "en has 100 lines"),
        (lambda: prepare_pairs(list(files), [files[1]], out), "every source file needs a target file, got 2 and 1"),
        (lambda: prepare_pairs([tmp_path / "fr"], [files[1]], out), "there is no file"),
        (lambda: prepare_pairs([files[0]], [files[1]], out, vocabulary=258), "type vocabulary=259"),
        (lambda: prepare_pairs([files[0]], [files[1]], out, vocabulary=300).batch(0, 10), "the longest pair has"),
        (lambda: Corpus.open(out), "is a corpus of kind pairs, expected text"),
    ]
    for mistake, pattern in cases:
        with pytest.raises(RheoscopeError, match=pattern) as error:
            mistake()
        assert "\n" not in str(error.value)
    (out / "train_ends.bin").write_bytes(b"")
    with pytest.raises(RheoscopeError, match=r"train_ends.bin has 0 bytes"):
        PairCorpus.open(out)
