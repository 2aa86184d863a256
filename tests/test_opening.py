"""rs.load: a model from a directory, from an object, in another dtype, or untrained."""

import copy
from pathlib import Path

import pytest
import torch

import rheoscope as rs
from rheoscope.messages.catalogue import translate
from tests.models import cases as ours
from tests.pretrained.cases import KINDS, WITH_LOGITS, distance, gap, model, network, saved, text, tokenizer, traced

every = pytest.mark.parametrize("name", [*KINDS, "bert_bare"])
FEW = ["gpt2", "llama", "gemma3", "opt_projected", "phi3", "neox", "bert"]
"""One model for each layout of weights in a file."""


@every
def test_directory_and_object_give_the_same_model(name: str, tmp_path: Path) -> None:
    loaded_model = rs.load(saved(name, tmp_path))
    trace = loaded_model.trace(text(), logits=name in WITH_LOGITS)
    assert torch.equal(trace.points, traced(name).points)
    if name in WITH_LOGITS:
        assert torch.equal(trace.logits, traced(name).logits)
    assert loaded_model.view.facts["weights"] == model(name).view.facts["weights"]
    assert loaded_model.view.facts["model"] == str(tmp_path)
    assert loaded_model.view.facts["type"] == network(name).config.model_type
    assert not loaded_model.network.training


def test_the_default_model_has_a_name() -> None:
    named, unnamed = rs.load("default"), rs.load()
    assert named.view.facts["weights"] == unnamed.view.facts["weights"]
    assert named.view.facts["model"] == unnamed.view.facts["model"] == "the default model"


@pytest.mark.parametrize("name", [*FEW, "bert_bare"])
def test_control_has_the_same_shapes_and_other_weights(name: str) -> None:
    control, again = (rs.load(network(name), untrained=True) for _ in range(2))
    assert control.view.facts["weights"] == again.view.facts["weights"] != model(name).view.facts["weights"]
    shapes = [x.shape for x in network(name).parameters()]
    assert [x.shape for x in control.network.parameters()] == shapes
    assert control.trace(text()).points.shape == traced(name).points.shape
    assert control.view.facts["certificate"].closure_error <= 1e-5
    assert control.network is not network(name)
    assert torch.equal(model(name).trace(text()).points, traced(name).points)


@pytest.mark.parametrize("name", FEW)
def test_control_of_a_directory_equals_that_of_the_object(name: str, tmp_path: Path) -> None:
    from_file = rs.load(saved(name, tmp_path), untrained=True)
    from_object = rs.load(network(name), untrained=True)
    assert from_file.view.facts["weights"] == from_object.view.facts["weights"]
    half = rs.load(tmp_path, untrained=True, dtype="bfloat16")
    assert half.view.facts["dtype"] == "bfloat16"
    assert gap(half.view.embed, from_file.view.embed) <= 1e-2


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_seed_chooses_the_initial_weights(name: str, tmp_path: Path) -> None:
    """As the family initialises: sd from the config, norms at 1; the name marks the control."""
    first, second = (rs.load(saved(name, tmp_path), untrained=True, seed=seed) for seed in (0, 5))
    assert first.view.facts["weights"] == rs.load(network(name), untrained=True).view.facts["weights"]
    assert first.view.facts["weights"] != second.view.facts["weights"]
    assert second.view.facts["weights"] == rs.load(network(name), untrained=True, seed=5).view.facts["weights"]
    assert second.view.facts["model"] == f"{tmp_path}, untrained (seed 5)"
    sd = network(name).config.initializer_range
    for control in (first, second):
        assert control.view.layer_heads[0].W_Q.std().item() == pytest.approx(sd, rel=0.1)
        assert control.view.embed.std().item() == pytest.approx(sd, rel=0.1)
    gains = [x for x in first.network.parameters() if x.ndim == 1]
    assert all(bool(((x == 0) | (x == 1)).all()) for x in gains)


