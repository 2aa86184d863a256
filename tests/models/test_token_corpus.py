"""Text as tokens: the files of a corpus, its batches, its held-out part, and one-line errors."""

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.models.token_corpus import Corpus, prepare
from rheoscope.models.token_files import IN_PROGRESS
from rheoscope.models.vocabulary import decode, encode, load_tokenizer, train_bpe
from rheoscope.shapes import RheoscopeError
from tests.texts import any_text

SENTENCE = "The engine weaves algebraical patterns, as the loom weaves flowers and leaves.\n"


def corpus_of(tokens: int, held_out: int = 10) -> Corpus:
    return Corpus(np.arange(tokens), np.arange(held_out), tokens, held_out, Path("tokenizer.json"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Eight documents of a few hundred characters, each with its own number."""
    file = tmp_path / "text.txt"
    file.write_text("\f\n".join(f"Note {index}.\n" + SENTENCE * 6 for index in range(8)))
    return file


def decoded(corpus: Corpus, part: np.ndarray) -> str:
    return decode(load_tokenizer(corpus.tokenizer), part.tolist(), keep_special=True)


# Files


def test_the_tokens_decode_to_the_text(text: Path, tmp_path: Path) -> None:
    corpus = prepare([text], tmp_path / "out", vocabulary=300)
    documents = text.read_text().split("\f\n")
    assert decoded(corpus, corpus.train) == "".join(f"<|endoftext|>{document}" for document in documents[:-1])
    assert decoded(corpus, corpus.held_out) == f"<|endoftext|>{documents[-1]}"
    assert corpus.held_out_bytes == len(documents[-1].encode())
    assert corpus.vocabulary == 300
    assert corpus.train[0] == 0
    assert isinstance(corpus.train, np.memmap)
    assert corpus.train.dtype == np.dtype("<u2")


def test_the_manifest_describes_the_files(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    corpus = prepare([text], out, vocabulary=300)
    manifest = json.loads((out / "corpus.json").read_text())
    assert manifest["train"]["tokens"] == len(corpus.train)
    assert manifest["held_out"] == {"tokens": len(corpus.held_out), "bytes": corpus.held_out_bytes, "documents": 1}
    assert manifest["files"] == ["text.txt"]
    assert {file.name for file in out.iterdir()} == {"corpus.json", "tokenizer.json", "train.bin", "held_out.bin"}


def test_the_same_files_give_the_same_bytes(text: Path, tmp_path: Path) -> None:
    for out in ("one", "two"):
        prepare([text], tmp_path / out, vocabulary=300)
    for name in ("tokenizer.json", "train.bin", "held_out.bin", "corpus.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_held_out_is_the_end_of_the_last_file(text: Path, tmp_path: Path) -> None:
    first = tmp_path / "first.txt"
    first.write_text("Before.\n" + SENTENCE)
    alone = prepare([text], tmp_path / "alone", vocabulary=300, held_out=0.25)
    after = prepare([first, text], tmp_path / "after", vocabulary=300, held_out=0.25)
    held_out_text = decoded(alone, alone.held_out)
    assert held_out_text.count("<|endoftext|>") == 2
    assert decoded(after, after.held_out) == held_out_text
    assert decoded(after, after.train) == "<|endoftext|>" + first.read_text() + decoded(alone, alone.train)


def test_characters_split_one_text_by_position(tmp_path: Path) -> None:
    """As in nanoGPT's Shakespeare: int(0.9 n) training characters, and every distinct character is a token."""
    file = tmp_path / "a.txt"
    file.write_text("héllo wörld\n" * 11)
    corpus = prepare([file], tmp_path / "out", vocabulary="characters", held_out=0.1)
    characters = file.read_text()
    cut = int(len(characters) * 0.9)
    assert decoded(corpus, corpus.train) == "<|endoftext|>" + characters[:cut]
    assert decoded(corpus, corpus.held_out) == characters[cut:]
    assert corpus.vocabulary == len(set(characters)) + 1
    assert len(corpus.held_out) == len(characters) - cut
    assert corpus.held_out_bytes == len(characters[cut:].encode())


def test_an_unknown_character_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be")
    corpus = prepare([tmp_path / "a.txt"], tmp_path / "out", vocabulary="characters", held_out=0.1)
    with pytest.raises(RheoscopeError, match="no token for 'X', 'é'"):
        encode(load_tokenizer(corpus.tokenizer), "Xé")


def test_the_vocabulary_never_sees_the_held_out_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\f".join([SENTENCE * 5] * 3 + ["zyzzyva " * 500]))
    corpus = prepare([file], tmp_path / "out", vocabulary=320)
    assert "zy" not in load_tokenizer(corpus.tokenizer).get_vocab()


def test_a_long_document_is_tokenised_in_chunks(tmp_path: Path) -> None:
    """Longer than a chunk, with multi-byte characters and a line that is itself longer than a chunk."""
    file = tmp_path / "a.txt"
    file.write_text(("Ada schrieb über Größe — λ.\n" * 3000) + "üß " * 20_000 + "\nEnd.\n" + SENTENCE * 20)
    corpus = prepare([file], tmp_path / "out", vocabulary=300)
    assert decoded(corpus, corpus.train) + decoded(corpus, corpus.held_out) == "<|endoftext|>" + file.read_text()


def test_gzipped_files_and_separators_are_recognised(text: Path, tmp_path: Path) -> None:
    gzipped = tmp_path / "named_as_it_likes"
    gzipped.write_bytes(gzip.compress(text.read_text().replace("\f\n", "<|endoftext|>\n").encode()))
    plain, gzipped_corpus = (prepare([file], tmp_path / f"{file.stem}_out", vocabulary=300) for file in (text, gzipped))
    assert np.array_equal(plain.train, gzipped_corpus.train)


def test_a_dump_becomes_prose(tmp_path: Path) -> None:
    page = "<page>\n<title>Ada {}</title>\n<text>'''Ada''' {{{{x}}}} wrote [[note|notes]]. {}</text>\n</page>\n"
    file = tmp_path / "dump.xml.gz"
    pages = "".join(page.format(index, SENTENCE * 3) for index in range(4))
    file.write_bytes(gzip.compress(f"<mediawiki>\n{pages}".encode()))
    corpus = prepare([file], tmp_path / "out", vocabulary=300)
    assert decoded(corpus, corpus.held_out).startswith("<|endoftext|>Ada wrote notes. The engine")
    assert decoded(corpus, corpus.train).count("<|endoftext|>") == 3


def test_a_given_tokenizer_is_used_unchanged(text: Path, tmp_path: Path) -> None:
    first = prepare([text], tmp_path / "first", vocabulary=300)
    second = prepare([text], tmp_path / "second", tokenizer=first.tokenizer)
    assert np.array_equal(first.train, second.train)
    assert second.tokenizer.read_text() == first.tokenizer.read_text()
    train_bpe([SENTENCE], 280, ["<|other|>"]).save(str(tmp_path / "other.json"))
    with pytest.raises(RheoscopeError, match=r"has no token <\|endoftext\|>"):
        prepare([text], tmp_path / "third", tokenizer=tmp_path / "other.json")


def test_a_pickled_corpus_is_opened_from_its_files(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = prepare([text], Path("out"), vocabulary=300)
    pickled = pickle.dumps(corpus)
    monkeypatch.chdir("/")
    unpickled = pickle.loads(pickled)
    assert len(pickled) < 1000 < corpus.train.nbytes
    assert isinstance(unpickled.train, np.memmap)
    assert unpickled.train.tolist() == corpus.train.tolist()
    small = pickle.loads(pickle.dumps(corpus_of(20)))  # a corpus without files
    assert small.train.tolist() == list(range(20))
    assert (small.vocabulary, small.tokenizer) == (20, Path("tokenizer.json"))


def test_progress_reports_every_stage(text: Path, tmp_path: Path) -> None:
    reports: list[tuple[str, float]] = []
    prepare(
        [text], tmp_path / "out", vocabulary=300, progress=lambda stage, fraction: reports.append((stage, fraction))
    )
    assert list(dict(reports)) == ["reading", "training the tokenizer", "tokenising train", "tokenising held_out"]
    assert all(0 <= fraction <= 1 for _, fraction in reports)


@given(any_text())
def test_every_text_survives_the_tokenizer(any_text: str) -> None:
    assert decode(small_tokenizer(), encode(small_tokenizer(), any_text)) == any_text.replace("<|endoftext|>", "")


@cache
def small_tokenizer() -> Any:
    return train_bpe([SENTENCE], 280, ["<|endoftext|>"])


# Batches


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 2**31), st.sampled_from([1, 2, 3, 6]))
def test_a_batch_is_a_function_of_seed_and_step(step: int, seed: int, parts: int) -> None:
    corpus = corpus_of(60)
    x, y = corpus.batch(step, 6, 8, seed)
    assert x.shape == y.shape == (6, 8)
    assert x.dtype == torch.int64
    assert torch.equal(y, x + 1)
    torch.rand(3)  # other random numbers do not change the batch
    part_batches = [corpus_of(60).batch(step, 6, 8, seed, part, parts) for part in range(parts)]
    assert torch.equal(torch.cat([part_batch[0] for part_batch in part_batches]), x)


def test_steps_and_seeds_give_other_windows() -> None:
    starts = {
        tuple(corpus_of(10_000).batch(step, 4, 2, seed)[0][:, 0].tolist()) for step in range(9) for seed in range(9)
    }
    assert len(starts) == 81


def test_windows_are_sampled_uniformly() -> None:
    """12 tokens hold the windows 0 … 8 of 3 tokens with their targets, all equally likely."""
    counts = Counter(corpus_of(12).batch(0, 9000, 3)[0][:, 0].tolist())
    assert sorted(counts) == list(range(9))
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts.values())


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 4))
def test_each_held_out_token_but_the_first_is_a_target_once(tokens: int, context: int, batch: int) -> None:
    pairs = list(corpus_of(9, held_out=tokens).held_out_windows(context, batch))
    x, y = (torch.cat([pair[index] for pair in pairs]) for index in (0, 1))
    assert all(len(pair[0]) <= batch for pair in pairs)
    assert y[y != -100].tolist() == list(range(1, tokens))
    assert torch.equal(y[y != -100], x[y != -100] + 1)
    assert bool((y[:-1] != -100).all())


