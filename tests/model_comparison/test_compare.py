"""Tests of `rs.compare`: a model with itself, one changed head, an adapter, gauges, models of other shapes, refused views."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.model_comparison.operator_distance import OFFSETS, content_distances, relevance_distances
from rheoscope.shapes import RheoscopeError
from tests.cases import default, double, network, ours
from tests.laws.moves import (
    assert_unchanged,
    fold_gains,
    gauges,
    head_permutation,
    model_after,
    permute_heads,
    rotate_axes,
)
from tests.model_comparison.changed_models import TEXTS, changed, deep_llama
from tests.pretrained.quantised_networks import dequantised, quantised

SENTENCE = "The keys to the cabinet are on the table"
ARCHITECTURES = ["gpt2", "llama_yarn", "gemma3", "qwen3", "bert"]
WITHOUT_CHANGE = {"displacement_cosine": 1.0, "same_token": 1.0, "first_step": -1.0, "token_first_step": -1.0}
DESCRIPTIVE = {
    "loss_first",
    "loss_second",
    "top_tokens_first",
    "top_tokens_second",
    "top_probabilities_first",
    "top_probabilities_second",
}


def fields_of_means(result: Any) -> dict[str, np.ndarray]:
    return {
        name: result[name].values
        for name in map(str, result.data_vars)
        if not name.endswith(("_low", "_high")) and name not in DESCRIPTIVE
    }


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_model_compared_with_itself_is_zero_everywhere(name: str) -> None:
    result = rs.compare(rs.load(copy.deepcopy(network(name))), rs.load(network(name)), TEXTS[:4])
    assert {"M_distance", "F_distance", "attention", "stream_change", "divergence"} <= set(result.data_vars)
    for field, values in fields_of_means(result).items():
        assert (values == WITHOUT_CHANGE.get(field, 0.0)).all(), field  # exactly, not only up to rounding
    for field in ("kl", "divergence", "stream_change"):
        if field in result:
            assert (result[f"{field}_low"] == 0).all()
            assert (result[f"{field}_high"] == 0).all()


HEAD_LISTS = (
    "M_distance",
    "M_distance_max",
    "F_distance",
    "attention",
    "displacement",
    "stream_change",
    "logit_change",
)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("gpt2", ("W_Q",)), ("gpt2", ("W_V",)), ("neox", ("W_K", "W_O")), ("llama", ("W_Q", "W_O")), ("own", ("W_O",))],
)
def test_a_changed_head_is_first_in_every_list(name: str, parts: tuple[str, ...]) -> None:
    result = rs.compare(double(name), changed(name, 0, 2, *parts), TEXTS[:2])
    assert result.ranked_head.values[0] == "L0.H2"
    for field in HEAD_LISTS:
        values = result[field].values
        others = np.delete(values.ravel(), 2)
        assert (others == 0).all(), field
        unchanged = {"M_distance", "M_distance_max", "attention"} if not {"W_Q", "W_K"} & set(parts) else set()
        unchanged |= {"F_distance"} if not {"W_V", "W_O"} & set(parts) else set()
        assert (values[0, 2] > 1e-3) == (field not in unchanged), field
    assert (result.realised_displacement.values[1] > 0).all()  # later layers read changed points
    weights_only = rs.compare(double(name), changed(name, 0, 2, *parts))
    assert weights_only.ranked_head.values[0] == "L0.H2"
    assert "divergence" not in weights_only


def test_a_quantised_model_differs_by_its_rounding() -> None:
    """Each weight is rounded to a step of its row, so distances follow the number of bits: 16 times less for 4 more bits."""
    plain = rs.load(copy.deepcopy(network("llama")))
    results = {bits: rs.compare(plain, rs.load(quantised(bits=bits)), TEXTS[:2]) for bits in (4, 8)}
    for field in ("M_distance", "F_distance"):
        coarse, fine = (results[bits][field].values for bits in (4, 8))
        assert (fine > 0.002).all()
        assert (fine < 0.02).all()
        assert ((coarse / fine > 8) & (coarse / fine < 32)).all(), field
    for field in ("stream_change", "attention", "kl", "mlp"):
        assert (results[4][field].values > results[8][field].values).all(), field
    divergence = {bits: result.divergence.values for bits, result in results.items()}
    assert divergence[8][0] == divergence[4][0] == 0  # the embedding is not quantised
    assert (divergence[4][1:] > 4 * divergence[8][1:]).all()
    of_dequantised = rs.compare(plain, rs.load(dequantised(quantised(bits=4))), TEXTS[:2])
    for field in ("M_distance", "F_distance", "divergence", "kl"):
        assert results[4][field].values == pytest.approx(of_dequantised[field].values, rel=1e-4, abs=1e-6), field


def test_the_first_step_beyond_the_threshold_is_that_of_the_changed_layer() -> None:
    result = rs.compare(double("gpt2"), changed("gpt2", 1, 0, "W_V"), TEXTS[0], threshold=0.0)
    assert result.step.values[int(result.first_step)] == "L1.resid_mid"
    assert (result.divergence.values[:3] == 0).all()
    assert set(result.token_first_step.values) == {3}
    assert result.mlp.values.tolist() == [0.0] * 2


def test_a_lora_of_rank_4_on_two_layers_is_located() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], layers_to_transform=[1, 3], init_lora_weights=False
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        adapted = peft.get_peft_model(copy.deepcopy(deep_llama()), config).eval()
    result = rs.compare(rs.load(adapted, adapter=False), rs.load(adapted), [torch.arange(3, 15), torch.arange(20, 40)])
    for field in ("M_distance", "F_distance", "attention", "displacement", "stream_change", "logit_change"):
        is_changed = (result[field].values > 0).all(1)
        assert is_changed.tolist() == [False, True, False, True, False], field
        assert (result[field].values[[0, 2, 4]] == 0).all(), field
    assert {name[:2] for name in result.ranked_head.values[:8]} == {"L1", "L3"}
    assert result.step.values[np.flatnonzero(result.divergence.values)[0]] == "L1.resid_mid"


# Distances of operators


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_yarn", "qwen3"])
def test_distances_equal_those_of_dense_matrices(name: str) -> None:
    first, second = double(name).view.layer_heads[0], changed(name, 0, 1, "W_Q", "W_O").view.layer_heads[0]
    by_offset = relevance_distances(first, second)
    offsets = OFFSETS if len(by_offset) > 1 else (0,)
    for offset, distances in zip(offsets, by_offset, strict=True):
        dense = [heads.M()(offset).dense().detach() for heads in (first, second)]
        assert torch.allclose(distances, dense_distance(*dense), atol=1e-12)
    assert torch.allclose(
        content_distances(first, second), dense_distance(first.F().dense(), second.F().dense()), atol=1e-12
    )


def dense_distance(A: Any, B: Any) -> Any:
    norms = [torch.linalg.matrix_norm(x.detach()) for x in (A, B, A - B)]
    return norms[2] / ((norms[0] ** 2 + norms[1] ** 2) / 2).sqrt()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_gauge_changes_a_field(name: str) -> None:
    other = changed(name, 1, 1, "W_Q", "W_O")

    def analyse(model: Any) -> Any:
        return rs.compare(other, model, TEXTS[0])

    assert_unchanged(analyse, analyse(double(name)), name, gauges(name))
    after_moves = rs.compare(double(name), model_after(name, *gauges(name)))
    assert float(after_moves.M_distance_max.max()) <= 1e-9
    assert float(after_moves.F_distance.max()) <= 1e-9


def test_exchanged_models_have_the_same_distances() -> None:
    first, second = double("llama"), changed("llama", 0, 1, "W_Q", "W_O")
    result, exchanged = rs.compare(first, second, TEXTS[0]), rs.compare(second, first, TEXTS[0])
    for field in (
        "M_distance",
        "M_distance_max",
        "F_distance",
        "divergence",
        "realised_attention",
        "realised_displacement",
    ):
        assert np.allclose(result[field], exchanged[field], atol=1e-12), field


# Models without common coordinates, heads or tokens


def test_rotated_axes_and_permuted_heads_are_matched_by_similarity() -> None:
    first, second = model_after("llama", fold_gains), model_after("llama", fold_gains, rotate_axes, permute_heads)
    result = rs.compare(first, second, TEXTS[:4])
    assert result.attrs["heads_matched_by"] == "similarity"
    assert "the coordinates differ" in result.attrs["reasons"][0]
    assert np.allclose(result.matched_similarity, 1, atol=1e-9)
    assert (
        result.matched_layer.values.tolist()
        == result.same_depth_layer.values.tolist()
        == list(range(first.view.layers))
    )
    for layer, heads in enumerate(first.view.layer_heads):
        permutation = head_permutation(heads)
        assert (result.matched_head_layer.values[layer] == layer).all()
        assert [permutation[new] for new in result.matched_head.values[layer]] == list(range(heads.n_heads))
    assert float(result.change.max()) <= 1e-9
    assert float(result.kl) <= 1e-9
    assert "divergence" not in result


def test_models_of_other_shapes_are_matched() -> None:
    result = rs.compare(rs.load(deep_llama()), rs.load(network("gpt2")), TEXTS[0])
    assert len(result.attrs["reasons"]) == 2
    assert result.layer_similarity.shape == (5, 2)
    assert result.same_depth_layer.values.tolist() == [0, 0, 0, 1, 1]
    assert result.symmetry_second.shape == (2, 4)
    assert "M_distance" not in result
    assert "kl" in result  # the same ids in both


def test_other_tokens_are_refused_in_one_line_and_weights_remain() -> None:
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import Transformer
    from rheoscope.models.vocabulary import character_tokenizer

    tokenizer = character_tokenizer(["abcdefghijklmnopqrstuvwxyz T"], [])
    other = rs.load(Transformer(Config(vocabulary=40, width=16, depth=2, heads=2, hidden=24)), tokenizer=tokenizer)
    result = rs.compare(default(), other, [SENTENCE])
    assert any("the vocabularies differ" in reason for reason in result.attrs["reasons"])
    assert {"symmetry_first", "symmetry_second", "stable_rank_F_second"} <= set(result.data_vars)
    assert not {"kl", "layer_similarity", "divergence"} & set(result.data_vars)


@torch.no_grad()
def test_predictions_are_those_of_the_models() -> None:
    first, second = double("gpt2"), changed("gpt2", 0, 1, "W_O")
    result = rs.compare(first, second, TEXTS[:2], top=3)
    for index, ids in enumerate(TEXTS[:2]):
        p, q = (model.run(ids).log_softmax(-1) for model in (first, second))
        assert float(result.text_kl[index]) == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), abs=1e-9)
        losses = [-x[:-1].gather(1, ids[1:, None]).mean() for x in (p, q)]
        assert float(result.text_loss_difference[index]) == pytest.approx(float(losses[1] - losses[0]), abs=1e-9)
        assert result.top_tokens_second.values[index].tolist() == q[-1].topk(3).indices.tolist()


def test_the_mean_over_texts_has_an_interval_from_four_texts_on() -> None:
    first, second = double("gpt2"), changed("gpt2", 0, 1, "W_O")
    result = rs.compare(first, second, TEXTS)
    assert float(result.kl_low) < float(result.kl) < float(result.kl_high)
    assert np.isnan(rs.compare(first, second, TEXTS[:2]).kl_low)
    assert "kl_low" not in rs.compare(first, second, TEXTS[0])


def test_heads_are_ranked_by_the_chosen_field() -> None:
    net, generator = copy.deepcopy(network("gpt2", torch.float64)), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter))
    first, other = double("gpt2"), rs.load(net)
    for rank in ("stream_change", "attention", "F_distance"):
        result = rs.compare(first, other, TEXTS[0], rank=rank)
        assert np.array_equal(result.change, np.sort(result[rank].values.ravel())[::-1])
        layer, head = np.unravel_index(result[rank].values.argmax(), (2, 4))
        assert result.ranked_head.values[0] == f"L{layer}.H{head}"
    with pytest.raises(RheoscopeError, match="rank"):
        rs.compare(first, other, rank="size")


def test_a_score_without_M_has_distances_of_F_and_the_reason() -> None:
    result = rs.compare(ours.model("own_cosine"), ours.model("own_cosine"), TEXTS[0])
    assert "M_distance" not in result
    assert "not a bilinear form" in result.attrs["reasons"][0]
    assert (result.F_distance == 0).all()


def test_a_text_instead_of_a_model_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="expects a Model"):
        rs.compare(default(), "gpt2", SENTENCE)
