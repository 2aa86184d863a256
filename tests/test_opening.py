"""rs.load: one model from a directory, an object, in another dtype, or untrained."""

import copy
from pathlib import Path

import pytest
import torch

import rheoscope as rs
from tests.models import cases as ours
from tests.pretrained.cases import KINDS, WITH_LOGITS, distance, gap, model, network, saved, text, tokenizer, traced

every = pytest.mark.parametrize("name", [*KINDS, "bert_bare"])
FEW = ["gpt2", "llama", "gemma3", "opt_projected", "phi3", "neox", "bert"]
"""One model for each way in which weights are laid out in a file."""


@every
def test_a_directory_gives_what_the_object_gives(name: str, tmp_path: Path) -> None:
    of = rs.load(saved(name, tmp_path))
    trace = of.trace(text(), logits=name in WITH_LOGITS)
    assert torch.equal(trace.points, traced(name).points)
    if name in WITH_LOGITS:
        assert torch.equal(trace.logits, traced(name).logits)
    assert of.view.facts["weights"] == model(name).view.facts["weights"]
    assert of.view.facts["model"] == str(tmp_path)
    assert of.view.facts["type"] == network(name).config.model_type
    assert not of.network.training


@pytest.mark.parametrize("name", [*FEW, "bert_bare"])
def test_the_control_has_the_same_shapes_and_other_weights(name: str) -> None:
    control, again = (rs.load(network(name), untrained=True) for _ in range(2))
    assert control.view.facts["weights"] == again.view.facts["weights"] != model(name).view.facts["weights"]
    shapes = [x.shape for x in network(name).parameters()]
    assert [x.shape for x in control.network.parameters()] == shapes
    assert control.trace(text()).points.shape == traced(name).points.shape
    assert control.view.facts["certificate"].closure <= 1e-5
    assert control.network is not network(name)
    assert torch.equal(model(name).trace(text()).points, traced(name).points)


@pytest.mark.parametrize("name", FEW)
def test_the_control_of_a_directory_is_that_of_the_object(name: str, tmp_path: Path) -> None:
    from_file = rs.load(saved(name, tmp_path), untrained=True)
    from_object = rs.load(network(name), untrained=True)
    assert from_file.view.facts["weights"] == from_object.view.facts["weights"]
    half = rs.load(tmp_path, untrained=True, dtype="bfloat16")
    assert half.view.facts["dtype"] == "bfloat16"
    assert gap(half.view.embed, from_file.view.embed) <= 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_seed_draws_other_initial_weights_of_the_same_family(name: str, tmp_path: Path) -> None:
    """Of the family's own law: spread by the config's range, norms at 1; the name says what it is."""
    one, other = (rs.load(saved(name, tmp_path), untrained=True, seed=seed) for seed in (0, 5))
    assert one.view.facts["weights"] == rs.load(network(name), untrained=True).view.facts["weights"]
    assert one.view.facts["weights"] != other.view.facts["weights"]
    assert other.view.facts["weights"] == rs.load(network(name), untrained=True, seed=5).view.facts["weights"]
    assert other.view.facts["model"] == f"{tmp_path}, untrained (seed 5)"
    spread = network(name).config.initializer_range
    for control in (one, other):
        assert control.view.blocks[0].W_Q.std().item() == pytest.approx(spread, rel=0.1)
        assert control.view.embed.std().item() == pytest.approx(spread, rel=0.1)
    gains = [x for x in one.network.parameters() if x.ndim == 1]
    assert all(bool(((x == 0) | (x == 1)).all()) for x in gains)


def test_a_control_needs_no_weights(tmp_path: Path) -> None:
    """A config is enough; and on another device it has the dtype of the checkpoint, as the trained model has."""
    copy.deepcopy(network("llama")).to(torch.bfloat16).save_pretrained(tmp_path)
    assert rs.load(tmp_path, untrained=True, device="cpu:0").view.facts["dtype"] == "bfloat16"
    assert rs.load(tmp_path, device="cpu:0").view.facts["dtype"] == "bfloat16"
    (tmp_path / "model.safetensors").unlink()
    assert rs.load(tmp_path, untrained=True).view.facts["dtype"] == "float32"
    with pytest.raises(rs.RheoscopeError, match=r"holds no \*.safetensors"):
        rs.load(tmp_path)
    ours.saved("own", tmp_path / "own")
    (tmp_path / "own" / "model.safetensors").unlink()
    control = rs.load(tmp_path / "own", untrained=True)
    assert control.view.facts["weights"] == rs.load(ours.network("own"), untrained=True).view.facts["weights"]


def test_the_default_model_has_its_control_too() -> None:
    one, other = rs.load(untrained=True), rs.load(untrained=True, seed=1)
    assert one.view.facts["model"] == "the default model, untrained (seed 0)"
    assert one.view.facts["weights"] != other.view.facts["weights"]
    assert one.trace("The keys").tokens == rs.load().trace("The keys").tokens


def test_a_seed_that_is_none_is_told_in_one_line() -> None:
    for wrong in (-1, True, 2**63):
        with pytest.raises(rs.RheoscopeError, match=r"a seed is a whole number, 0 or larger, got .*; type seed=0"):
            rs.load(network("gpt2"), untrained=True, seed=wrong)
    with pytest.raises(rs.RheoscopeError, match=r"seed=3 draws initial weights, .*; type untrained=True too"):
        rs.load(network("gpt2"), seed=3)
    with pytest.raises(rs.RheoscopeError, match="there is no directory"):
        rs.load("/no/such/place", untrained=True)


