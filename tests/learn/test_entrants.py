"""Who races: every entrant is packed, starts as all do where it has the same parameters, and is matched where it is asked to be."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.learn.entrants import (
    ENTRANTS,
    entrant_config,
    entrant_configs,
    flops_per_token,
    match_ffn_width,
    n_parameters,
)
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.packed_model import PackedModel
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import LENGTH, LETTERS, config


def given(form: str) -> tuple[torch.Tensor, ...]:
    """Two texts for each of two seeds; sources of pairs are padded, those of the seeds differently."""
    ids = torch.randint(LETTERS, (4, LENGTH))
    real = torch.arange(LENGTH) < torch.tensor([LENGTH, 3, 5, 1])[:, None]
    return (ids, torch.randint(LETTERS, (4, 5)), real) if form == "encoder-decoder" else (ids,)


@pytest.mark.parametrize("form", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ENTRANTS)
def test_every_entrant_is_packed_and_starts_as_the_baseline_does(name: str, form: str) -> None:
    """Every row of the table, with its own projection, start and mechanism."""
    baseline = dict(initial_model(config(form=form), 0).named_parameters())
    alone = [initial_model(entrant_config(name, config(form=form)), seed) for seed in range(2)]
    own = dict(alone[0].named_parameters())
    deformed = ("attention.read.weight", "attention.write.weight") if name.endswith("start") else ()
    shared = [key for key in baseline if baseline[key].shape == own[key].shape and not key.endswith(deformed)]
    assert len(shared) >= 4
    assert all(torch.equal(baseline[key], own[key]) for key in shared)
    packed, seen = PackedModel(alone), given(form)
    each = zip(*(part.chunk(2) for part in seen), strict=True)
    want, found = torch.cat([model(*rows) for model, rows in zip(alone, each, strict=True)]), packed(*seen)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    want.square().sum().backward()
    for key, p in packed.body.named_parameters():
        theirs = [dict(model.named_parameters())[key].grad for model in alone]
        if theirs[0] is not None:
            torch.testing.assert_close(p.grad, torch.stack(theirs), rtol=1e-3, atol=1e-4)


def test_rows_that_are_kept_start_the_same() -> None:
    (whole, tied) = (
        initial_model(entrant_config(name, config()), 1).stack.blocks[0].attention.read.weight
        for name in ("untied", "tied")
    )
    assert torch.equal(whole[16:], tied)


def test_draws_do_not_depend_on_what_was_drawn_before() -> None:
    wide, narrow = (
        dict(initial_model(config(hidden=hidden, depth=depth), 2).named_parameters())
        for hidden, depth in ((12, 2), (20, 1))
    )
    same = [name for name in narrow if narrow[name].shape == wide[name].shape]
    assert "stack.blocks.0.attention.write.weight" in same
    for name in same:  # what writes to the stream starts smaller in a deeper model
        scale = math.sqrt(2) if name.endswith("write.weight") else 1
        torch.testing.assert_close(narrow[name], scale * wide[name])


def test_seeds_differ_and_repeat() -> None:
    one, again, other = (initial_model(entrant_config("metric_map", config()), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    learned = [name for name in one if one[name].std() > 0]
    assert any("phi" in name for name in learned)
    assert not any(torch.equal(one[name], other[name]) for name in learned)


def test_draws_have_the_usual_spread_and_leave_no_trace() -> None:
    before = torch.get_rng_state()
    model = initial_model(config(vocabulary=500, width=32), 0)
    assert torch.equal(before, torch.get_rng_state())
    assert abs(model.stack.embed.weight.std().item() - 0.02) < 0.001
    plain = build(config(vocabulary=500, width=32))
    writers = (one.stack.blocks[0].ffn.write.weight.std().item() for one in (model, plain))
    assert 0.8 < next(writers) / next(writers) < 1.2


# Budgets


@pytest.mark.parametrize("name", ["untied", "tied", "shared_kv", "relation", "metric_map"])
def test_matched_entrants_are_as_large(name: str) -> None:
    like = config(width=64, hidden=160, vocabulary=64, context=32)
    for measure, told in ((n_parameters, "parameters"), (flops_per_token, "flops")):
        own, unit = entrant_config(f"{name}:{told}", like), measure(like.with_changes(hidden=161)) - measure(like)
        assert abs(measure(own) - measure(like)) <= unit / 2
        assert (own.mechanism, own.projection) == (
            entrant_config(name, like).mechanism,
            entrant_config(name, like).projection,
        )


def test_flops_are_matched_on_texts_as_long_as_those_that_are_read() -> None:
    like = config(width=64, hidden=160, vocabulary=64, context=512)
    short, long = (entrant_config("linear:flops", like, tokens).hidden for tokens in (8, 512))
    assert short < like.hidden < long  # linear attention costs less from some length on


def test_flops_are_those_that_torch_counts() -> None:
    of = config(form="encoder", width=32, hidden=40)
    with FlopCounterMode(display=False) as counter:
        build(of)(torch.randint(LETTERS, (1, LENGTH)))
    attention = 4 * LENGTH * LENGTH * 32  # the fused kernel is counted on some devices alone
    counted = counter.get_total_flops()
    assert flops_per_token(of) * LENGTH / 3 in (counted, counted + attention)


def test_an_entrant_that_is_not_known_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="unknown entrant 'metrik'; type one of untied"):
        entrant_configs(["metrik"], config())
    with pytest.raises(RheoscopeError, match="matched by parameters or flops"):
        entrant_config("metric:colour", config())
    with pytest.raises(RheoscopeError, match="without any FFN"):
        match_ffn_width(config(width=64, heads=2), config(width=8, heads=2), n_parameters)
