"""Checkpoints of our own models: equal after a round trip, and a one-line error for each kind of damage."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import rheoscope as rs
from rheoscope.models.checkpoint import initial_network, load_network, load_weights, read_config, save
from rheoscope.models.transformer import Transformer, Translator
from rheoscope.models.vocabulary import character_tokenizer
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.models.cases import CASES, EVERY, model, network, saved, tiny, traced
from tests.pretrained.cases import gap, randomised, text

Q, FFN = "stack.blocks.1.attention.read.weight", "stack.blocks.0.ffn.read.weight"


@pytest.mark.parametrize("name", EVERY)
def test_what_was_saved_opens_with_the_same_logits(name: str, tmp_path: Path) -> None:
    loaded = rs.load(saved(name, tmp_path))
    assert torch.equal(loaded.trace(text(), logits=True).logits, traced(name).logits)
    assert loaded.view.facts["weights"] == model(name).view.facts["weights"]
    assert loaded.view.facts["model"] == str(tmp_path)
    assert not loaded.network.training
    assert read_config(tmp_path) == CASES[name]


def test_the_files_of_a_model(tmp_path: Path) -> None:
    saved("own", tmp_path / "deep" / "er", tokenizer=character_tokenizer(["abc"], []), card={"loss": 1.5})
    files = sorted(file.name for file in (tmp_path / "deep" / "er").iterdir())
    assert files == ["card.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert json.loads((tmp_path / "deep" / "er" / "card.json").read_text()) == {"loss": 1.5}
    assert json.loads((tmp_path / "deep" / "er" / "config.json").read_text())["model_type"] == "rheoscope"


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    tied, untied = (
        set(load_file(saved(name, tmp_path / name) / "model.safetensors")) for name in ("own_biased", "own")
    )
    assert "unembed.weight" not in tied
    assert {"unembed.weight", "stack.embed.weight"} <= untied
    reloaded, _ = load_network(tmp_path / "own_biased")
    assert reloaded.unembed.weight is reloaded.stack.embed.weight


def test_an_encoder_decoder_is_saved_and_filled_again(tmp_path: Path) -> None:
    net = randomised(Translator(tiny(form="encoder-decoder", bias=True)))
    reloaded, _ = load_network(save(net, tmp_path))
    assert isinstance(reloaded, Translator)
    source, target = text(1)[None], text(2, 7)[None]
    assert torch.equal(reloaded(source, target), net(source, target))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_stored_in_half_precision_take_half_the_space(dtype: str, tmp_path: Path) -> None:
    """They are stored in the given dtype and opened as float32 on a CPU, equal to the rounded weights."""
    saved("own", tmp_path / "full")
    saved("own", tmp_path / "half", dtype=dtype)
    assert all(x.dtype is getattr(torch, dtype) for x in load_file(tmp_path / "half" / "model.safetensors").values())
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    loaded = rs.load(tmp_path / "half")
    assert loaded.view.facts["dtype"] == "float32"
    rounded = network("own").stack.embed.weight.to(getattr(torch, dtype)).float()
    assert torch.equal(loaded.view.embed, rounded)
    assert load_weights(Transformer(CASES["own"]), tmp_path / "half") is getattr(torch, dtype)
    assert rs.load(tmp_path / "half", dtype="float64").view.facts["dtype"] == "float64"


def test_a_float64_model_is_saved_without_rounding(tmp_path: Path) -> None:
    save(network("own", torch.float64), tmp_path)
    loaded = rs.load(tmp_path, dtype="float64")
    assert gap(loaded.run(text()), traced("own", torch.float64).logits) <= 1e-12


def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    saved("own_biased", tmp_path)
    assert torch.equal(rs.load(saved("own", tmp_path)).run(text()), traced("own").logits)


def test_a_failed_save_leaves_the_model_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("own", tmp_path)
    content = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def raise_disk_full(*args: Any, **kw: Any) -> None:
        from safetensors import SafetensorError

        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        saved("own_biased", tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == content


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root writes anywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RheoscopeError, match="cannot write"):
        saved("own", tmp_path / "model")


def test_save_accepts_the_path_of_a_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "words.json"
    character_tokenizer(["abc"], []).save(str(file))
    loaded = rs.load(saved("own", tmp_path / "model", tokenizer=file))
    assert loaded.trace("cab").ids.tolist() == [2, 0, 1]


# Damaged checkpoints


def with_tensors(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    file = directory / "model.safetensors"
    tensors = {key: x.clone() for key, x in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    return directory


def with_config(directory: Path, **fields: Any) -> Path:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return directory


def truncated(directory: Path, length: int) -> Path:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    return directory


def set_value(name: str, value: float) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[5] = value

    return change


def without(directory: Path, file: str) -> Path:
    (directory / file).unlink()
    return directory


def with_file(directory: Path, file: str, content: str) -> Path:
    (directory / file).write_text(content)
    return directory


UNFIT = r"the weights of .* do not fit its config \({}: .*\); download or save both again"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda to: truncated(to, 0), r"model.safetensors is truncated or corrupt .*; download it again"),
    "cut in the header": (lambda to: truncated(to, 60), r"truncated or corrupt .*; download it again"),
    "one byte short": (lambda to: truncated(to, -1), r"truncated or corrupt .*; download it again"),
    "no weights": (lambda to: without(to, "model.safetensors"), r"contains no model.safetensors; choose the directory"),
    "wider": (lambda to: with_config(to, width=48), UNFIT.format("wrong shape")),
    "more words": (lambda to: with_config(to, vocabulary=41), UNFIT.format("wrong shape")),
    "more layers": (lambda to: with_config(to, depth=3), UNFIT.format("missing")),
    "fewer layers": (lambda to: with_config(to, depth=1), UNFIT.format("unknown")),
    "biases": (lambda to: with_config(to, bias=True), UNFIT.format("missing")),
    "other positions": (lambda to: with_config(to, position="learned"), UNFIT.format("missing")),
    "missing tensor": (
        lambda to: with_tensors(to, lambda x: x.pop(Q)),
        rf"\(missing: {Q}\); download or save both again",
    ),
    "further tensor": (
        lambda to: with_tensors(to, lambda x: x.update(more=torch.ones(2))),
        r"\(unknown: more\); download or save both again",
    ),
    "whole numbers": (
        lambda to: with_tensors(to, lambda x: x.update({Q: x[Q].long()})),
        UNFIT.format("not floating-point"),
    ),
    "NaN": (
        lambda to: with_tensors(to, set_value(FFN, torch.nan)),
        rf"the weight {FFN} holds NaN or infinity; download the checkpoint again",
    ),
    "infinity": (lambda to: with_tensors(to, set_value(Q, torch.inf)), rf"the weight {Q} holds NaN or infinity"),
    "unknown field": (lambda to: with_config(to, flavour="sweet"), r"the config has an unknown field 'flavour'; train"),
    "unknown mechanism": (
        lambda to: with_config(to, mechanism="magic"),
        r"unknown mechanism 'magic'; type rs.mechanism",
    ),
    "unknown form": (lambda to: with_config(to, form="loop"), r"form must be one of decoder, encoder, .*, got 'loop'"),
    "no tokenizer at all": (
        lambda to: with_file(to, "tokenizer.json", "{"),
        r"is not a valid tokenizer.json \(.*\); download it",
    ),
    "more tokens than words": (
        lambda to: with_file(
            to, "tokenizer.json", character_tokenizer(["".join(map(chr, range(65, 120)))], []).to_str()
        ),
        r"tokenizer.json has 55 tokens, but the model has 40; download or save both again",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_checkpoint_is_refused_in_one_line(fault: str, tmp_path: Path) -> None:
    make, pattern = BROKEN[fault]
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=pattern) as error:
        rs.load(make(saved("own", tmp_path)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ("{", r"config.json is not valid JSON \(.*\); download or save it again"),
        ("[]", 'lacks "model_type": "rheoscope"'),
        ('{"model_type": "gpt2"}', 'lacks "model_type": "rheoscope"'),
    ],
)
def test_a_config_of_something_else_is_refused(content: str, pattern: str, tmp_path: Path) -> None:
    saved("own", tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RheoscopeError, match=pattern):
        load_network(tmp_path)
    with pytest.raises(RheoscopeError, match=r"contains no config.json; choose the directory that a model was"):
        load_network(tmp_path / "nowhere")


def test_no_device_and_no_dtype_of_that_name(tmp_path: Path) -> None:
    for source in (saved("own", tmp_path), network("own")):
        with pytest.raises(
            RheoscopeError, match="dtype must be one of float32, bfloat16, float16, float64, got 'float8'"
        ):
            rs.load(source, dtype="float8")
        with pytest.raises(RheoscopeError, match="there is no device 'warp' on this machine; type device='cpu'"):
            rs.load(source, device="warp")


# The control


@pytest.mark.parametrize("name", ["own", "own_biased", "own_additive"])
def test_the_control_has_the_same_shapes_and_always_the_same_weights(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = rs.load(saved(name, tmp_path), untrained=True), rs.load(network(name), untrained=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.view.facts["weights"] == second.view.facts["weights"] != model(name).view.facts["weights"]
    assert second.network is not network(name)
    assert torch.equal(model(name).run(text()), traced(name).logits)
    assert rs.load(tmp_path, untrained=True, dtype="bfloat16").view.facts["dtype"] == "bfloat16"


def test_opening_leaves_the_seed_alone(tmp_path: Path) -> None:
    saved("own", tmp_path)
    before = torch.random.get_rng_state()
    load_network(tmp_path)
    initial_network(CASES["own"])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "card.json"])
def test_a_model_of_others_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"model_type": "gpt2"}')
    with pytest.raises(RheoscopeError, match=f"contains {name}, which Rheoscope did not write; choose another"):
        save(Transformer(tiny()), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"model_type": "gpt2"}'
