"""Tests of `describe`: the location of every matrix evaluates to that matrix, and the formulas fit the model."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
import xarray as xr
from torch import Tensor

import rheoscope as rs
from rheoscope.attention.position import CombinedPosition, LearnedPosition, NoPosition, Rotary
from rheoscope.models.config import Config
from rheoscope.models.transformer import Translator
from rheoscope.running.matrix_locations import MATRICES, slice_text
from rheoscope.running.rotation_pattern import rotation_pattern
from tests.models import cases as own_cases
from tests.pretrained import cases
from tests.pretrained.finder.networks import build

FAMILIES = ("gpt2", "llama_yarn", "gemma3", "neox", "bert", "opt_projected", "phi3_partial")
TRACED = ("gemma2", "bloom", "falcon", "gpt_oss", "deepseek_v3", "olmo2", "qwen3_next")
BART = {"layers": 1, "attention_heads": 4, "ffn_dim": 24}
OWN = ("own", "own_emf", "own_branch_post", "own_gated", "own_metric", "own_cosine")


@cache
def loaded(name: str) -> Any:
    if name in FAMILIES:
        return cases.model(name)
    return own_cases.model(name) if name in OWN else rs.load(build(name))


@cache
def described(name: str) -> xr.Dataset:
    return rs.describe(loaded(name))


def formula(name: str, line: str, layer: int = 0) -> str:
    return str(described(name).formula.sel(layer=layer, line=line).item())


def location(name: str, matrix: str, layer: int = 0) -> str:
    return str(described(name).location.sel(layer=layer, matrix=matrix).item())


def evaluate(network: Any, text: str) -> Tensor:
    """The tensor at a location such as `h.0.attn.c_attn.weight[:, 0:32]`, by running it as Python."""
    factor, _, expression = text.rpartition(" · ")
    name = max((name for name, _ in network.named_parameters() if expression.startswith(name)), key=len)
    part: Tensor = eval(f"parameter{expression.removeprefix(name)}", {"parameter": network.get_parameter(name)})
    return part * float(factor or 1)


def is_at(network: Any, text: str, rows: Tensor) -> bool:
    """Whether the rows (h k, d) of all heads, or their transpose, are at a location."""
    part = evaluate(network, text)
    orientations = [part.reshape(-1, part.shape[-1]), part.flatten(1).mT]
    return any(x.shape == rows.shape and torch.allclose(x, rows, rtol=1e-3, atol=1e-6) for x in orientations)


@pytest.mark.parametrize("name", [*FAMILIES, *(name for name in TRACED if name != "deepseek_v3"), *OWN])
def test_a_location_is_the_matrix(name: str) -> None:
    model = loaded(name)
    for layer, heads in enumerate(model.view.layer_heads):
        rows = {matrix: getattr(heads, matrix).mT.flatten(0, 1) for matrix in ("W_Q", "W_K", "W_V")}
        for matrix, expected in (rows | {"W_O": heads.W_O.flatten(0, 1).mT}).items():
            text = location(name, matrix, layer)
            assert text == "I" or is_at(model.network, text, expected), (layer, matrix, text)


def test_names_of_matrices() -> None:
    assert location("gpt2", "W_K", 1) == "transformer.h.1.attn.c_attn.weight[:, 32:64]"
    assert location("phi3_partial", "W_V") == "model.layers.0.self_attn.qkv_proj.weight[48:64]"
    fused = "gpt_neox.layers.0.attention.query_key_value.weight.unflatten(0, (4, 24))"
    assert [location("neox", matrix) for matrix in MATRICES[:3]] == [
        f"{fused}[:, 0:8]",
        f"{fused}[:, 8:16]",
        f"{fused}[:, 16:24]",
    ]
    assert location("gemma3", "output_norm") == "model.layers.0.post_attention_layernorm.weight"
    assert (location("bert", "norm"), location("bert", "gate")) == ("", "")
    assert location("own_emf", "W_K") == "I"
    assert location("own_branch_post", "W_O") == "0.6 · stack.blocks.0.attention.write.weight"
    assert location("gpt_oss", "W_Q") == "1.347 · model.layers.0.self_attn.q_proj.weight"


def test_the_matrices_of_latent_attention_are_products() -> None:
    attention = "model.layers.0.self_attn"
    assert location("deepseek_v3", "W_Q") == f"{attention}.q_a_proj.weight · {attention}.q_b_proj.weight"
    kv = f"{attention}.kv_b_proj.weight.unflatten(0, (4, 16))"
    assert location("deepseek_v3", "W_V") == f"{attention}.kv_a_proj_with_mqa.weight[0:12] · {kv}[:, 8:16]"


def test_copies_in_half_precision_have_the_same_names() -> None:
    for name in ("gpt2", "neox"):
        dataset = rs.describe(cases.model(name, torch.bfloat16))
        assert np.array_equal(dataset.location.values, described(name).location.values)


def test_frozen_weights_are_located_where_they_share_memory() -> None:
    model = cases.changed("llama_yarn", lambda network: network.requires_grad_(False))
    assert rs.describe(model).location.sel(layer=1, matrix="W_Q") == "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("gpt2", "input", "u = x̂ D + b with x̂ = (x − mean) / std, eps 1e-05"),
        ("gpt2", "query", "q = u W_Q + b_Q"),
        ("gpt2", "M", "M = 0.3536 C D W_Q (C D W_K)ᵀ"),
        ("bert", "input", "u = x (no norm before attention)"),
        ("bert", "F", "F = W_V W_O"),
        ("bert", "mask", "none: every token reads every token"),
        ("llama_yarn", "position", "R(p) rotates coordinates 0 to 7 of 8, each c with c + 4, times 1.139"),
        ("phi3_partial", "position", "R(p) rotates coordinates 0 to 3 of 8, each c with c + 2"),
        ("neox", "block", "parallel: x ← x + Δ + MLP(x)"),
        ("opt_projected", "block", "post-norm: x ← norm(x + Δ), then x ← norm(x + MLP(x))"),
        ("gemma3", "content", "Δ_i = RMSNorm(Σ_h Σ_j α_ij v_j W_O) G_O"),
        ("gemma3", "M", "M(δ) = 0.2236 D W_Q G_Q R(δ) (D W_K G_K)ᵀ"),
        ("gemma2", "score", "s_ij = 5 tanh(0.2236 q_i R(i−j) k_jᵀ / 5)"),
        ("gemma2", "mask", "causal (j ≤ i), window of 4 (|i − j| < 4)"),
        ("bloom", "score", "s_ij = 0.3536 q_i k_jᵀ − slope_h |i − j|"),
        ("gpt_oss", "weight", "α_ij = exp(s_ij) / (exp(sink_h) + Σ_l exp(s_il))"),
        ("deepseek_v3", "query", "q = RMSNorm(u A_Q) B_Q, W_Q = A_Q B_Q"),
        ("deepseek_v3", "key", "k = (RMSNorm(u A_K) B_K, u T_K), W_K = (A_K B_K, T_K)"),
        ("deepseek_v3", "position", "R(p) rotates coordinates 8 to 11 of 12, each c with c + 2"),
        ("olmo2", "query", "q = RMSNorm across heads(u W_Q) G_Q"),
        ("qwen3_next", "content", "Δ_i = Σ_h Σ_j α_ij v_j diag(g_h(u_i)) W_O"),
        ("own_gated", "content", "Δ_i = Σ_h g_h(u_i) Σ_j α_ij v_j W_O + b_O"),
        ("own_metric", "score", "s_ij = −0.125 |q_i R(i) − k_j R(j)|²"),
        ("own_cosine", "score", "s_ij = 10 UnitNorm(q_i R(i)) UnitNorm(k_j R(j))ᵀ"),
    ],
)  # fmt: skip
def test_formulas(name: str, line: str, expected: str) -> None:
    assert formula(name, line) == expected


def test_a_score_that_is_no_bilinear_form_has_no_M() -> None:
    assert formula("own_cosine", "M").startswith("none: the score of this head (Gram of UnitNorm)")


def test_numbers_of_a_layer() -> None:
    gemma = described("gemma3").sel(layer=0)
    names = ("heads", "kv_heads", "head_width", "window", "query_norm", "output_norm", "norm_eps", "position")
    assert [gemma[name].item() for name in names] == [4, 2, 16, 4, "RMSNorm", "RMSNorm", 1e-6, "rotary"]
    assert described("gemma3").window.values[1] == np.inf
    assert described("gemma2").cap.values.tolist() == [5, 5]
    assert np.isnan(described("gpt2").cap.values).all()
    assert described("gpt_oss").sink.values.all()
    assert described("gpt2").bias.sel(layer=0).values.tolist() == [True] * 4 + [False] * 3
    assert described("qwen3_next").attrs["opaque_blocks"] == "model.layers.0, model.layers.2"
    assert float(described("gpt2").closure_error) == loaded("gpt2").view.facts["certificate"].closure_error


def test_layers_of_a_group_differ_only_in_their_weights() -> None:
    assert described("gemma3").group.values.tolist() == [0, 1, 0]
    assert described("gpt2").group.values.tolist() == [0, 0]


def test_cross_attention_reads_the_norm_of_the_source() -> None:
    model = rs.load(Translator(Config(vocabulary=9, width=8, depth=2, heads=2, form="encoder-decoder")))
    dataset = rs.describe(model)
    assert dataset.kind.values.tolist() == ["encoder"] * 2 + ["decoder"] * 2 + ["cross"] * 2
    assert dataset.layer_index.values.tolist() == [0, 1] * 3
    assert dataset.formula.sel(layer=5, line="M") == "M = 0.5 D W_Q (D_w W_K)ᵀ"
    assert dataset.location.sel(layer=5, matrix="W_V") == "decoder.blocks.1.cross.read.weight[8:16]"


def test_cross_attention_of_a_post_norm_decoder_is_followed_by_a_norm() -> None:
    size = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in BART.items()}
    network = hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=40, d_model=32, **size, **cases.SPECIAL))
    cross = rs.describe(rs.load(cases.randomised(network))).sel(layer=2)
    assert cross.formula.sel(line="block") == "x_i ← norm(x_i + Δ_i), where j runs over the tokens of the encoder"
    assert cross.formula.sel(line="key") == "k = w W_K + b_K"
    assert cross.location.sel(matrix="W_O") == "model.decoder.layers.0.encoder_attn.out_proj.weight"


def test_every_field_is_defined_and_hides_no_method() -> None:
    dataset = described("gpt2")
    assert all(variable.attrs["definition"] for variable in dataset.data_vars.values())
    assert not [name for name in dataset.data_vars if hasattr(xr.Dataset, str(name))]


def test_rows_without_a_pattern() -> None:
    used = torch.tensor([True, False, True, True, False, False])
    assert slice_text(used, 0) == "[0…4]"
    assert slice_text(torch.zeros(3, dtype=torch.bool), 1) == ""


def test_patterns_of_rotations() -> None:
    cpu = torch.device("cpu")
    halves = CombinedPosition(NoPosition(), Rotary(width=4))
    pattern = rotation_pattern(halves, 6, cpu)
    assert pattern is not None
    assert (pattern.start, pattern.stop, pattern.pairs) == (0, 4, "halves")
    assert rotation_pattern(LearnedPosition(torch.zeros(4, 6)), 6, cpu) is None
