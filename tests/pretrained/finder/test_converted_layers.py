"""Adapters and quantised weights in networks without a family file: M and F are those of the plain network."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import rheoscope as rs
from tests.network_state import same_state, state_of
from tests.pretrained.finder.networks import build
from tests.pretrained.quantised_networks import Int8Linear, dequantised
from tests.pretrained.test_quantised_weights import gap

IDS = torch.arange(3, 12)
ADAPTED = {
    "olmo2": ["q_proj", "o_proj", "down_proj", "lm_head"],
    "bloom": ["query_key_value", "dense", "dense_4h_to_h"],
    "albert": ["query", "value", "dense"],
}
QUANTISED = {"olmo2": ["q_proj", "k_proj", "o_proj", "up_proj", "lm_head"], "phi": ["v_proj", "dense", "fc2"]}


@pytest.mark.filterwarnings("ignore:.*(fan_in_fan_out|tied)")
@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_has_the_operators_of_the_merged_network(name: str) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=3, target_modules=ADAPTED[name], init_lora_weights=False)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tied weights
        torch.manual_seed(1)
        adapted = peft.get_peft_model(build(name), config).eval().double()
    before = state_of(adapted)
    model = rs.load(adapted)
    merged = rs.load(copy.deepcopy(adapted).merge_and_unload())
    assert gap(model, merged) <= 1e-9
    assert gap(model, rs.load(build(name))) > 0.01
    assert torch.equal(model.trace(IDS, logits=True).logits, adapted(input_ids=IDS[None]).logits[0])
    if model.view.unembed is not None:
        assert torch.allclose(model.view.unembed, merged.view.unembed)
    assert same_state(before, state_of(adapted))
    unchanged = {(1, 0): lambda q, k, v, mechanism: mechanism.attend(q, k, v)}
    assert torch.allclose(model.run(IDS, edit=unchanged), model.run(IDS), atol=1e-6)


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_network_has_the_operators_of_the_dequantised_one(name: str) -> None:
    net = build(name).float()
    for module in list(net.modules()):
        for child_name, child in list(module.named_children()):
            if child_name in QUANTISED[name] and isinstance(child, nn.Linear):
                setattr(module, child_name, Int8Linear(child))
    before: Any = state_of(net)
    model = rs.load(net)
    certificate = model.view.facts["certificate"]
    assert gap(model, rs.load(dequantised(net))) <= 1e-5
    assert certificate.gap <= 1e-5
    assert certificate.quantisation
    assert torch.equal(model.trace(IDS, logits=True).logits, net(input_ids=IDS[None]).logits[0])
    assert same_state(before, state_of(net))
