"""Tests of the files of sparse dictionaries: every layout equals its formula, and everything unknown is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.cases import random

WIDTH, SIZE = 8, 20
HOOK = "blocks.2.hook_resid_post"
x = 3 * random(9, 5, WIDTH) + 1
TENSORS = {
    "W_enc": random(0, WIDTH, SIZE),
    "b_enc": random(1, SIZE),
    "W_dec": random(2, SIZE, WIDTH),
    "b_dec": random(3, WIDTH),
}
W_enc, b_enc, W_dec, b_dec = TENSORS.values()
threshold, scale = random(4, SIZE).abs(), random(5, SIZE).abs() + 0.5
gate = {"b_gate": random(6, SIZE), "r_mag": random(7, SIZE), "b_mag": random(8, SIZE)}


def sae_lens(folder: Path, tensors: dict[str, Tensor] | None = None, **settings: Any) -> Path:
    """A directory in the layout of SAELens 6. Settings of the model are in `metadata`."""
    config = {"architecture": "standard", "d_in": WIDTH, "d_sae": SIZE, "apply_b_dec_to_input": True}
    config |= {
        "normalize_activations": "none",
        "metadata": {"hook_name": HOOK, **settings.pop("metadata", {})},
        **settings,
    }
    (folder / "cfg.json").write_text(json.dumps(config))
    save_file(TENSORS if tensors is None else tensors, folder / "sae_weights.safetensors")
    return folder


def dictionary_learning(folder: Path, name: str | None, tensors: dict[str, Tensor], **trainer: Any) -> Path:
    """A directory in the layout of dictionary_learning, with its pickle as safetensors."""
    trainer = {"submodule_name": "resid_post_layer_2", **({"dict_class": name} if name else {}), **trainer}
    (folder / "config.json").write_text(json.dumps({"trainer": trainer, "buffer": {}}))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "ae.safetensors")
    return folder


def top(products: Tensor, k: int) -> Tensor:
    """The k largest of every row, one row at a time."""
    result = torch.zeros_like(products)
    for row in range(len(products)):
        for index in sorted(range(products.shape[1]), key=lambda i: -float(products[row, i]))[:k]:
            result[row, index] = max(float(products[row, index]), 0)
    return result


lengths = W_dec.norm(dim=-1)
norms = x.norm(dim=-1, keepdim=True) / WIDTH**0.5
centred = x - x.mean(-1, keepdim=True)
deviation = x.std(-1, keepdim=True)


def relu(inputs: Tensor) -> Tensor:
    return ((inputs - b_dec) @ W_enc + b_enc).relu()


SAE_LENS: dict[str, tuple[dict[str, Any], Callable[[], Tensor]]] = {
    "standard": ({}, lambda: relu(x) @ W_dec + b_dec),
    "keeps its input": (
        {"apply_b_dec_to_input": False},
        lambda: (x @ W_enc + b_enc).relu() @ W_dec + b_dec,
    ),
    "jumprelu": (
        {"architecture": "jumprelu", "tensors": TENSORS | {"threshold": threshold}},
        lambda: (relu(x) * ((x - b_dec) @ W_enc + b_enc > threshold)) @ W_dec + b_dec,
    ),
    "topk": (
        {"architecture": "topk", "k": 3},
        lambda: top((x - b_dec) @ W_enc + b_enc, 3) @ W_dec + b_dec,
    ),
    "topk by lengths": (
        {"architecture": "topk", "k": 3, "rescale_acts_by_decoder_norm": True},
        lambda: (top(((x - b_dec) @ W_enc + b_enc) * lengths, 3) / lengths) @ W_dec + b_dec,
    ),
    "gated": (
        {"architecture": "gated", "tensors": {k: v for k, v in TENSORS.items() if k != "b_enc"} | gate},
        lambda: (
            (
                ((x - b_dec) @ W_enc + gate["b_gate"] > 0)
                * ((x - b_dec) @ (W_enc * gate["r_mag"].exp()) + gate["b_mag"]).relu()
            )
            @ W_dec
            + b_dec
        ),
    ),
    "finetuned": (
        {"finetuning_scaling_factor": True, "tensors": TENSORS | {"scaling_factor": scale}},
        lambda: (relu(x) * scale) @ W_dec + b_dec,
    ),
    "constant_norm_rescale": (
        {"normalize_activations": "constant_norm_rescale"},
        lambda: (relu(x / norms) @ W_dec + b_dec) * norms,
    ),
    "layer_norm": (
        {"normalize_activations": "layer_norm"},
        lambda: (relu(centred / (deviation + 1e-5)) @ W_dec + b_dec) * deviation + x.mean(-1, keepdim=True),
    ),
    "centred stream": (
        {"metadata": {"model_from_pretrained_kwargs": {"center_writing_weights": True}}},
        lambda: relu(centred) @ W_dec + b_dec,
    ),
}


@pytest.mark.parametrize("name", SAE_LENS)
def test_a_dictionary_of_sae_lens_equals_its_formula(name: str, tmp_path: Path) -> None:
    settings, expected = SAE_LENS[name]
    features = rs.Features.load(sae_lens(tmp_path, **dict(settings)))
    torch.testing.assert_close(features.reconstruct(x), expected(), rtol=1e-4, atol=1e-4)
    assert (str(features.reads), len(features)) == ("L2.resid_post", SIZE)


def test_a_config_before_version_6_has_its_settings_on_one_level(tmp_path: Path) -> None:
    path = sae_lens(tmp_path)
    old = {"hook_point": "blocks.1.hook_resid_pre", "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 2}}
    (path / "cfg.json").write_text(json.dumps(old | {"d_in": WIDTH, "normalize_activations": False}))
    features = rs.Features.load(path)
    assert (str(features.reads), int((features.encode(x) > 0).sum(-1).max())) == ("L1.resid_pre", 2)


def test_a_transcoder_reads_one_site_and_writes_another(tmp_path: Path) -> None:
    tensors = TENSORS | {"W_skip": random(11, WIDTH, WIDTH), "b_dec": b_dec}
    hooks = {"hook_name": "blocks.2.mlp.hook_in", "hook_name_out": "blocks.2.hook_mlp_out"}
    features = rs.Features.load(
        sae_lens(tmp_path, tensors, architecture="skip_transcoder", apply_b_dec_to_input=False, metadata=hooks)
    )
    expected = (x @ W_enc + b_enc).relu() @ W_dec + b_dec + x @ tensors["W_skip"].mT
    torch.testing.assert_close(features.reconstruct(x), expected, rtol=1e-4, atol=1e-4)
    assert (str(features.reads), str(features.writes)) == ("L2.mlp_input", "L2.mlp")


LINEAR = {"encoder.weight": W_enc.mT, "encoder.bias": b_enc, "decoder.weight": W_dec.mT}
BATCH = {"k": torch.tensor(3), "threshold": torch.tensor(0.7)}
DICTIONARIES: dict[str, tuple[dict[str, Tensor], Callable[[], Tensor]]] = {
    "AutoEncoder": (LINEAR | {"bias": b_dec}, lambda: relu(x) @ W_dec + b_dec),
    "AutoEncoderNew": (
        LINEAR | {"decoder.bias": b_dec},
        lambda: (x @ W_enc + b_enc).relu() @ W_dec + b_dec,
    ),
    "AutoEncoderTopK": (
        LINEAR | {"b_dec": b_dec} | BATCH,
        lambda: top((x - b_dec) @ W_enc + b_enc, 3) @ W_dec + b_dec,
    ),
    "BatchTopKSAE": (LINEAR | {"b_dec": b_dec} | BATCH, lambda: (relu(x) * (relu(x) > 0.7)) @ W_dec + b_dec),
    "GatedAutoEncoder": (
        {"encoder.weight": W_enc.mT, "decoder.weight": W_dec.mT, "decoder_bias": b_dec, "r_mag": gate["r_mag"]}
        | {"gate_bias": gate["b_gate"], "mag_bias": gate["b_mag"]},
        SAE_LENS["gated"][1],
    ),
    "JumpReluAutoEncoder": (
        TENSORS | {"threshold": threshold},
        lambda: ((x @ W_enc + b_enc).relu() * (x @ W_enc + b_enc > threshold)) @ W_dec + b_dec,
    ),
    "MatryoshkaBatchTopKSAE": (
        TENSORS | BATCH | {"group_sizes": torch.tensor([12, 8])},
        lambda: (relu(x) * (relu(x) > 0.7)) @ W_dec + b_dec,
    ),
}


@pytest.mark.parametrize("name", DICTIONARIES)
def test_a_dictionary_of_dictionary_learning_equals_its_formula(name: str, tmp_path: Path) -> None:
    tensors, expected = DICTIONARIES[name]
    features = rs.Features.load(dictionary_learning(tmp_path, name, tensors))
    torch.testing.assert_close(features.reconstruct(x), expected(), rtol=1e-4, atol=1e-4)
    assert str(features.reads) == "L2.resid_post"


def test_a_saved_dictionary_is_read_again(tmp_path: Path) -> None:
    features = rs.Features.load()
    saved = rs.Features.load(features.save(tmp_path / "copy"))
    assert torch.equal(saved.W_enc, features.W_enc)
    assert (saved.facts["weights"], str(saved.activation)) == (features.facts["weights"], str(features.activation))
    with pytest.raises(RheoscopeError, match="exists"):
        features.save(tmp_path / "copy")


def test_the_scale_of_inputs_is_folded_or_required(tmp_path: Path) -> None:
    path = sae_lens(tmp_path, normalize_activations="expected_average_only_in")
    with pytest.raises(RheoscopeError, match="'expected_average_only_in', whose factor is not in its files"):
        rs.Features.load(path)
    features = rs.Features.load(path, input_scale=0.5)
    expected = (relu(0.5 * x) @ W_dec + b_dec) / 0.5
    torch.testing.assert_close(features.reconstruct(x), expected, rtol=1e-4, atol=1e-4)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a pickle": (
        lambda path: torch.save(TENSORS, path / "ae.pt"),
        "ae.pt is a pickle, which can run code when it is opened; convert it first",
    ),
    "an empty directory": (lambda path: None, "holds no file, expected cfg.json and sae_weights.safetensors"),
    "other tensors": (
        lambda path: save_file({"weight": W_enc}, path / "model.safetensors"),
        "unknown layout of a dictionary: class None with the tensors weight",
    ),
    "an unknown class": (
        lambda path: dictionary_learning(path, "CrossCoder", LINEAR | {"bias": b_dec}),
        "unknown layout of a dictionary: class CrossCoder",
    ),
    "one of two classes": (
        lambda path: dictionary_learning(path, None, LINEAR | {"b_dec": b_dec} | BATCH),
        "those of AutoEncoderTopK and of BatchTopKSAE",
    ),
    "no hook point": (
        lambda path: dictionary_learning(path, "AutoEncoder", LINEAR | {"bias": b_dec}, submodule_name=None),
        "do not name its hook point",
    ),
    "another hook point": (
        lambda path: sae_lens(path, metadata={"hook_name": "blocks.2.attn.hook_z"}),
        "reads the hook point 'blocks.2.attn.hook_z'",
    ),
    "an unknown activation": (
        lambda path: sae_lens(path, activation_fn="tanh-relu"),
        "activation_fn 'tanh-relu', expected one of relu, topk",
    ),
    "an unknown architecture": (
        lambda path: sae_lens(path, architecture="temporal"),
        "architecture 'temporal', expected one of standard",
    ),
    "an unknown normalisation": (
        lambda path: sae_lens(path, normalize_activations="batch_norm"),
        "inputs scaled by 'batch_norm'",
    ),
    "one head": (lambda path: sae_lens(path, metadata={"hook_head_index": 3}), "hook_head_index 3"),
    "folded norms": (
        lambda path: sae_lens(
            path,
            metadata={"hook_name": "blocks.2.mlp.hook_in", "model_from_pretrained_kwargs": {"fold_ln": True}},
        ),
        "fold_ln True",
    ),
    "shapes": (
        lambda path: sae_lens(path, TENSORS | {"W_dec": random(0, SIZE + 1, WIDTH)}),
        "do not fit each other",
    ),
    "a missing tensor": (
        lambda path: sae_lens(path, {"W_enc": W_enc, "W_dec": W_dec}),
        "has no tensor 'b_dec'; it holds W_dec, W_enc",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_unknown_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    write, problem = REFUSED[name]
    write(tmp_path)
    with pytest.raises(RheoscopeError) as refused:
        rs.Features.load(tmp_path)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_site_may_be_chosen(tmp_path: Path) -> None:
    features = rs.Features.load(sae_lens(tmp_path), site="L1.mlp")
    assert str(features.writes) == "L1.mlp"
    with pytest.raises(RheoscopeError, match="site must be a layer and one of"):
        rs.Features.load(tmp_path, site="L1.hook_z")
