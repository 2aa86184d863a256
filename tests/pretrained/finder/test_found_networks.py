"""Networks without a family file: what was found equals what the network computes."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import rheoscope as rs
from rheoscope.attention.mask import Causal, Chunks, Intersection
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.attention.score import Gram
from rheoscope.pretrained.certificate import trace_eager
from rheoscope.pretrained.finder import describe_network
from rheoscope.pretrained.output_edits import edit_outputs
from rheoscope.running.certificate import closure_error
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model_parts import ModelRotary
from tests.covers.cases import autograd_gradient
from tests.pretrained.cases import gap, text
from tests.pretrained.finder.networks import JETMOE, NETWORKS, build

FLOAT32_ISLANDS = 2e-6
"""Rotary tables and RMSNorms run in float32 inside a float64 network."""
ENCODERS = (
    "albert", "distilbert", "electra", "esmc", "ibert", "mpnet", "roc_bert", "roformer", "visual_bert", "xlm_roberta",
)  # fmt: skip
BY_OUTPUT = (
    "albert",
    "bitnet",
    "bloom",
    "diffllama",
    "falcon",
    "gemma2",
    "gemma3n",
    "gpt_oss",
    "deepseek_v3",
    "distilbert",
    "minimax",
)
"""Networks whose heads are edited in different ways."""


@cache
def loaded(name: str) -> Any:
    return rs.load(build(name))


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_and_updates_equal_those_of_eager_attention(name: str) -> None:
    model = loaded(name)
    assert model.view.facts["family"] == "found"
    trace, eager_weights = trace_eager(model, text(n=24))
    assert len(eager_weights) == model.view.layers
    for layer, layer_weights in enumerate(eager_weights):
        weights = model.view.layer_heads[layer].all_weights(trace.layer_input(layer))
        if name == "granite_swa":  # its softmax returns weights without the sink
            weights = weights / weights.sum(-1, keepdim=True)
        assert gap(weights, layer_weights) < FLOAT32_ISLANDS
        assert closure_error(trace, layer) < FLOAT32_ISLANDS


@pytest.mark.parametrize("name", ["bloom", "falcon", "gpt_oss", "cohere"])
def test_heads_apply_every_weight_once(name: str) -> None:
    """A fused weight serves queries, keys and values."""
    model, n_calls = loaded(name), dict[nn.Module, int]()
    heads, points = model.view.layer_heads[1], model.trace(text()).layer_input(1)
    leaves = [x for x in model.network.modules() if next(x.children(), None) is None]
    handles = [
        x.register_forward_hook(lambda module, *_: n_calls.update({module: n_calls.get(module, 0) + 1})) for x in leaves
    ]
    heads.project(points[None])
    for handle in handles:
        handle.remove()
    assert n_calls
    assert set(n_calls.values()) == {1}


@pytest.mark.parametrize("name", ["granite", "gptj", "cohere2", "deepseek_v3"])
def test_the_rotation_is_a_function_of_all_layers_that_rotate_alike(name: str) -> None:
    """A mechanism has no tensors and no tape of its own, and prints on a few lines."""
    mechanisms = [x.mechanism for x in loaded(name).view.layer_heads]
    rotations = {x.position.rotate for x in mechanisms if not x.position.is_trivial}  # type: ignore[attr-defined]
    assert len(rotations) == 1
    for mechanism in mechanisms:
        assert not tensors_by_path(mechanism)
        assert len(repr(mechanism)) < 500


@pytest.mark.parametrize("name", ["granite", "gptj", "cohere2", "deepseek_v3", "roformer", "phi"])
def test_the_transposed_rotation_is_its_gradient(name: str) -> None:
    heads = next(x for x in loaded(name).view.layer_heads if isinstance(x.mechanism.position, ModelRotary))
    position, positions = heads.mechanism.position, torch.tensor([0, 3, 17, 2])
    x, dy = torch.randn(2, 1, 4, 4, heads.W_Q.shape[-1], generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    (expected,) = torch.autograd.grad(position.encode(x, positions), x, dy)
    gradient, _ = position.pullback(positions, dy)
    assert gap(gradient, expected) < 1e-5
    assert gap(gradient, dy) > 0.1


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ENCODERS])
def test_the_lens_of_the_last_points_gives_the_logits(name: str) -> None:
    model = loaded(name)
    trace = model.trace(text(), logits=True)
    assert abs(float(rs.readout(trace).logit) - float(trace.logits[-1].max())) < 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_the_form_M_of_the_normalised_points(name: str) -> None:
    """Up to what softmax ignores, and for heads without a norm of queries and keys, a cap, or a bias."""
    model = loaded(name)
    heads, trace = model.view.layer_heads[0], model.trace(text())
    if heads.q_norm is not None or heads.mechanism.score.without_cap is not heads.mechanism.score:
        return
    if heads.b_Q is not None or heads.b_K is not None or heads.norm.bias is not None:
        return
    x = trace.layer_input(0)
    x_hat, scores = heads.norm.normalise(x), heads.scores(x, 1)
    for i, j in ((5, 5), (9, 2), (17, 16)):
        form = heads.M()[1](i - j).left @ heads.M()[1](i - j).right
        bias = heads.mechanism.position.bias(torch.tensor([i]), torch.tensor([j]))
        expected = x_hat[i] @ form @ x_hat[j] + (0 if bias is None else bias.reshape(-1, 1, 1)[1])
        assert gap(scores[i, j], expected.squeeze()) < 1e-4


@pytest.mark.parametrize("name", BY_OUTPUT)
def test_an_edit_removes_exactly_the_displacement_of_its_head(name: str) -> None:
    def silence(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)

    model, ids = loaded(name), text()
    trace, edited = model.trace(ids), model.trace(ids, edit={(1, 2): silence})
    labels = [str(step) for step in trace.steps]
    middle = labels.index("L1.attn_sum" if "L1.attn_sum" in labels else "L1.resid_mid")
    removed = trace.points[middle] - edited.points[middle]
    if trace.view.layer_heads[1].output_norm is None and trace.view.layer_heads[1].heads_norm is None:
        assert gap(removed, trace.displacements(1)[2]) < FLOAT32_ISLANDS
    assert removed.norm() > 0
    same = model.run(ids, edit={(1, 2): lambda q, k, v, mechanism: mechanism.attend(q, k, v)})
    assert gap(same, model.run(ids)) < 1e-5


@pytest.mark.parametrize("name", ["bitnet", "bitnet_layer_norm"])
def test_edited_outputs_pass_the_norm_of_all_heads(name: str) -> None:
    """The same edit through the attention function and through the input of the output matrix."""
    model, ids = loaded(name), text()

    def halve(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return out * torch.tensor([1.0, 0.5, 1.0, -1.0]).to(out)[:, None, None]

    expected = model.run(ids, edit={1: halve})
    with edit_outputs(model.network, model.description, {1: halve}):
        assert gap(model.run(ids), expected) < 1e-5
    assert gap(model.run(ids), expected) > 1e-3


@pytest.mark.parametrize("name", ["bitnet", "diffllama", "bitnet_layer_norm", "gemma3n"])
def test_the_gradient_of_scores_passes_the_norm_of_all_heads(name: str) -> None:
    model, ids = loaded(name), text(n=9)
    R = rs.reversed_map(model, model.trace(ids), 0, 1, target=7)
    expected = autograd_gradient(model, ids, 0, 1, 7, -1)
    assert float((R - expected).norm()) <= 1e-5 * float(expected.norm()) + 1e-12


def test_blocks_without_a_softmax_are_named_and_traced() -> None:
    model = loaded("qwen3_next")
    assert model.view.facts["opaque_blocks"] == "model.layers.0, model.layers.2"
    assert model.view.layers == 1
    trace = model.trace(text(), logits=True)
    assert rs.transport(trace).kappa.notnull().all()


def test_blocks_that_share_keys_and_values_with_another_have_no_operators() -> None:
    model = loaded("gemma4")
    assert model.view.facts["opaque_blocks"] == "model.layers.2, model.layers.3"
    assert model.view.layers == 2
    assert gap(model.trace(text(), logits=True).logits, model.run(text())) < FLOAT32_ISLANDS


def test_points_of_several_streams_are_what_attention_reads_and_what_it_is_added_to() -> None:
    """The points after the last layer are what the last norm reads: the mean of all streams."""
    model, ids = loaded("gemma3n"), text()
    assert model.view.facts["streams"] == 4
    assert model.view.facts["opaque_blocks"] == "model.layers.2, model.layers.3"
    layers, last = model.network.model.layers, model.network.model.norm
    inputs: list[Tensor] = []
    modules = [layers[0].input_layernorm, layers[1].input_layernorm, last]
    handles = [x.register_forward_pre_hook(lambda module, args: inputs.append(args[0][0])) for x in modules]
    trace = model.trace(ids)
    for handle in handles:
        handle.remove()
    for index, expected in zip((0, 2, 4), inputs, strict=True):
        assert gap(trace.points[index], expected) == 0
    with outputs_of([layers[0].post_attention_layernorm]) as updates:
        model.run(ids)
    assert gap(trace.points_at("L0.resid_mid"), inputs[0] + updates[0]) < FLOAT32_ISLANDS


def test_a_point_of_several_streams_is_edited_after_attention_alone() -> None:
    model, ids = loaded("gemma3n"), text()
    shift = torch.linspace(-1, 1, 32, dtype=torch.float64)
    norm = model.network.model.layers[1].post_attention_layernorm
    handle = norm.register_forward_hook(lambda module, args, out: out + shift)
    expected = model.run(ids)
    handle.remove()
    assert gap(model.run(ids, hooks={"L1.resid_mid": lambda x: x + shift}), expected) < FLOAT32_ISLANDS
    with pytest.raises(RheoscopeError, match=r"L0.resid_post is mixed from several streams"):
        model.run(ids, hooks={"L0.resid_post": lambda x: x + shift})


def test_patching_points_of_several_streams_is_refused_in_one_line() -> None:
    model, ids = loaded("gemma3n"), text()
    functions: list[Any] = [rs.patch, rs.patch_estimates, rs.circuit]
    for patching in functions:
        with pytest.raises(
            RheoscopeError, match=r"write into several streams.*type rs.relation_swap\(model, trace, other\)"
        ):
            patching(model, model.trace(ids), text(1))


@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])
def test_blocks_that_share_more_than_points_are_never_skipped(name: str, tmp_path: Path) -> None:
    model, ids = loaded(name), text()
    outputs = model.block_outputs(ids[None])
    assert gap(model.run_batch(ids[None], block_outputs=outputs[:1])[0], model.run(ids)) < FLOAT32_ISLANDS
    expected = rs.resumable_trace(model, [ids], tmp_path).points
    (tmp_path / "layer_0001.safetensors").unlink()
    assert gap(rs.resumable_trace(model, [ids], tmp_path).points, expected) < FLOAT32_ISLANDS


def test_blocks_that_begin_with_a_norm_are_read_from_norm_to_norm() -> None:
    """The stream of MiniMax is multiplied by 3.5 before attention is added, and by 2 before the feed-forward part."""
    model, ids = loaded("minimax"), text()
    assert model.view.facts["opaque_blocks"] == "model.layers.0, model.layers.3"
    trace, norms = model.trace(ids), [layer.input_layernorm for layer in model.network.model.layers]
    with outputs_of([*norms, model.network.model.norm]) as outputs:
        model.run(ids)
    assert gap(trace.layer_input(0), outputs[1]) < FLOAT32_ISLANDS
    assert gap(trace.layer_input(1), outputs[2]) < FLOAT32_ISLANDS
    assert gap(trace.points[-1], outputs[4]) < FLOAT32_ISLANDS
    middle, total = (trace.points_at(f"L0.{kind}") for kind in ("resid_mid", "mlp_sum"))
    assert gap(middle + trace.view.mlps[0](middle), total) < FLOAT32_ISLANDS


def test_a_hook_at_a_sum_changes_points_and_not_their_multiple() -> None:
    model, ids = loaded("minimax"), text()
    shift = torch.linspace(-1, 1, 32, dtype=torch.float64)
    norm = model.network.model.layers[1].post_attention_layernorm
    handle = norm.register_forward_pre_hook(lambda module, args: (args[0] + 3.5 * shift,))
    expected = model.run(ids)
    handle.remove()
    assert gap(model.run(ids, hooks={"L0.attn_sum": lambda x: x + shift}), expected) < FLOAT32_ISLANDS
    assert gap(model.run(ids), expected) > 1e-3


@contextmanager
def outputs_of(modules: list[Any]) -> Iterator[list[Tensor]]:
    """What modules return inside the block, for the first text, in their order."""
    outputs: list[Tensor] = []
    handles = [x.register_forward_hook(lambda module, args, out: outputs.append(out[0])) for x in modules]
    yield outputs
    for handle in handles:
        handle.remove()


def test_padding_and_batches_leave_every_text_unchanged() -> None:
    for name in ("falcon", "cohere2", "bloom"):
        texts = [text(n=18), text(1, n=9)]
        traces = loaded(name).trace(texts)
        for trace, ids in zip(traces, texts, strict=True):
            assert gap(trace.points, loaded(name).trace(ids).points) < FLOAT32_ISLANDS


def test_a_network_in_training_mode_is_described_without_its_dropout() -> None:
    network = build("distilbert").train()
    assert rs.load(network).view.facts["certificate"].closure_error < FLOAT32_ISLANDS
    assert all(module.training for module in network.modules())


def test_modules_that_need_further_arguments_are_read_by_their_parts() -> None:
    """The intermediate layer of I-BERT needs a scale too."""
    trace = loaded("ibert").trace(text())
    middle, total = trace.points_at("L0.resid_mid"), trace.points_at("L0.mlp_sum")
    assert gap(middle + trace.view.mlps[0](middle), total) < FLOAT32_ISLANDS


def test_experts_read_a_cloud_without_a_batch() -> None:
    trace = loaded("gpt_oss").trace(text())
    middle, after = trace.points[trace.mid_steps[0]], trace.layer_input(1)
    assert gap(middle + trace.view.mlps[0](middle), after) < FLOAT32_ISLANDS


@pytest.mark.parametrize("name", ["ministral3", "llama4", "deepseek_v32"])
def test_texts_are_as_long_as_scores_depend_on_distances(name: str) -> None:
    """Beyond 32 tokens, queries grow with their position, or choose 32 of their keys."""
    assert loaded(name).view.context_length == 32
    with pytest.raises(RheoscopeError, match="the model reads at most 32"):
        loaded(name).trace(text(n=33))


def test_a_mask_of_chunks_is_no_window() -> None:
    chunked, full = (heads.mechanism.mask for heads in loaded("llama4").view.layer_heads)
    assert isinstance(full, Causal)
    assert isinstance(chunked, Intersection)
    assert chunked.b.size == 5  # type: ignore[attr-defined]
    assert isinstance(chunked.b, Chunks)


# What cannot be expressed


def test_a_network_without_softmax_is_refused() -> None:
    network = hf.MambaForCausalLM(hf.MambaConfig(vocab_size=40, hidden_size=8, num_hidden_layers=1, state_size=4))
    with pytest.raises(RheoscopeError, match="MambaForCausalLM has no softmax over tokens, so it has no attention"):
        rs.load(network.eval())


def test_an_operation_outside_the_grammar_is_named() -> None:
    class Gated(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return torch.sinh(self.inner(x))

    network = build("olmo2")
    network.model.layers[1].self_attn.v_proj = Gated(network.model.layers[1].self_attn.v_proj)
    with pytest.raises(RheoscopeError, match="Gated: sinh lies between the tokens and the scores"):
        rs.load(network)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            lambda: hf.LEDForConditionalGeneration(
                hf.LEDConfig(
                    d_model=16,
                    encoder_layers=1,
                    decoder_layers=1,
                    encoder_ffn_dim=8,
                    decoder_ffn_dim=8,
                    vocab_size=40,
                    encoder_attention_heads=2,
                    decoder_attention_heads=2,
                    attention_window=4,
                )
            ),
            "LEDForConditionalGeneration has a softmax over 2 × 5 tokens, expected one over 13 × 13",
        ),
        (
            lambda: hf.JetMoeForCausalLM(hf.JetMoeConfig(**JETMOE)),
            "JetMoeAttention: index_add routes tokens to experts before the scores",
        ),
        (
            lambda: hf.XLNetLMHeadModel(hf.XLNetConfig(d_model=32, n_layer=1, n_head=4, d_inner=24, vocab_size=40)),
            r"XLNetLayer reads points of shape \(11, 1, 32\), expected 11 rows",
        ),
        (
            lambda: hf.CanineModel(hf.CanineConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)),
            "CanineModel has no table of token embeddings, or several, expected 1",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_operation_and_module(network: Any, reason: str) -> None:
    with pytest.raises(RheoscopeError, match=reason):
        rs.load(network().eval())


def test_a_wrong_description_is_refused_by_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    original = describe_network.describe

    def wrong(network: Any) -> Any:
        description = original(network)
        heads = [
            dataclasses.replace(x, mechanism=dataclasses.replace(x.mechanism, score=Gram(scale=2 * x.scale)))
            for x in description.layer_heads
        ]
        return dataclasses.replace(description, layer_heads=tuple(heads))

    monkeypatch.setattr(describe_network, "describe", wrong)
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        rs.load(build("olmo2"))
