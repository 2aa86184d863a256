"""Texts in pieces: nothing lost, nothing twice, begun and ended as the tokenizer does, batched within the bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rheoscope as rs
from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.input_texts import Row
from rheoscope.corpus.segments import Segment, batches, cut_segments
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from tests.corpus.cases import lines, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RunnableModel:
    return rs.load(tiny_model(tmp_path_factory.mktemp("model")))


def how(**more: object) -> Job:
    return Job(**{"texts": (), "length": 20, "least": 1} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize("pack", [False, True])
def test_pieces_put_together_are_the_texts(model: RunnableModel, pack: bool) -> None:
    texts = lines(9)
    pieces, rejects = cut_segments(model, 3, [Row(at, text) for at, text in enumerate(texts)], how(pack=pack, join=" "))
    assert not rejects
    read = [token for piece in pieces for token in piece.ids.tolist()]
    assert read == [token for text in texts for token in model.encode(text + (" " if pack else ""))]
    assert max(len(piece.ids) for piece in pieces) == 20
    assert [piece.text_id for piece in pieces] == sorted({piece.text_id for piece in pieces})
    if pack:
        assert {len(piece.ids) for piece in pieces[:-1]} == {20}
    for piece in pieces:
        own = model.encode(texts[piece.row] + (" " if pack else ""))[piece.first_token :]
        assert piece.ids.tolist()[: len(own)] == own[: len(piece.ids)]


def test_every_piece_begins_as_the_tokenizer_begins_a_text() -> None:
    from tests.pretrained.cases import network, tokenizer

    model = rs.load(network("gpt2"), tokenizer=tokenizer())
    pieces, _ = cut_segments(model, 0, [Row(0, " ".join(f"w{at}" for at in range(3, 12)))], how(length=4))
    assert [piece.ids.tolist() for piece in pieces] == [[1, 3, 4, 5], [1, 6, 7, 8], [1, 9, 10, 11]]


def test_what_is_too_short_is_told(model: RunnableModel) -> None:
    pieces, rejects = cut_segments(
        model, 0, [Row(0, "a" * 25), Row(1, "abc"), Row(2, "", "it is no UTF-8 at byte 0")], how(least=10)
    )
    short = "it has fewer than 10 tokens"
    told = sorted((one.row, one.first_token, one.reason) for one in rejects)
    assert told == [(0, 20, short), (1, 0, short), (2, 0, "it is no UTF-8 at byte 0")]
    assert len(pieces) == 1


def test_a_text_that_the_tokenizer_cannot_read_is_told_and_the_others_stay(
    model: RunnableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(self: RunnableModel, texts: list[str]) -> list[list[int]]:
        if "bad" in texts:
            raise RheoscopeError("no such letters")
        return [self.encode(text) for text in texts]

    monkeypatch.setattr(type(model), "encode_batch", some)
    pieces, rejects = cut_segments(model, 0, [Row(0, "good one"), Row(1, "bad"), Row(2, "good two")], how())
    assert [piece.row for piece in pieces] == [0, 2]
    assert [(one.row, one.reason) for one in rejects] == [(1, "no such letters")]


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 90))
def test_batches_hold_every_piece_once_within_the_bound(sizes: list[int], tokens: int) -> None:
    pieces = [Segment(at, at, 0, torch.arange(n)) for at, n in enumerate(sizes)]
    found = list(batches(pieces, tokens))
    assert sorted(piece.text_id for batch in found for piece in batch) == list(range(len(sizes)))
    assert all(len(batch) == 1 or len(batch) * max(len(one.ids) for one in batch) <= tokens for batch in found)
