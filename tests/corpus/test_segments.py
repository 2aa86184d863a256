"""Segments: nothing lost, nothing duplicated, with special tokens, batched within the limit."""

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


def segment_job(**changes: object) -> Job:
    return Job(**{"texts": (), "length": 20, "least": 1} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("pack", [False, True])
def test_segments_concatenate_to_the_texts(model: RunnableModel, pack: bool) -> None:
    texts = lines(9)
    segments, rejects = cut_segments(
        model, 3, [Row(number, text) for number, text in enumerate(texts)], segment_job(pack=pack, join=" ")
    )
    assert not rejects
    tokens = [token for segment in segments for token in segment.ids.tolist()]
    assert tokens == [token for text in texts for token in model.encode(text + (" " if pack else ""))]
    assert max(len(segment.ids) for segment in segments) == 20
    assert [segment.text_id for segment in segments] == sorted({segment.text_id for segment in segments})
    if pack:
        assert {len(segment.ids) for segment in segments[:-1]} == {20}
    for segment in segments:
        expected = model.encode(texts[segment.row] + (" " if pack else ""))[segment.first_token :]
        assert segment.ids.tolist()[: len(expected)] == expected[: len(segment.ids)]


def test_every_segment_has_the_special_tokens_of_a_text() -> None:
    from tests.pretrained.cases import network, tokenizer

    model = rs.load(network("gpt2"), tokenizer=tokenizer())
    segments, _ = cut_segments(
        model, 0, [Row(0, " ".join(f"w{number}" for number in range(3, 12)))], segment_job(length=4)
    )
    assert [segment.ids.tolist() for segment in segments] == [[1, 3, 4, 5], [1, 6, 7, 8], [1, 9, 10, 11]]


def test_short_segments_are_rejected(model: RunnableModel) -> None:
    segments, rejects = cut_segments(
        model, 0, [Row(0, "a" * 25), Row(1, "abc"), Row(2, "", "it is no UTF-8 at byte 0")], segment_job(least=10)
    )
    too_short = "fewer than 10 tokens"
    reasons = sorted((reject.row, reject.first_token, reject.reason) for reject in rejects)
    assert reasons == [(0, 20, too_short), (1, 0, too_short), (2, 0, "it is no UTF-8 at byte 0")]
    assert len(segments) == 1


def test_a_text_that_cannot_be_encoded_is_rejected_alone(model: RunnableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_or_fail(self: RunnableModel, texts: list[str]) -> list[list[int]]:
        if "bad" in texts:
            raise RheoscopeError("no such letters")
        return [self.encode(text) for text in texts]

    monkeypatch.setattr(type(model), "encode_batch", encode_or_fail)
    segments, rejects = cut_segments(model, 0, [Row(0, "good one"), Row(1, "bad"), Row(2, "good two")], segment_job())
    assert [segment.row for segment in segments] == [0, 2]
    assert [(reject.row, reject.reason) for reject in rejects] == [(1, "no such letters")]


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 90))
def test_batches_hold_every_segment_once_within_the_limit(sizes: list[int], max_tokens: int) -> None:
    segments = [Segment(number, number, 0, torch.arange(n)) for number, n in enumerate(sizes)]
    result = list(batches(segments, max_tokens))
    assert sorted(segment.text_id for batch in result for segment in batch) == list(range(len(sizes)))
    assert all(
        len(batch) == 1 or len(batch) * max(len(segment.ids) for segment in batch) <= max_tokens for batch in result
    )
