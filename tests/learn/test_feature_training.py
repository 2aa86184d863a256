"""Tests of training sparse features: recovery of planted directions, windows of texts, and the commands."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rheoscope as rs
from rheoscope.commands.features import features as commands
from rheoscope.learn.feature_report import documents
from rheoscope.learn.feature_training import FeatureRecipe, fit, windows
from rheoscope.shapes import RheoscopeError
from tests.cases import random

TEXT = "The keys to the cabinet are on the table, and the man who lives here is late. "


def test_planted_directions_are_recovered() -> None:
    """Sparse sums of 12 random directions: most directions of the dictionary are one of them."""
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(random(0, 12, 24).float(), dim=-1)
    activations = torch.rand(3000, 12) * (torch.rand(3000, 12) < 0.15)
    recipe = FeatureRecipe(size=12, k=3, epochs=12, batch=128, rate=0.01)
    _, _, W_dec, centre = fit(activations @ directions, recipe)
    cosines = (W_dec @ directions.mT).abs().amax(0)
    assert int((cosines > 0.9).sum()) >= 9
    torch.testing.assert_close(W_dec.norm(dim=-1), torch.ones(12))
    torch.testing.assert_close(centre, (activations @ directions).mean(0))


def test_windows_start_with_the_first_token_and_hold_every_other_token_once() -> None:
    model = rs.load()
    ids = model.encode(TEXT)
    parts = [part.tolist() for part in windows(model, [TEXT], 8)]
    assert all(part[0] == ids[0] and len(part) <= 8 for part in parts)
    assert [token for part in parts for token in part[1:]] == ids[1:]


def test_documents_of_a_file_are_read_as_training_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ftwo\n")
    assert list(documents([tmp_path / "a.txt"])) == ["one\n", "two\n"]


def test_a_dictionary_is_trained_measured_and_mapped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT * 40)
    out = tmp_path / "features"
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([TEXT] * 4))
    trained = rs.train_features(
        rs.load(), [TEXT * 40], "L1.mlp", FeatureRecipe(size=32, k=4, tokens=600, epochs=1, window=256)
    )
    trained.save(out)
    assert str(rs.Features.load(out).writes) == "L1.mlp"
    measured = CliRunner().invoke(
        commands, ["measure", str(out), "--texts", str(texts), "--json", str(tmp_path / "q.json")]
    )
    assert measured.exit_code == 0, measured.output
    assert "explained variance" in measured.output
    mapped = CliRunner().invoke(commands, ["map", str(out), "--head", "3.1", "--top", "3", "--draws", "2"])
    assert mapped.exit_code == 0, mapped.output
    assert "L3.H1: what F makes of features" in mapped.output
    again = CliRunner().invoke(commands, ["train", "--data", str(tmp_path / "a.txt"), "--out", str(out)])
    assert isinstance(again.exception, RheoscopeError)


def test_too_few_tokens_and_impossible_recipes_are_refused() -> None:
    with pytest.raises(RheoscopeError, match="too few for 1,024 features"):
        rs.train_features(rs.load(), [TEXT], "L1.resid_post")
    with pytest.raises(RheoscopeError, match="k must be at most"):
        FeatureRecipe(size=4, k=5)
    with pytest.raises(RheoscopeError, match="rate is too small"):
        FeatureRecipe(rate=0)
    with pytest.raises(RheoscopeError, match="expected a point or an update"):
        rs.train_features(rs.load(), [TEXT], "L1.mlp_input", FeatureRecipe(size=4, k=2))
