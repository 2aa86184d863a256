"""A stored tape has each kind of layer once. Layers that differ are kept, and the proof refuses a wrong copy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from rheoscope.pretrained.proven_model import proven_model
from tests.pretrained.cases import PLAIN, randomised
from tests.pretrained.finder.test_tape_file import check_equal, folder, opened, refuse_recording, stored, tamper

__all__ = ["folder"]

DEEP = PLAIN | {"num_hidden_layers": 5}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
PAIR = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 0, "vocab_size": 61}
BART = {"d_model": 32, "max_position_embeddings": 40} | {
    f"{side}_{size}": value
    for side in ("encoder", "decoder")
    for size, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 48}.items()
}
Change = Callable[[Any], object]


def granite() -> Any:
    return hf.GraniteForCausalLM(hf.GraniteConfig(**DEEP, num_key_value_heads=2))


def gemma2() -> Any:
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(**DEEP, **GROUPED, sliding_window=6))


def olmo2() -> Any:
    return hf.Olmo2ForCausalLM(hf.Olmo2Config(**DEEP, num_key_value_heads=2))


def t5() -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 4, "num_decoder_layers": 3}
    return hf.T5ForConditionalGeneration(hf.T5Config(**PAIR, **sizes))


def marian() -> Any:
    return hf.MarianMTModel(hf.MarianConfig(**PAIR, **BART))


NETWORKS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "granite": (granite, ["model.layers.0"]),
    "gemma2": (gemma2, ["model.layers.0", "model.layers.1"]),
    "olmo2": (olmo2, ["model.layers.0"]),
    "t5": (t5, ["decoder.block.0", "decoder.block.1", "encoder.block.0", "encoder.block.1"]),
    "marian": (marian, ["model.decoder.layers.0", "model.encoder.layers.0"]),
}
"""Networks, and the layers that their tapes keep: windows alternate in Gemma 2, and T5's first layers make the bias of all."""


def build(make: Callable[[], Any], seed: int = 0, change: Change = lambda _: None) -> Any:
    torch.manual_seed(seed)
    network = randomised(make(), seed)
    change(network)
    return network


def recorded(network: Any) -> Any:
    """The model of a network whose layers are described one by one."""
    return proven_model(network, None, "a network", lambda *_: None, lambda *_: None, False)[0]


def originals(folder: Path) -> dict[str, str]:
    """Every layer of the only stored tape with the one that is kept for it."""
    (path,) = folder.iterdir()
    return dict(json.loads(stored(path))["copies"])


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_one_kind_are_described_from_one(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, names = NETWORKS[name]
    opened(build(make))
    assert sorted(set(originals(folder).values())) == names
    other = build(make, seed=1)
    expected = recorded(other)
    refuse_recording(monkeypatch)
    check_equal(opened(other), expected)


def set_scale(network: Any) -> None:
    network.model.layers[2].self_attn.scaling *= 2


def set_epsilon(network: Any) -> None:
    network.model.layers[2].input_layernorm.variance_epsilon = 0.1


def add_bias(network: Any) -> None:
    for index in (0, 1, 3, 4):
        network.model.layers[index].self_attn.q_proj.bias = nn.Parameter(torch.rand(32))


def set_residual(network: Any) -> None:
    network.model.layers[2].residual_multiplier = 0.3


DIFFERENT: dict[str, Change] = {
    "scale": set_scale,
    "epsilon of a norm": set_epsilon,
    "missing bias": add_bias,
    "factor of the residual": set_residual,
}


@torch.no_grad()
@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_layer_that_differs_is_kept(difference: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = DIFFERENT[difference]
    opened(build(granite, change=change))
    expected = {f"model.layers.{i}": f"model.layers.{2 if i == 2 else 0}" for i in range(5)}
    assert originals(folder) == expected
    other = build(granite, seed=1, change=change)
    described = recorded(other)
    refuse_recording(monkeypatch)
    check_equal(opened(other), described)


@torch.no_grad()
@pytest.mark.parametrize("window", [5, 7])
def test_a_layer_with_another_window_is_kept(window: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five layers have a window, and those have the same."""
    config = hf.Gemma2Config(**DEEP, **GROUPED, sliding_window=window)
    config.layer_types = [f"{'sliding' if index in (1, 4) else 'full'}_attention" for index in range(5)]
    opened(build(lambda: hf.Gemma2ForCausalLM(config)))
    assert list(originals(folder).values()) == [f"model.layers.{i}" for i in (0, 1, 0, 0, 1)]
    other = build(lambda: hf.Gemma2ForCausalLM(config), seed=1)
    expected = recorded(other)
    refuse_recording(monkeypatch)
    check_equal(opened(other), expected)


@torch.no_grad()
@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_wrong_copy_is_refused_by_the_proof(difference: str, folder: Path) -> None:
    """A tape that says that a layer has the graph of another one, although it differs, leads to no wrong description."""
    change = DIFFERENT[difference]
    opened(build(granite))
    (path,) = folder.iterdir()
    wrong = stored(path)
    changed = build(granite, change=change)
    expected = recorded(changed)
    opened(changed)
    (right,) = (x for x in folder.iterdir() if stored(x) != wrong)
    tamper(right, lambda _: wrong)
    check_equal(opened(build(granite, change=change)), expected)
    assert stored(right) != wrong


@torch.no_grad()
def test_copies_of_layers_that_are_missing_are_refused(folder: Path) -> None:
    expected = opened(build(granite))
    (path,) = folder.iterdir()
    right = stored(path)
    tamper(path, lambda text: text.replace('["model.layers.4", "model.layers.0"]', '["model.layers.4", "model.norm"]'))
    check_equal(opened(build(granite)), expected)
    assert stored(path) == right
