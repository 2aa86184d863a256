"""Faithfulness: ends of the curves, attribution is a derivative, mediation by hand, a planted head, what is refused."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.covers import text_batches
from rheoscope.covers.text_batches import included_tokens
from rheoscope.models.config import Config
from rheoscope.models.transformer import build
from rheoscope.statistics.nulls import RESAMPLES
from tests.cases import default, double, model, text, traced

F64 = torch.float64
SOME = ["gpt2", "qwen3", "gemma3", "neox", "bert", "own_sink"]
SHARES = (0.0, 0.5, 1.0)


def loss_of(logits, target: int) -> float:
    return float(-logits[-1].detach().log_softmax(-1)[target])


@pytest.mark.parametrize("name", SOME)
def test_the_ends_of_the_curves(name: str) -> None:
    """All heads kept is the model; none kept is every head at its mean, whatever the order."""
    of = model(name)
    found = rs.faithfulness(of, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=SHARES)
    for at, (ids, target) in enumerate(((text(), 5), (text(1, 9), 6))):
        plain = of.run(ids)
        assert found.loss.sel(fraction=1.0)[:, at].values == pytest.approx(loss_of(plain, target), abs=1e-6)
        trace = of.trace(ids)
        means = [
            block.outputs(trace.layer_input(at))[:, included_tokens(trace)].mean(1)
            for at, block in enumerate(of.view.layer_heads)
        ]
        silent = {
            (layer, head): lambda q, k, v, mechanism, m=means[layer][head]: m.expand(*q.shape[:-1], -1)
            for layer in range(of.view.layers)
            for head in range(of.view.heads)
        }
        nothing = of.run(ids, edit=silent)
        assert found.loss.sel(fraction=0.0)[:, at].values == pytest.approx(loss_of(nothing, target), abs=1e-5)
        apart = float((nothing[-1, target] - nothing[-1, 7 + at]).detach())
        assert found.logit_difference.sel(fraction=0.0)[:, at].values == pytest.approx(apart, abs=1e-4)
    assert found.excess_loss.values == pytest.approx((found.loss - found.loss_before).mean(("fraction", "text")).values)


@pytest.mark.parametrize("name", SOME)
def test_attribution_is_the_derivative_along_the_ablation_and_mediation_its_end(name: str) -> None:
    of, trace = double(name), traced(name, F64)
    found = rs.faithfulness(of, [text()], [5], fractions=(1.0,)).importance[:, 0]
    for layer, head in ((0, 1), (1, 2)):
        mean = (
            of.view.layer_heads[layer].outputs(trace.layer_input(layer))[head, included_tokens(trace)].mean(0).detach()
        )

        def towards(q, k, v, mechanism, t: float):
            o = mechanism.attend(q, k, v)
            return o + t * (mean - o)

        def at(t: float) -> float:
            return loss_of(of.run(text(), edit={(layer, head): lambda *given: towards(*given, t)}), 5)

        step = 1e-3
        slope = (at(step) - at(-step)) / (2 * step)
        one = found.sel(layer=layer, head=head)
        assert float(one.sel(ranking="attribution")) == pytest.approx(slope, rel=1e-2, abs=1e-5)
        assert float(one.sel(ranking="mediation")) == pytest.approx(at(1.0) - at(0.0), rel=1e-4, abs=1e-6)


def test_the_other_rankings_are_those_of_their_analyses() -> None:
    of, trace = double("llama"), traced("llama", F64)
    found = rs.faithfulness(of, [text()], [5], fractions=(0.5,)).importance[:, 0]
    assert found.sel(ranking="reversed").values == pytest.approx(rs.reversed_attention(of, trace, 5).norm.values)
    wanted = torch.stack([trace.attention_parts(layer)[0].square().sum((1, 2)).sqrt() for layer in range(2)])
    assert found.sel(ranking="forward").values == pytest.approx(wanted.numpy())
    assert np.isnan(found.sel(ranking="random").values).all()


def test_the_first_heads_of_an_order_are_kept() -> None:
    """Half of eight heads kept by hand."""
    of, trace = model("gpt2"), traced("gpt2")
    found = rs.faithfulness(of, [text()], [5], fractions=(0.5,))
    order = found.importance.sel(ranking="mediation")[0].values.ravel().argsort()[::-1]
    means = [
        block.outputs(trace.layer_input(at))[:, included_tokens(trace)].mean(1)
        for at, block in enumerate(of.view.layer_heads)
    ]
    silent = {
        divmod(int(at), 4): lambda q, k, v, mechanism, m=means[at // 4][at % 4]: m.expand(*q.shape[:-1], -1)
        for at in order[4:]
    }
    wanted = loss_of(of.run(text(), edit=silent), 5)
    assert float(found.loss.sel(ranking="mediation")[0, 0]) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_ablations_side_by_side_are_those_one_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = double(name)
    together = rs.faithfulness(of, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=SHARES)
    monkeypatch.setattr(text_batches, "logits_numel", lambda device: 1)
    alone = rs.faithfulness(of, [text(), text(1, 9)], [5, 6], foils=[7, 8], fractions=SHARES)
    for field in ("importance", "loss", "logit_difference", "excess_loss"):
        assert np.nan_to_num(together[field].values) == pytest.approx(np.nan_to_num(alone[field].values), abs=2e-5)


def test_intervals_are_those_of_texts_drawn_anew() -> None:
    of, prompts = double("llama"), [text(seed) for seed in range(6)]
    found = rs.faithfulness(of, prompts, [5, 6, 7, 8, 9, 10], fractions=SHARES, seed=3)
    drawn = torch.randint(6, (RESAMPLES, 6), generator=torch.Generator().manual_seed(3)).numpy()
    lost = (found.loss - found.loss_before).mean("fraction").values
    alike = np.array(
        [[spearmanr(*(row.ravel() for row in found.importance.values[[0, 3], p])).statistic] for p in range(6)]
    )
    for name, per_prompt, at in (
        ("excess_loss", lost[2], {"ranking": 2}),
        ("excess_loss_difference", lost[0] - lost[4], {"ranking": 0, "other_ranking": 4}),
        ("mean_loss", found.loss.values[1, :, 1], {"ranking": 1, "fraction": 1}),
        ("spearman", alike[:, 0], {"score": 0, "other_score": 3}),
    ):
        ends = np.quantile(per_prompt[drawn].mean(-1), [0.025, 0.975])
        assert float(found[name].isel(at)) == pytest.approx(per_prompt.mean(), abs=1e-9)
        assert [float(found[f"{name}_{end}"].isel(at)) for end in ("low", "high")] == pytest.approx(ends, abs=1e-9), (
            name
        )
        assert ends[1] > ends[0]
    assert found.excess_loss_difference.values == pytest.approx(
        found.excess_loss.values[:, None] - found.excess_loss.values
    )
    few = rs.faithfulness(of, prompts[:4], [5, 6, 7, 8], fractions=(0.5,))
    assert bool(few.excess_loss_low.isnull().all())
    assert all("definition" in found[name].attrs for name in found.data_vars)


def test_a_planted_copying_head_comes_first() -> None:
    torch.manual_seed(0)
    network = build(Config(vocabulary=40, width=32, depth=2, heads=4, tied=False))
    of, ids = rs.load(network), torch.tensor([5, 30, 6, 7, 8])
    block = of.view.layer_heads[1]
    with torch.no_grad():
        block.W_V[2].copy_(block.norm.apply(of.trace(ids).layer_input(1))[1, :, None] / 32 * torch.eye(1, 8))
        block.W_O[2].copy_(torch.eye(8, 1) * 3 * of.view.unembed[:, 30] / of.view.unembed[:, 30].norm())
    found = rs.faithfulness(of, [ids], [30], fractions=(0.125,))
    for ranking in ("reversed", "forward"):
        assert int(found.importance.sel(ranking=ranking)[0].values.argmax()) == 6


def test_asked_of_its_subject_alone_it_looks_at_what_the_model_finds_likeliest() -> None:
    of = double("llama")
    likeliest = [int(of.run(text(at))[-1].argmax()) for at in range(2)]
    alone, named = rs.faithfulness(of, text()), rs.faithfulness(of, [text()], likeliest[:1])
    assert alone.attrs["targets"] == likeliest[:1]
    assert alone.equals(named)
    assert alone.equals(rs.faithfulness(of, text(), likeliest[0]))
    assert rs.faithfulness(of, [text(0), text(1)], fractions=(1.0,)).attrs["targets"] == likeliest


def test_without_draws_there_is_no_random_order() -> None:
    of = double("llama")
    found, drawn = (rs.faithfulness(of, text(), 5, fractions=(0.5,), draws=draws) for draws in (0, 1))
    assert found.ranking.values.tolist() == ["reversed", "forward", "attribution", "mediation"]
    assert found.importance.shape == (4, 1, 2, 4)
    assert found.loss.equals(drawn.loss.sel(ranking=found.ranking))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((["The keys"], []), r"every text has one of the targets, got 0 for 1; type targets=\[…\] of that length"),
        (("The keys", [5, 6]), "every text has one of the targets, got 2 for 1"),
        ((["The keys"], [5], [1, 2]), "every text has one of the foils, got 2 for 1"),
        (
            (["The keys"], [5], None, (2.0,)),
            r"fractions must lie between 0.0 and 1.0, got 2.0; type fractions=\(1.0,\)",
        ),
        ((["The keys"], [5], None, (0.5,), -1), "draws must lie between 0 and 10,000, got -1; type draws=0"),
        ((["The keys"], [" cabinet"]), "the target must be one token"),
        ((["The keys"], [5], [" cabinet"]), "the target must be one token"),
    ],
)
def test_bad_input_is_told_in_one_line(asked, said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said):
        rs.faithfulness(default(), *asked)