# Errors


@contextmanager
def raises(*fragments: str) -> Iterator[None]:
    """Expect a one-line error that contains these fragments."""
    with pytest.raises(RheoscopeError) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    assert all(fragment in message for fragment in fragments), message


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "a.txt"
    with raises("needs files"):
        prepare([], out)
    with raises("there is no file", "a.txt"):
        prepare([file], out)
    with raises("is a directory", "*.txt"):
        prepare([tmp_path], out)
    file.write_bytes(b"")
    with raises("a.txt is empty"):
        prepare([file], out)
    file.write_bytes(b"  \n\n")
    with raises("has no text"):
        prepare([file], out)
    file.write_bytes(b"one line\ntwo\0three")
    with raises("byte 12 is NUL"):
        prepare([file], out)
    file.write_bytes("grün\nGröße".encode("latin-1"))
    with raises("not UTF-8", "byte 2 is 0xfc", "iconv"):
        prepare([file], out)
    file.write_bytes(gzip.compress(SENTENCE.encode() * 1000)[:-20])
    with raises("cannot read", "download the file again"):
        prepare([file], out)
    assert not out.exists()


def test_invalid_settings_are_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with raises("a vocabulary of 256", "type vocabulary=257"):
        prepare([text], out, vocabulary=256)
    with raises("'letters'", "'characters'"):
        prepare([text], out, vocabulary="letters")
    with raises("between 0 and 1", "1.5"):
        prepare([text], out, held_out=1.5)
    with raises("there is no tokenizer"):
        prepare([text], out, tokenizer=tmp_path / "none.json")
    with raises("is not a valid tokenizer.json"):
        prepare([text], out, tokenizer=text)
    (tmp_path / "x.txt").write_text("x")
    with raises("too short to hold out"):
        prepare([tmp_path / "x.txt"], out)
    (tmp_path / "file").write_text("x")
    with raises("cannot write the corpus"):
        prepare([text], tmp_path / "file")


