"""Entries of the atlas: the card of a model, curves over its layers and numbers of its heads, stored as small files."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.report.atlas_entry import AtlasEntry, atlas_entry, entry_name, read_entry
from rheoscope.report.layer_curves import layer_tables
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import network
from tests.report.test_card_pairs import PAIRS, few_claims
from tests.running.test_pair_sides import pair

GENERATOR = torch.Generator().manual_seed(0)
TEXTS = [torch.randint(3, 40, (20 + n,), generator=GENERATOR).tolist() for n in range(4)]
MAX_BYTES = 200_000


@cache
def entry(name: str) -> AtlasEntry:
    return atlas_entry(rs.load(network(name)), TEXTS, cache=False, command="rheoscope atlas")


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_an_entry_computed_again_from_scratch_is_equal(name: str) -> None:
    again = atlas_entry(rs.load(network(name)), TEXTS, cache=False, command="rheoscope atlas")
    assert again.to_json() == entry(name).to_json()


def test_a_stored_entry_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "llama.json"
    assert entry("llama").save(path).startswith("wrote")
    assert entry("llama").save(path).startswith("replaced")  # it carries the signature of this package
    assert path.stat().st_size < MAX_BYTES
    read = read_entry(path)
    assert read.to_json() == entry("llama").to_json()
    for name in ("estimate", "low", "high", "threshold"):
        assert np.allclose(read.card[name], entry("llama").card[name], rtol=1e-5, atol=0, equal_nan=True), name
    assert "value" not in read.card


def test_a_foreign_file_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(rs.RheoscopeError, match="no entry of an atlas"):
        read_entry(tmp_path / "a.json")


def test_curves_are_means_of_the_analyses_of_single_texts() -> None:
    """The slow twin: every text by itself."""
    model = rs.load(network("llama"))
    results = [rs.trajectory(model.trace(text), draws=0) for text in TEXTS]
    speeds = np.stack([result.relative_speed.mean("token") for result in results])
    head_speeds = np.mean([result.head_speed.values for result in results], axis=0)
    curve = entry("llama").curves.query("field == 'trajectory.relative_speed'")
    assert curve.place.tolist() == results[0].step.values.tolist()
    assert np.allclose(curve["mean"], speeds.mean(0), rtol=1e-4)
    assert np.allclose(curve.sd, speeds.std(0, ddof=1), rtol=1e-3)
    assert set(curve.n) == {len(TEXTS)}
    assert np.allclose(entry("llama").heads["trajectory.head_speed"], head_speeds.ravel(), rtol=1e-4)


def test_attention_on_massive_tokens_is_a_mean_over_the_texts_that_have_some() -> None:
    long_token = deepcopy(network("llama"))
    long_token.get_input_embeddings().weight.data[5] *= 100
    texts = [[5, *TEXTS[0]], [token for token in TEXTS[1] if token != 5], [*TEXTS[2], 5]]
    batch = rs.load(long_token).trace(texts)
    curves, _ = layer_tables([batch], [batch])
    sinks = curves[curves.field == "massive_tokens.sink_mass"]
    results = [rs.massive_tokens(trace) for trace in batch]
    expected = np.mean([result.sink_mass.mean("token").values for result in results if result.sizes["token"]], axis=0)
    assert set(sinks.n) == {2}
    assert np.allclose(sinks["mean"], expected)


def test_depth_runs_from_the_embedding_to_the_last_layer() -> None:
    curves = entry("llama").curves
    points = curves[curves.field == "clusters.effective_rank"]
    assert points.place.iloc[[0, -1]].tolist() == ["embed", f"L{len(points) - 2}.resid_post"]
    assert np.allclose(points.depth, np.linspace(0, 1, len(points)))
    whole_text = curves[curves.place == ""]
    assert set(whole_text.field) >= {"transport.next_token_accuracy"}
    assert whole_text.depth.isna().all()


def test_an_untrained_model_is_its_own_control() -> None:
    model = rs.load(network("llama"))
    batches = (model.trace(TEXTS),)
    curves, _ = layer_tables(batches, batches)
    assert np.array_equal(curves["mean"], curves.untrained, equal_nan=True)


def test_an_encoder_has_no_curve_toward_the_next_token() -> None:
    fields = set(entry("bert").curves.field)
    assert "trajectory.relative_speed" in fields
    assert "transport.toward_next" not in fields
    assert entry("bert").clouds.is_causal.tolist() == [False]
    assert entry("bert").clouds.is_post_norm.tolist() == [True]


def test_a_pair_has_two_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    few_claims(monkeypatch, "symmetry", "similarity")
    result = atlas_entry(pair("t5"), PAIRS, cache=False)
    assert result.clouds.cloud.tolist() == ["source", "target"]
    assert result.clouds.n_tokens.tolist() == [sum(len(ids) for ids in side) for side in zip(*PAIRS, strict=True)]
    for table in (result.curves, result.heads):
        assert set(table.cloud) == {"source", "target"}


def test_the_command_stores_and_reads_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_claims(monkeypatch, "symmetry")
    network("llama").save_pretrained(tmp_path / "tiny")
    network("bert").save_pretrained(tmp_path / "reader")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in TEXTS))
    stored = run_rheoscope("atlas", "tiny", "--texts", "texts.jsonl", "--store", "cards", cwd=tmp_path)
    assert stored.status == 0, stored.err
    result = read_entry(tmp_path / "cards" / "tiny.json")
    assert (result.model, result.clouds.n_texts.item()) == ("tiny", len(TEXTS))
    assert result.command == "rheoscope atlas tiny --texts texts.jsonl --draws 40 --untrained 8 --store atlas"
    few_claims(monkeypatch, "symmetry", "relation")
    arguments = str(tmp_path / "reader"), "--texts", "texts.jsonl", "--store", "cards"
    assert run_rheoscope("atlas", *arguments, cwd=tmp_path).status == 0
    assert "reader has no unembedding" in (tmp_path / "cards" / "reader.json").read_text()
    assert str(tmp_path) not in (tmp_path / "cards" / "reader.json").read_text()
    again = run_rheoscope("atlas", "cards/tiny.json", cwd=tmp_path)
    assert again.status == 0, again.err
    assert "tiny" in again.words
    assert "symmetry" in again.words


def test_the_default_model_is_called_default() -> None:
    assert entry_name(rs.load()) == "default"