def test_control_needs_no_weight_file(tmp_path: Path) -> None:
    """A config is enough. On another device the control has the dtype of the checkpoint, like the trained model."""
    copy.deepcopy(network("llama")).to(torch.bfloat16).save_pretrained(tmp_path)
    assert rs.load(tmp_path, untrained=True, device="cpu:0").view.facts["dtype"] == "bfloat16"
    assert rs.load(tmp_path, device="cpu:0").view.facts["dtype"] == "bfloat16"
    (tmp_path / "model.safetensors").unlink()
    assert rs.load(tmp_path, untrained=True).view.facts["dtype"] == "float32"
    with pytest.raises(rs.RheoscopeError, match=r"contains no \*.safetensors"):
        rs.load(tmp_path)
    ours.saved("own", tmp_path / "own")
    (tmp_path / "own" / "model.safetensors").unlink()
    control = rs.load(tmp_path / "own", untrained=True)
    assert control.view.facts["weights"] == rs.load(ours.network("own"), untrained=True).view.facts["weights"]


def test_default_model_has_a_control() -> None:
    first, second = rs.load(untrained=True), rs.load(untrained=True, seed=1)
    assert first.view.facts["model"] == "the default model, untrained (seed 0)"
    assert translate(first.view.facts["model"], "zh") == "默认模型，未训练（种子 0）"
    assert first.view.facts["weights"] != second.view.facts["weights"]
    assert first.trace("The keys").tokens == rs.load().trace("The keys").tokens


def test_wrong_seed_raises() -> None:
    for seed in (-1, True, 2**63):
        with pytest.raises(
            rs.RheoscopeError, match=r"seed must be an integer between 0 and 2\*\*63 - 1, got .*; type seed=0"
        ):
            rs.load(network("gpt2"), untrained=True, seed=seed)
    with pytest.raises(
        rs.RheoscopeError, match=r"seed=3 chooses initial weights, but untrained is False; type untrained=True, seed=3"
    ):
        rs.load(network("gpt2"), seed=3)
    with pytest.raises(rs.RheoscopeError, match="there is no directory"):
        rs.load("/no/such/place", untrained=True)


def test_control_has_the_dtype_of_the_object() -> None:
    control = rs.load(network("gpt2", torch.float64), untrained=True)
    assert control.view.facts["dtype"] == "float64"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for index, name in enumerate([*FEW, "qwen3", "bert_bare"])
        for dtype in (("bfloat16", "float16") if name == "llama" else (("bfloat16", "float16")[index % 2],))
    ],
)
def test_half_precision_model_is_certified_and_close_to_float32(name: str, dtype: str, tmp_path: Path) -> None:
    """A half-precision model is certified, close to float32, and the same from a file and from an object.

    One family has both dtypes, and the others one in turn.
    """
    loaded_model, eps = rs.load(saved(name, tmp_path), dtype=dtype), torch.finfo(getattr(torch, dtype)).eps
    assert loaded_model.view.facts["dtype"] == dtype
    certificate = loaded_model.view.facts["certificate"]
    assert certificate.dtype == dtype
    assert max(certificate.weights_error, certificate.closure_error, certificate.operators_error) <= 2 * eps
    trace = loaded_model.trace(text())
    read_points = trace.points[[step not in trace.unread_steps for step in trace.steps]]
    assert torch.equal(read_points, read_points.to(loaded_model.view.dtype).float())
    assert distance(trace.points, traced(name).points) <= 6 * eps
    assert trace.points.dtype is trace.weights(0, 0).dtype is trace.displacement(0, 0).dtype is torch.float32
    from_object = rs.load(copy.deepcopy(network(name)), dtype=dtype)
    assert torch.equal(from_object.trace(text()).points, trace.points)


@pytest.mark.parametrize("name", FEW)
def test_half_precision_operators_are_computed_in_float32(name: str) -> None:
    half = rs.load(copy.deepcopy(network(name)), dtype="bfloat16")
    result, full = rs.operators(half.view, draws=1), rs.operators(model(name).view, draws=1)
    for field in ("symmetry", "symmetry_at_offset", "stable_rank_M", "positive_share"):
        assert result[field].dtype == "float32"
        assert float(abs(result[field] - full[field]).max()) <= 5e-2 * max(1.0, float(abs(full[field]).max())), field