def test_an_error_leaves_the_existing_corpus_unchanged(text: Path, tmp_path: Path) -> None:
    before = prepare([text], tmp_path / "out", vocabulary=300)
    with raises("there is no file"):
        prepare([text, tmp_path / "mistyped.txt"], tmp_path / "out")
    assert np.array_equal(Corpus.open(tmp_path / "out").train, before.train)


def test_a_context_longer_than_the_text_is_refused() -> None:
    with raises("the training part has 8 tokens", "needs at least 9"):
        corpus_of(8).batch(0, 2, 8)
    with raises("the held-out part has 1 token, but"):
        next(corpus_of(8, held_out=1).held_out_windows(4, 1))
    with raises("cannot take part 2 of 2 from a batch of 4", "batch_size=2"):
        corpus_of(20).batch(0, 4, 8, part=2, n_parts=2)


def test_an_incomplete_directory_is_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([text], out, vocabulary=300)
    original = {file: file.read_bytes() for file in out.iterdir()}

    def damage(name: str, content: bytes | None) -> None:
        for file, content_before in original.items():
            file.write_bytes(content_before)
        (out / name).unlink() if content is None else (out / name).write_bytes(content)

    Corpus.open(out)
    damage("corpus.json", None)
    with raises("incomplete", "run prepare again"):
        Corpus.open(out)
    for content in (b"{", b"[]", b"{}"):
        damage("corpus.json", content)
        with raises("cannot read", "corpus.json", "run prepare again"):
            Corpus.open(out)
    damage("train.bin", original[out / "train.bin"][:-2])
    with raises("train.bin has", "corpus.json declares"):
        Corpus.open(out)
    damage("held_out.bin", None)
    with raises("held_out.bin has 0 bytes"):
        Corpus.open(out)
    damage("corpus.json", original[out / "corpus.json"].replace(b'"tokens": ', b'"tokens": 1'))
    with raises("train.bin has", "prepare the corpus again"):
        Corpus.open(out)
    damage("tokenizer.json", original[out / "tokenizer.json"] + b" ")
    with raises("is not the tokenizer of this corpus"):
        Corpus.open(out)


def test_a_full_disk_leaves_no_temporary_file(text: Path, tmp_path: Path) -> None:
    """A limit on file sizes simulates a full disk. The older corpus is then incomplete."""
    resource = pytest.importorskip("resource")
    out = tmp_path / "out"
    prepare([text], out, vocabulary=300)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
    try:
        with raises("cannot write the corpus", "another directory"):
            prepare([text], out, vocabulary=400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in out.iterdir() if file.name.startswith(".")] == [IN_PROGRESS]
    with raises("incomplete"):
        Corpus.open(out)
    prepare([text], out, vocabulary=400)
    assert not (out / IN_PROGRESS).exists()


def test_the_tokenizer_of_a_model_is_not_overwritten(text: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "tokenizer.json"
    foreign.write_text("{}")
    with raises("contains tokenizer.json, which belongs to no corpus", "another directory"):
        prepare([text], tmp_path, vocabulary=300)
    assert [file.name for file in tmp_path.iterdir() if file != text] == [foreign.name]
    assert foreign.read_text() == "{}"
