"""Faithfulness: ends of the curves, attribution as a derivative, mediation by hand, a planted head, errors."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers import text_batches
from rheoscope.covers.text_batches import included_tokens
from rheoscope.models.config import Config
from rheoscope.models.transformer import build
from rheoscope.statistics.intervals import bootstrap_t_interval
from tests.cases import default, double, model, text, traced
from tests.covers.cases import writable

F64 = torch.float64
MODELS = ["gpt2", "qwen3", "gemma3", "neox", "bert", "own_sink"]
FRACTIONS = (0.0, 0.5, 1.0)


def loss_of(logits, target: int) -> float:
    return float(-logits[-1].detach().log_softmax(-1)[target])


def mean_head_outputs(trace) -> list[torch.Tensor]:
    """The mean output of every head, layer by layer."""
    return [
        heads.outputs(trace.layer_input(layer))[:, included_tokens(trace)].mean(1)
        for layer, heads in enumerate(trace.view.layer_heads)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_ends_of_the_curves(name: str) -> None:
    """With all heads kept, the loss is that of the model. With none kept, every head is mean-ablated in all rankings."""
    network = model(name)
    result = rs.faithfulness(network, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=FRACTIONS)
    for text_index, (ids, target) in enumerate(((text(), 5), (text(1, 9), 6))):
        logits = network.run(ids)
        assert result.loss.sel(fraction=1.0)[:, text_index].values == pytest.approx(loss_of(logits, target), abs=1e-6)
        trace = network.trace(ids)
        means = mean_head_outputs(trace)
        edits = {
            (layer, head): lambda q, k, v, mechanism, m=means[layer][head]: m.expand(*q.shape[:-1], -1)
            for layer in range(network.view.layers)
            for head in range(network.view.heads)
        }
        ablated_logits = network.run(ids, edit=edits)
        assert result.loss.sel(fraction=0.0)[:, text_index].values == pytest.approx(
            loss_of(ablated_logits, target), abs=1e-5
        )
        difference = float((ablated_logits[-1, target] - ablated_logits[-1, 7 + text_index]).detach())
        assert result.logit_difference.sel(fraction=0.0)[:, text_index].values == pytest.approx(difference, abs=1e-4)
    assert result.excess_loss.values == pytest.approx(
        (result.loss - result.loss_before).mean(("fraction", "text")).values
    )


@pytest.mark.parametrize("name", MODELS)
def test_attribution_is_the_derivative_and_mediation_the_end_of_the_ablation(name: str) -> None:
    network, trace = double(name), traced(name, F64)
    result = rs.faithfulness(network, [text()], [5], fractions=(1.0,)).importance[:, 0]
    for layer, head in ((0, 1), (1, 2)):
        mean = (
            network.view.layer_heads[layer]
            .outputs(trace.layer_input(layer))[head, included_tokens(trace)]
            .mean(0)
            .detach()
        )

        def ablate(q, k, v, mechanism, t: float):
            o = mechanism.attend(q, k, v)
            return o + t * (mean - o)

        def loss_at(t: float) -> float:
            return loss_of(network.run(text(), edit={(layer, head): lambda *arguments: ablate(*arguments, t)}), 5)

        step = 1e-3
        slope = (loss_at(step) - loss_at(-step)) / (2 * step)
        head_result = result.sel(layer=layer, head=head)
        assert float(head_result.sel(ranking="attribution")) == pytest.approx(slope, rel=1e-2, abs=1e-5)
        expected = loss_at(1.0) - loss_at(0.0)
        assert float(head_result.sel(ranking="mediation")) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_reversed_and_forward_rankings_equal_their_analyses() -> None:
    network, trace = double("llama"), traced("llama", F64)
    result = rs.faithfulness(network, [text()], [5], fractions=(0.5,)).importance[:, 0]
    assert result.sel(ranking="reversed").values == pytest.approx(rs.reversed_attention(network, trace, 5).norm.values)
    expected = torch.stack([trace.attention_parts(layer)[0].square().sum((1, 2)).sqrt() for layer in range(2)])
    assert result.sel(ranking="forward").values == pytest.approx(expected.numpy())
    assert np.isnan(result.sel(ranking="random").values).all()


def test_the_top_half_of_a_ranking_is_kept() -> None:
    network, trace = model("gpt2"), traced("gpt2")
    result = rs.faithfulness(network, [text()], [5], fractions=(0.5,))
    order = result.importance.sel(ranking="mediation")[0].values.ravel().argsort()[::-1]
    means = mean_head_outputs(trace)
    edits = {
        divmod(int(index), 4): lambda q, k, v, mechanism, m=means[index // 4][index % 4]: m.expand(*q.shape[:-1], -1)
        for index in order[4:]
    }
    expected = loss_of(network.run(text(), edit=edits), 5)
    assert float(result.loss.sel(ranking="mediation")[0, 0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_batched_ablations_equal_single_ablations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = double(name)
    batched_result = rs.faithfulness(network, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=FRACTIONS)
    monkeypatch.setattr(text_batches, "logits_numel", lambda device: 1)
    single_result = rs.faithfulness(network, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=FRACTIONS)
    for field in ("importance", "loss", "logit_difference", "excess_loss"):
        assert np.nan_to_num(batched_result[field].values) == pytest.approx(
            np.nan_to_num(single_result[field].values), abs=2e-5
        )


def test_intervals_equal_a_bootstrap_over_texts() -> None:
    network, prompts = double("llama"), [text(seed) for seed in range(6)]
    result = rs.faithfulness(network, prompts, [5, 6, 7, 8, 9, 10], fractions=FRACTIONS, seed=3)
    excess_loss = (result.loss - result.loss_before).mean("fraction").values
    correlations = np.array(
        [[spearmanr(*(row.ravel() for row in result.importance.values[[0, 3], p])).statistic] for p in range(6)]
    )
    for name, per_prompt, cell in (
        ("excess_loss", excess_loss[2], {"ranking": 2}),
        ("excess_loss_difference", excess_loss[0] - excess_loss[4], {"ranking": 0, "other_ranking": 4}),
        ("mean_loss", result.loss.values[1, :, 1], {"ranking": 1, "fraction": 1}),
        ("spearman", correlations[:, 0], {"score": 0, "other_score": 3}),
    ):
        ends = [float(end) for end in bootstrap_t_interval(torch.as_tensor(per_prompt, dtype=torch.float64), seed=3)]
        assert float(result[name].isel(cell)) == pytest.approx(per_prompt.mean(), abs=1e-9)
        assert [float(result[f"{name}_{end}"].isel(cell)) for end in ("low", "high")] == pytest.approx(
            ends, abs=1e-9
        ), name
        assert ends[1] > ends[0]
    assert result.excess_loss_difference.values == pytest.approx(
        result.excess_loss.values[:, None] - result.excess_loss.values
    )
    few_text_result = rs.faithfulness(network, prompts[:3], [5, 6, 7], fractions=(0.5,))
    assert bool(few_text_result.excess_loss_low.isnull().all())
    assert all("definition" in result[name].attrs for name in result.data_vars)


def test_a_planted_copying_head_is_ranked_first() -> None:
    torch.manual_seed(0)
    network = build(Config(vocabulary=40, width=32, depth=2, heads=4, tied=False))
    network, ids = writable(rs.load(network)), torch.tensor([5, 30, 6, 7, 8])
    block = network.view.layer_heads[1]
    with torch.no_grad():
        block.W_V[2].copy_(block.norm.apply(network.trace(ids).layer_input(1))[1, :, None] / 32 * torch.eye(1, 8))
        block.W_O[2].copy_(torch.eye(8, 1) * 3 * network.view.unembed[:, 30] / network.view.unembed[:, 30].norm())
    result = rs.faithfulness(network, [ids], [30], fractions=(0.125,))
    for ranking in ("reversed", "forward"):
        assert int(result.importance.sel(ranking=ranking)[0].values.argmax()) == 6


def test_the_default_target_is_the_most_likely_token() -> None:
    network = double("llama")
    most_likely = [int(network.run(text(seed))[-1].argmax()) for seed in range(2)]
    default_result, explicit_result = (
        rs.faithfulness(network, text()),
        rs.faithfulness(network, [text()], most_likely[:1]),
    )
    assert default_result.attrs["targets"] == most_likely[:1]
    assert default_result.equals(explicit_result)
    assert default_result.equals(rs.faithfulness(network, text(), most_likely[0]))
    assert rs.faithfulness(network, [text(0), text(1)], fractions=(1.0,)).attrs["targets"] == most_likely


def test_zero_draws_omit_the_random_ranking() -> None:
    network = double("llama")
    result, drawn_result = (rs.faithfulness(network, text(), 5, fractions=(0.5,), draws=draws) for draws in (0, 1))
    assert result.ranking.values.tolist() == ["reversed", "forward", "attribution", "mediation"]
    assert result.importance.shape == (4, 1, 2, 4)
    assert result.loss.equals(drawn_result.loss.sel(ranking=result.ranking))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["The keys"], []), r"targets must have one token per text, got 0 for 1; type targets="),
        (("The keys", [5, 6]), "targets must have one token per text, got 2 for 1"),
        ((["The keys"], [5], [1, 2]), "foils must have one token per text, got 2 for 1"),
        (
            (["The keys"], [5], None, (2.0,)),
            r"fractions must lie between 0.0 and 1.0, got 2.0; type fractions=\(1.0,\)",
        ),
        ((["The keys"], [5], None, (0.5,), -1), "draws must lie between 0 and 10,000, got -1; type draws=0"),
        ((["The keys"], [" cabinet"]), "the target must be one token"),
        ((["The keys"], [5], [" cabinet"]), "the target must be one token"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message):
        rs.faithfulness(default(), *arguments)
