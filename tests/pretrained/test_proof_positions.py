"""The proof of loading at window edges, at the switch of a rotary scaling, at the last position, and beside padding."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.mask import Causal, Chunks, NoMask, Window
from rheoscope.pretrained.certificate import certify, certify_texts
from rheoscope.pretrained.proof_texts import ProofPlan, plain_batch
from rheoscope.report.model_description import model_block
from rheoscope.running.certificate import probe_ids
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary
from tests.pretrained.cases import GROUPED, PLAIN, llama, randomised, rope
from tests.pretrained.finder.networks import LLAMA4, build

Mutation = Callable[[Heads], Heads]
SWITCH, LAST = 16, 63
LONG_ROPE = rope(
    "longrope", short_factor=[1.0] * 4, long_factor=[2.0, 3.0, 4.0, 5.0], original_max_position_embeddings=SWITCH
)
MODERNBERT = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40,
    "global_attn_every_n_layers": 2, "local_attention": 32, "max_position_embeddings": 64, "cls_token_id": 1,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
}  # fmt: skip
NETWORKS: dict[str, Callable[[], Any]] = {
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=20, head_dim=16)),
    "cohere2": lambda: hf.Cohere2ForCausalLM(hf.Cohere2Config(**GROUPED, sliding_window=20)),
    "llama4": lambda: hf.Llama4ForCausalLM(hf.Llama4TextConfig(**LLAMA4 | {"attention_chunk_size": 12})),
    "modernbert": lambda: hf.ModernBertForMaskedLM(hf.ModernBertConfig(**MODERNBERT)),
    "llama_three": lambda: llama(
        **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=SWITCH)
    ),
    "llama_long": lambda: llama(**LONG_ROPE),
    "granite_long": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED, **LONG_ROPE)),
}


@cache
def loaded(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return rs.load(randomised(NETWORKS[name]()))


def masked_by(mask: Any) -> Mutation:
    return lambda heads: replace(heads, mechanism=replace(heads.mechanism, mask=mask))


def wrong_where(is_wrong: Callable[[Tensor], Tensor]) -> Mutation:
    """A rotation with half of the position at some positions."""

    def mutate(heads: Heads) -> Heads:
        position = heads.mechanism.position
        assert isinstance(position, ModelRotary)
        rotate = position.rotate

        def rotate_wrongly(x: Tensor, positions: Tensor) -> Tensor:
            return torch.where(is_wrong(positions)[:, None], rotate(x, positions // 2), rotate(x, positions))

        return replace(heads, mechanism=replace(heads.mechanism, position=ModelRotary(rotate_wrongly)))

    return mutate


MUTANTS: list[tuple[str, int, str, Mutation]] = [
    ("mistral", 0, "window one larger", masked_by(Causal() & Window(21))),
    ("mistral", 0, "window one smaller", masked_by(Causal() & Window(19))),
    ("mistral", 0, "no window", masked_by(Causal())),
    ("cohere2", 0, "window one larger", masked_by(Causal() & Window(21))),
    ("llama4", 0, "chunks one larger", masked_by(Causal() & Chunks(13))),
    ("llama4", 0, "chunks one smaller", masked_by(Causal() & Chunks(11))),
    ("llama4", 0, "a window in place of chunks", masked_by(Causal() & Window(12))),
    ("modernbert", 1, "no bidirectional window", masked_by(NoMask())),
    ("modernbert", 1, "bidirectional window one larger", masked_by(Window(18))),
    ("llama_three", 0, "wrong from the switch on", wrong_where(lambda p: p >= SWITCH)),
    ("llama_three", 0, "wrong just behind the switch", wrong_where(lambda p: p == SWITCH + 1)),
    ("llama_three", 0, "wrong just before the switch", wrong_where(lambda p: p == SWITCH - 1)),
    ("llama_three", 0, "wrong at the last position", wrong_where(lambda p: p == LAST)),
    ("llama_long", 0, "short factors beyond the switch", wrong_where(lambda p: (p > 0) & (p.max() >= SWITCH))),
    ("granite_long", 0, "wrong beyond the switch", wrong_where(lambda p: (p > 0) & (p.max() >= SWITCH))),
]


@pytest.mark.parametrize(("name", "layer", "mutant", "mutate"), MUTANTS, ids=[f"{x[0]}: {x[2]}" for x in MUTANTS])
def test_only_the_new_positions_reject_a_mutant(name: str, layer: int, mutant: str, mutate: Mutation) -> None:
    model = loaded(name)
    heads = list(model.view.layer_heads)
    heads[layer] = mutate(heads[layer])
    wrong = replace(model, view=replace(model.view, layer_heads=tuple(heads)))
    first_positions = ProofPlan((plain_batch(probe_ids(wrong.view)),))
    assert certify_texts(wrong, first_positions, lambda done, total: None).closure_error <= 1e-5
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(wrong)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_certificate_names_its_positions(name: str) -> None:
    model = loaded(name)
    coverage = model.view.facts["certificate"].coverage
    last = model.view.context_length - 1
    assert coverage.is_padded
    assert coverage.untested == ()
    assert last in coverage.positions
    edges = {"mistral": 20, "cohere2": 20, "llama4": 12, "modernbert": 17}
    if name in edges:
        assert edges[name] in coverage.windows
        assert {edges[name] - 1, edges[name], edges[name] + 1} <= set(coverage.positions)
    else:
        assert coverage.switches == (SWITCH,)
        assert {SWITCH - 1, SWITCH, SWITCH + 1} <= set(coverage.positions)


def test_describe_prints_the_positions() -> None:
    lines = [str(line.sentence) for line in model_block(loaded("mistral")).lines]
    assert any(
        "positions 0–4, 19–21, 26, 48, 49, 56, 63, the edges of windows of 20, padding" in line for line in lines
    )
    described = rs.describe(loaded("mistral"))
    assert described.windows_certified.values.tolist() == [20]
    assert described.positions_certified.values[-1] == LAST
    assert bool(described.padding_certified)
    assert "not_certified" not in described.attrs


def test_a_network_that_ignores_its_mask_is_not_certified_beside_padding() -> None:
    network = randomised(hf.BertModel(hf.BertConfig(**PLAIN)))
    forward = network.forward
    network.forward = lambda input_ids, attention_mask=None, use_cache=False: forward(input_ids=input_ids)
    model = rs.load(network)
    assert not model.view.facts["certificate"].coverage.is_padded
    assert rs.describe(model).attrs["not_certified"] == "padding (the network reads it)"
    assert any("padding (the network reads it)" in str(line.sentence) for line in model_block(model).lines)


def test_a_network_that_refuses_padding_is_certified_without_it() -> None:
    network = randomised(hf.BertModel(hf.BertConfig(**PLAIN)))
    forward = network.forward

    def without_padding(input_ids: Tensor, attention_mask: Any = None, use_cache: bool = False) -> Any:
        if attention_mask is not None:
            raise ValueError("no padding here")
        return forward(input_ids=input_ids)

    network.forward = without_padding
    coverage = rs.load(network).view.facts["certificate"].coverage
    assert coverage.positions == tuple(range(8))
    assert [str(x) for x in coverage.untested] == ["padding and far positions (ValueError: no padding here)"]


@pytest.mark.parametrize(
    ("name", "untested"),
    [
        ("gpt_neo", "window edges (the blocks make their own mask)"),
        ("granite", "padding on the left (the network returns NaN)"),
    ],
)
def test_what_a_network_cannot_do_is_named(name: str, untested: str) -> None:
    coverage = rs.load(build(name)).view.facts["certificate"].coverage
    assert untested in [str(x) for x in coverage.untested]


def test_rotary_frequencies_end_as_they_began() -> None:
    for parameters in (LONG_ROPE, rope("dynamic", factor=4.0, original_max_position_embeddings=SWITCH)):
        network = randomised(hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED, **parameters)))
        before = network.model.rotary_emb.inv_freq.clone()
        rs.load(network)
        assert torch.equal(network.model.rotary_emb.inv_freq, before)


def test_far_positions_are_read_alone() -> None:
    network = randomised(hf.GraniteForCausalLM(hf.GraniteConfig(**GROUPED | {"max_position_embeddings": 1 << 17})))
    model = rs.load(network)
    positions = torch.tensor([0, 4, (1 << 17) - 2])
    rotation: Any = model.view.layer_heads[0].mechanism.position
    x = torch.ones(1, 1, 3, 8)
    cosines, sines = network.model.rotary_emb(x, positions[None])
    expected = x * cosines + torch.cat([-x[..., 4:], x[..., :4]], -1) * sines
    assert torch.allclose(rotation.encode(x, positions), expected, atol=1e-6)
    assert all(size <= 1024 for table, _ in rotation.rotate.__self__.cache.values() for size in table.shape)
