"""Tests of `patch_pairs`: one pair at a time as the slow twin, spans, files of pairs, and pairs that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.patch import over_pairs
from rheoscope.covers.patch.words import token_place
from rheoscope.shapes import RheoscopeError
from tests.cases import default, double, text

PAIRS = [(text(seed).tolist(), text(seed + 7).tolist()) for seed in range(5)]
EFFECTS = ("stream", "mlp", "output", "weights", "values")
NUMBER_PAIRS = [
    rs.Pair("The men who live here", "The man who live here", " are| is", {"subject": "men"}),
    rs.Pair("In winter the women who live here", "In winter the woman who live here", " are| is", {"subject": "women"}),
]


def test_means_equal_those_of_single_pairs() -> None:
    model = double("llama")
    result = rs.patch_pairs(model, PAIRS, metric="kl", top=2)
    singles = [rs.patch(model, model.trace(clean), corrupt, metric="kl", top=1) for clean, corrupt in PAIRS]
    totals = np.array([float(single.metric_text - single.metric_other) for single in singles])
    assert result.total.values == pytest.approx(totals)
    for name in EFFECTS:
        effects = np.stack([single[name].values for single in singles])
        expected = np.tensordot(totals, effects, 1) / totals.sum()
        assert result[name].values == pytest.approx(expected, abs=1e-9), name
        assert (result[f"{name}_low"].values <= expected + 1e-9).all()
        assert (result[f"{name}_high"].values >= expected - 1e-9).all()
    assert result.attrs["pairs"] == 5


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("gpt2")
    one_batch = rs.patch_pairs(model, PAIRS, top=2)
    monkeypatch.setattr(over_pairs, "TOKENS_PER_RUN", 2 * len(PAIRS[0][0]))
    several_batches = rs.patch_pairs(model, PAIRS, top=2)
    for name in one_batch.data_vars:
        assert several_batches[name].values == pytest.approx(one_batch[name].values, abs=1e-9), name


def test_one_pair_gives_the_effects_of_patch_without_intervals() -> None:
    model = double("neox")
    result, single = (
        rs.patch_pairs(model, PAIRS[:1], top=3),
        rs.patch(model, model.trace(PAIRS[0][0]), PAIRS[0][1], top=3),
    )
    for name in single.data_vars:
        assert result[name].values == pytest.approx(single[name].values, abs=1e-9), name
    assert bool(result.output_low.isnull().all())


@torch.no_grad()
def test_all_tokens_of_a_span_are_patched_together() -> None:
    """The span of the only differing token carries everything, the rest nothing, in texts of two lengths."""
    result = rs.patch_pairs(default(), NUMBER_PAIRS, top=1)
    assert result.token_text.values.tolist() == ["subject", "rest"]
    assert result.stream.sel(step="embed").values == pytest.approx(np.array([[1, 0], [1, 0]]), abs=1e-5)
    assert token_place(result, 0) == "subject"  # a span has no position
    last = result.stream.sel(step="L5.resid_post").values
    assert last == pytest.approx(np.array([[0, 1], [0, 1]]), abs=1e-5)


def test_files_of_both_kinds_hold_the_same_pairs(tmp_path: Path) -> None:
    lines = [
        {"clean": pair.clean, "corrupt": pair.corrupt, "answers": [" are", " is"], "spans": dict(pair.spans)}
        for pair in NUMBER_PAIRS
    ]
    jsonl, table = tmp_path / "pairs.jsonl", tmp_path / "pairs.tsv"
    jsonl.write_text("\n\n".join(map(json.dumps, lines)))
    rows = [
        "\t".join((str(pair.clean), str(pair.corrupt), pair.answers, pair.spans["subject"])) for pair in NUMBER_PAIRS
    ]
    table.write_text("\n".join(["clean\tcorrupt\tanswers\tsubject", *rows]))
    for file, names in ((jsonl, ["line 1", "line 3"]), (table, ["line 2", "line 3"])):
        pairs = rs.read_pairs(file)
        assert [str(pair.name) for pair in pairs] == names
        assert [(pair.clean, pair.corrupt, pair.answers, dict(pair.spans)) for pair in pairs] == [
            (pair.clean, pair.corrupt, pair.answers, dict(pair.spans)) for pair in NUMBER_PAIRS
        ]


REFUSED = {
    '{"clean": "The men", "corrupt": "The men who"}': "line 2: other must have as many tokens as the text",
    '{"clean": "The men", "corrupt": "The man"}': "line 2: pairs without spans must all have one length: the first has",
    '{"clean": "The men who", "corrupt": "The man who", "answers": " are| unbelievably"}': "line 2: the answer ' unbelievably' is",
    '{"clean": "The men who", "corrupt": "The man who", "spans": {"verb": "are"}}': "line 2: every pair must have the spans of",
    '{"clean": "The men who"}': "line 2: expected clean, corrupt and",
    "The men who": "line 2: expected clean, corrupt and",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_pair_that_cannot_be_used_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(f'{{"clean": "The women who", "corrupt": "The woman who"}}\n{line}\n')
    with pytest.raises(RheoscopeError) as refusal:
        rs.patch_pairs(default(), rs.read_pairs(path))
    assert str(refusal.value).startswith(REFUSED[line])
    assert "\n" not in str(refusal.value)


def test_other_files_and_missing_spans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"expected a \.jsonl, \.csv or \.tsv file of pairs"):
        rs.read_pairs(tmp_path / "pairs.txt")
    with pytest.raises(RheoscopeError, match="cannot be read: No such file"):
        rs.read_pairs(tmp_path / "pairs.csv")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(RheoscopeError, match="contains no pairs"):
        rs.read_pairs(tmp_path / "empty.jsonl")
    pair = rs.Pair("The men who", "The man who", spans={"verb": "are"})
    with pytest.raises(RheoscopeError, match="pair 1: the text does not contain the span verb: 'are'"):
        rs.patch_pairs(default(), [pair])
    with pytest.raises(RheoscopeError, match="expected at least one pair of texts, got none"):
        rs.patch_pairs(default(), [])