def test_the_control_has_the_dtype_of_the_object() -> None:
    control = rs.load(network("gpt2", torch.float64), untrained=True)
    assert control.view.facts["dtype"] == "float64"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*FEW, "qwen3", "bert_bare"])
def test_half_precision(name: str, dtype: str, tmp_path: Path) -> None:
    """The checkpoint in half precision: certified, near the full model, and the same from a file and from an object."""
    of, eps = rs.load(saved(name, tmp_path), dtype=dtype), torch.finfo(getattr(torch, dtype)).eps
    assert of.view.facts["dtype"] == dtype
    certificate = of.view.facts["certificate"]
    assert certificate.dtype == dtype
    assert max(certificate.weights, certificate.closure, certificate.operators) <= 2 * eps
    trace = of.trace(text())
    read = trace.points[[step not in trace.not_read for step in trace.steps]]
    assert torch.equal(read, read.to(of.view.dtype).float())
    assert distance(trace.points, traced(name).points) <= 6 * eps
    assert trace.points.dtype is trace.weights(0, 0).dtype is trace.displacement(0, 0).dtype is torch.float32
    other = rs.load(copy.deepcopy(network(name)), dtype=dtype)
    assert torch.equal(other.trace(text()).points, trace.points)


@pytest.mark.parametrize("name", FEW)
def test_half_precision_operators_are_computed_in_float32(name: str) -> None:
    half = rs.load(copy.deepcopy(network(name)), dtype="bfloat16")
    found, full = rs.operators(half.view), rs.operators(model(name).view)
    for field in ("symmetry", "symmetry_at", "stable_rank_M", "positive_share"):
        assert found[field].dtype == "float32"
        assert float(abs(found[field] - full[field]).max()) <= 5e-2 * max(1.0, float(abs(full[field]).max())), field


@pytest.mark.parametrize("name", FEW)
def test_float64(name: str, tmp_path: Path) -> None:
    of = rs.load(saved(name, tmp_path), dtype="float64")
    assert of.view.facts["dtype"] == "float64"
    assert distance(of.trace(text()).points, traced(name, torch.float64).points) <= 1e-6


def test_a_tokenizer_given_comes_first(tmp_path: Path) -> None:
    tokenizer(start=True).save_pretrained(saved("llama", tmp_path))
    assert rs.load(tmp_path).ids("w5").tolist() == [1, 5]
    assert rs.load(tmp_path, tokenizer=tokenizer(start=False)).ids("w5").tolist() == [5]


def test_an_object_in_training_is_put_into_evaluation() -> None:
    """Dropout would make every number random."""
    net = copy.deepcopy(network("gpt2")).train()
    of = rs.load(net)
    assert not of.network.training
    assert torch.equal(of.run(text()), traced("gpt2").logits)


def test_strings_and_paths_are_the_same(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    assert torch.equal(rs.load(str(tmp_path)).run(text()), rs.load(tmp_path).run(text()))


def test_loading_the_object_again_changes_nothing() -> None:
    again = rs.load(model("llama").network)
    assert torch.equal(again.run(text()), traced("llama").logits)
    assert again.view.facts["weights"] == model("llama").view.facts["weights"]


# How far it is


def rising(told: list[tuple[int, int]]) -> bool:
    done = [one for one, _ in told]
    return done == sorted(done) and done[-1] == 100 and {total for _, total in told} == {100}


@pytest.mark.parametrize("name", ["llama", "bert_bare"])
def test_progress_rises_from_reading_to_the_proof(name: str, tmp_path: Path) -> None:
    """A directory is read, hashed and proved; an object is hashed and proved. Being told changes nothing."""
    told: list[tuple[int, int]] = []
    saved(name, tmp_path)
    of = rs.load(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert rising(told)
    assert any(done < 50 for done, _ in told)
    assert any(50 < done < 75 for done, _ in told)
    assert any(75 < done < 100 for done, _ in told)
    assert of.view.facts["weights"] == model(name).view.facts["weights"]
    told.clear()
    rs.load(network(name), progress=lambda done, total: told.append((done, total)))
    assert rising(told)
    assert min(done for done, _ in told) >= 50


def test_progress_of_our_own_models(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    ours.saved("own", tmp_path)
    rs.load(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert rising(told)
    assert any(done < 50 for done, _ in told)


def test_counting_gives_the_hook_back(tmp_path: Path) -> None:
    """Whoever counted before us counts again, also after an error."""
    from transformers.utils import logging

    def before(bar, args, kw):
        return bar(*args, **kw)

    held = logging.set_tqdm_hook(before)
    try:
        rs.load(saved("gpt2", tmp_path))
        with pytest.raises(rs.RheoscopeError):
            rs.load(saved("llama", tmp_path / "wider", hidden_size=48))
    finally:
        assert logging.set_tqdm_hook(held) is before


# Our own models


def test_no_argument_opens_the_model_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.opening.DEFAULT", tmp_path)
    with pytest.raises(rs.RheoscopeError, match=r"this installation has no default model \(.*\); type the name"):
        rs.load()
    ours.saved("own", tmp_path)
    assert torch.equal(rs.load().run(text()), ours.traced("own").logits)


def test_a_directory_goes_to_whoever_saved_it(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "theirs")
    ours.saved("own", tmp_path / "ours")
    assert type(rs.load(tmp_path / "theirs")).__name__ == "Pretrained"
    assert type(rs.load(str(tmp_path / "ours"))).__name__ == "Trained"
    assert type(rs.load(ours.network("own"))).__name__ == "Trained"


def test_an_own_object_in_training_is_put_into_evaluation() -> None:
    net = copy.deepcopy(ours.network("own")).train()
    assert torch.equal(rs.load(net).run(text()), ours.traced("own").logits)
    assert not net.training
