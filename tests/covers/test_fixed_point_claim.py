"""The claim that iterated layers come to rest: the reference map of each text, independence of texts, planted maps."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.fixed_point.analysis import layer_map, orbit
from rheoscope.covers.fixed_point.claims import APPLICATIONS, measure
from rheoscope.covers.fixed_point.layer_map import batch_layer_map
from rheoscope.shapes import RheoscopeError
from tests.cases import double, network
from tests.covers.cases import random_model
from tests.flow.claim_samples import assert_close, assert_texts_are_independent, sample_of, texts


def slow_rate(trace: Any) -> float:
    """The rate of one text from angles by arccos, one token at a time."""
    retained = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    rates = []
    for layer in range(trace.view.layers):
        clouds = orbit(layer_map(trace, layer), trace.layer_input(layer), APPLICATIONS).numpy()
        units = clouds / np.linalg.norm(clouds, axis=-1, keepdims=True)
        first, last = (
            np.mean([np.arccos(min(1, units[k, i] @ units[k - 1, i])) for i in retained]) for k in (1, APPLICATIONS)
        )
        rates.append(np.log(first / last) / (APPLICATIONS - 1))
    return float(np.mean(rates))


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "own_encoder_buckets"])
def test_claim_equals_the_reference_map_of_each_text(name: str) -> None:
    sample = sample_of(double(name), texts())
    expected = torch.tensor([slow_rate(trace) for trace in sample.batches[0]])
    assert_close(measure(sample)["rest"].effects, expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["neox", "gemma3", "own_encoder_buckets"])
def test_the_batched_map_equals_that_of_each_text(name: str) -> None:
    traces = double(name).trace(texts())
    images = batch_layer_map(traces, 1)(traces.layer_input(1))
    for image, trace in zip(images, traces, strict=True):
        assert_close(image[: len(trace)], layer_map(trace, 1)(trace.layer_input(1)))


@pytest.mark.parametrize("name", ["llama", "own_encoder_buckets"])
def test_texts_do_not_depend_on_each_other(name: str) -> None:
    assert_texts_are_independent(measure, name)


def test_a_layer_that_adds_a_constant_comes_to_rest() -> None:
    constant = copy.deepcopy(network("gpt2", torch.float64))
    with torch.no_grad():
        for block in constant.transformer.h:
            for projection in (block.attn.c_proj, block.mlp.c_proj):
                projection.weight.zero_()
            block.mlp.c_proj.bias.normal_(std=3, generator=torch.Generator().manual_seed(0))
    assert float(measure(sample_of(rs.load(constant), texts()))["rest"].effects.min()) > 0.3


def test_a_layer_that_rotates_every_token_never_comes_to_rest() -> None:
    model = random_model(width=16, norm="none")
    heads = model.view.heads_of(0)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).double()).Q
    with torch.no_grad():
        heads.W_V[0].copy_(torch.eye(16))
        heads.W_O[0].copy_(rotation - torch.eye(16))
        for parameter in model.network.stack.blocks[0].ffn.parameters():
            parameter.zero_()
    # all tokens of a text are equal, so attention returns the token itself
    rates = measure(sample_of(model, [[7] * 6, [9] * 4]))["rest"].effects
    assert float(rates.abs().max()) < 1e-6


def test_layers_without_effect_are_left_out_and_post_norm_is_refused() -> None:
    still = copy.deepcopy(network("gpt2", torch.float64))
    with torch.no_grad():
        for projection in (still.transformer.h[0].attn.c_proj, still.transformer.h[0].mlp.c_proj):
            projection.weight.zero_()
            projection.bias.zero_()
    assert measure(sample_of(rs.load(still), texts()))["rest"].effects.isfinite().all()
    with pytest.raises(RheoscopeError, match="it uses post-norm"):
        measure(sample_of(double("bert"), texts()))