@pytest.mark.parametrize("name", FEW)
def test_float64_model_equals_the_float64_object(name: str, tmp_path: Path) -> None:
    loaded_model = rs.load(saved(name, tmp_path), dtype="float64")
    assert loaded_model.view.facts["dtype"] == "float64"
    assert distance(loaded_model.trace(text()).points, traced(name, torch.float64).points) <= 1e-6


def test_tokenizer_argument_has_priority(tmp_path: Path) -> None:
    tokenizer(start=True).save_pretrained(saved("llama", tmp_path))
    assert rs.load(tmp_path).ids("w5").tolist() == [1, 5]
    assert rs.load(tmp_path, tokenizer=tokenizer(start=False)).ids("w5").tolist() == [5]


def test_object_in_training_mode_runs_without_dropout() -> None:
    net = copy.deepcopy(network("gpt2")).train()
    loaded_model = rs.load(net)
    assert loaded_model.network is net
    assert torch.equal(loaded_model.run(text()), traced("gpt2").logits)


def test_strings_and_paths_are_equivalent(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    assert torch.equal(rs.load(str(tmp_path)).run(text()), rs.load(tmp_path).run(text()))


def test_loading_an_object_again_changes_nothing() -> None:
    again = rs.load(model("llama").network)
    assert torch.equal(again.run(text()), traced("llama").logits)
    assert again.view.facts["weights"] == model("llama").view.facts["weights"]


# Progress


def is_rising(calls: list[tuple[int, int]]) -> bool:
    done = [percent for percent, _ in calls]
    return done == sorted(done) and done[-1] == 100 and {total for _, total in calls} == {100}


@pytest.mark.parametrize("name", ["llama", "bert_bare"])
def test_progress_rises_from_reading_to_certification(name: str, tmp_path: Path) -> None:
    """A directory is read, hashed and certified; an object is hashed and certified. Progress changes nothing."""
    calls: list[tuple[int, int]] = []
    saved(name, tmp_path)
    loaded_model = rs.load(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert is_rising(calls)
    assert any(done < 50 for done, _ in calls)
    assert any(50 < done < 75 for done, _ in calls)
    assert any(75 < done < 100 for done, _ in calls)
    assert loaded_model.view.facts["weights"] == model(name).view.facts["weights"]
    calls.clear()
    rs.load(network(name), progress=lambda done, total: calls.append((done, total)))
    assert is_rising(calls)
    assert min(done for done, _ in calls) >= 50


def test_progress_of_native_models(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    ours.saved("own", tmp_path)
    rs.load(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert is_rising(calls)
    assert any(done < 50 for done, _ in calls)


def test_tqdm_hook_is_restored(tmp_path: Path) -> None:
    """The previous hook is restored, also after an error."""
    from transformers.utils import logging

    def before(bar, args, kw):
        return bar(*args, **kw)

    original_hook = logging.set_tqdm_hook(before)
    try:
        rs.load(saved("gpt2", tmp_path))
        with pytest.raises(rs.RheoscopeError):
            rs.load(saved("llama", tmp_path / "wider", hidden_size=48))
    finally:
        assert logging.set_tqdm_hook(original_hook) is before


# Native models


def test_without_argument_the_default_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.opening.DEFAULT_MODEL", tmp_path)
    with pytest.raises(
        rs.RheoscopeError, match=r"this installation has no default model \(.*\); type rs.load\('gpt2'\)"
    ):
        rs.load()
    ours.saved("own", tmp_path)
    assert torch.equal(rs.load().run(text()), ours.traced("own").logits)


def test_directory_is_loaded_by_its_own_format(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "theirs")
    ours.saved("own", tmp_path / "ours")
    assert type(rs.load(tmp_path / "theirs")).__name__ == "Pretrained"
    assert type(rs.load(str(tmp_path / "ours"))).__name__ == "NativeTransformer"
    assert type(rs.load(ours.network("own"))).__name__ == "NativeTransformer"


def test_native_object_in_training_mode_runs_without_dropout() -> None:
    net = copy.deepcopy(ours.network("own")).train()
    assert torch.equal(rs.load(net).run(text()), ours.traced("own").logits)
    assert net.training
