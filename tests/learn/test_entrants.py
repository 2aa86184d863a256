"""Entrants: all can be packed, share initial weights with the baseline, and match its size on request."""

import math
from functools import cache

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.learn.entrants import (
    ENTRANTS,
    entrant_config,
    entrant_configs,
    flops_per_token,
    match_ffn_width,
    n_parameters,
    parse_terms,
    penalty_sweeps,
)
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.packed_model import PackedModel
from rheoscope.learn.race_plan import Race
from rheoscope.models.transformer import build
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import LENGTH, LETTERS, config, recipe


def model_inputs(form: str) -> tuple[torch.Tensor, ...]:
    """Two texts for each of two seeds. Sources of pairs have different padding in each seed."""
    ids = torch.randint(LETTERS, (4, LENGTH))
    is_real = torch.arange(LENGTH) < torch.tensor([LENGTH, 3, 5, 1])[:, None]
    return (ids, torch.randint(LETTERS, (4, 5)), is_real) if form == "encoder-decoder" else (ids,)


@cache
def baseline_parameters(form: str) -> dict[str, torch.Tensor]:
    """The initial weights of the entrant that all others share theirs with."""
    return dict(initial_model(config(form=form), 0).named_parameters())


@pytest.mark.parametrize("form", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ENTRANTS)
def test_every_entrant_packs_and_shares_the_initial_weights_of_the_baseline(name: str, form: str) -> None:
    """Every entrant, with its own projection, initialisation and mechanism."""
    baseline = baseline_parameters(form)
    models = [initial_model(entrant_config(name, config(form=form)), seed) for seed in range(2)]
    parameters = dict(models[0].named_parameters())
    reinitialised = ("attention.read.weight", "attention.write.weight") if name.endswith("start") else ()
    shared = [
        key
        for key in baseline.keys() & parameters.keys()  # a post-norm model has no last norm
        if baseline[key].shape == parameters[key].shape and not key.endswith(reinitialised)
    ]
    assert len(shared) >= 4
    assert all(torch.equal(baseline[key], parameters[key]) for key in shared if name != "deepnet")
    if name == "deepnet":  # the same draws at other scales
        assert all(cosine_similarity(baseline[key].flatten(), parameters[key].flatten(), 0) > 0.9 for key in shared)
    packed, inputs = PackedModel(models), model_inputs(form)
    inputs_by_seed = zip(*(part.chunk(2) for part in inputs), strict=True)
    expected, logits = (
        torch.cat([model(*rows) for model, rows in zip(models, inputs_by_seed, strict=True)]),
        packed(*inputs),
    )
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    logits.square().sum().backward()
    expected.square().sum().backward()
    single_parameters = [dict(model.named_parameters()) for model in models]
    for key, p in packed.body.named_parameters():
        gradients = [parameters_of_seed[key].grad for parameters_of_seed in single_parameters]
        if gradients[0] is not None:
            torch.testing.assert_close(p.grad, torch.stack(gradients), rtol=1e-3, atol=1e-4)


def test_the_remaining_rows_of_a_tied_model_start_the_same() -> None:
    (untied_rows, tied) = (
        initial_model(entrant_config(name, config()), 1).stack.blocks[0].attention.read.weight
        for name in ("untied", "tied")
    )
    assert torch.equal(untied_rows[16:], tied)


def test_draws_do_not_depend_on_earlier_draws() -> None:
    wide, narrow = (
        dict(initial_model(config(hidden=hidden, depth=depth), 2).named_parameters())
        for hidden, depth in ((12, 2), (20, 1))
    )
    shared_names = [name for name in narrow if narrow[name].shape == wide[name].shape]
    assert "stack.blocks.0.attention.write.weight" in shared_names
    for name in shared_names:  # output projections start smaller in a deeper model
        scale = math.sqrt(2) if name.endswith("write.weight") else 1
        torch.testing.assert_close(narrow[name], scale * wide[name])


def test_seeds_differ_and_are_reproducible() -> None:
    weights, repeated_weights, other_weights = (
        initial_model(entrant_config("metric_map", config()), seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(weights[name], repeated_weights[name]) for name in weights)
    learned = [name for name in weights if weights[name].std() > 0]
    assert any("phi" in name for name in learned)
    assert not any(torch.equal(weights[name], other_weights[name]) for name in learned)


def test_draws_have_the_usual_spread_and_restore_the_random_state() -> None:
    state_before = torch.get_rng_state()
    model = initial_model(config(vocabulary=500, width=32), 0)
    assert torch.equal(state_before, torch.get_rng_state())
    assert abs(model.stack.embed.weight.std().item() - 0.02) < 0.001
    plain_model = build(config(vocabulary=500, width=32))
    spreads = (built_model.stack.blocks[0].ffn.write.weight.std().item() for built_model in (model, plain_model))
    assert 0.8 < next(spreads) / next(spreads) < 1.2


# Budgets


@pytest.mark.parametrize("name", ["untied", "tied", "shared_kv", "relation", "metric_map"])
def test_matched_entrants_have_the_size_of_the_reference(name: str) -> None:
    reference = config(width=64, hidden=160, vocabulary=64, context=32)
    for measure, measure_name in ((n_parameters, "parameters"), (flops_per_token, "flops")):
        matched, size_per_unit = (
            entrant_config(f"{name}:{measure_name}", reference),
            measure(reference.with_changes(hidden=161)) - measure(reference),
        )
        assert abs(measure(matched) - measure(reference)) <= size_per_unit / 2
        assert (matched.mechanism, matched.projection) == (
            entrant_config(name, reference).mechanism,
            entrant_config(name, reference).projection,
        )


def test_flops_are_matched_at_the_length_of_the_texts() -> None:
    reference = config(width=64, hidden=160, vocabulary=64, context=512)
    short, long = (entrant_config("linear:flops", reference, tokens).hidden for tokens in (8, 512))
    assert short < reference.hidden < long  # linear attention is cheaper only for long texts


def test_flops_equal_those_counted_by_torch() -> None:
    encoder_config = config(form="encoder", width=32, hidden=40)
    with FlopCounterMode(display=False) as counter:
        build(encoder_config)(torch.randint(LETTERS, (1, LENGTH)))
    attention = 4 * LENGTH * LENGTH * 32  # the fused kernel is counted on some devices only
    counted = counter.get_total_flops()
    assert flops_per_token(encoder_config) * LENGTH / 3 in (counted, counted + attention)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrik", "there is no entrant 'metrik'; the closest name is metric"),
        ("Tied", "there is no entrant 'Tied'; the closest name is tied"),
        ("nothing", "there is no entrant 'nothing', expected one of .* names such as qk_norm or parts such as"),
        ("", "there is no entrant '', expected one of"),
        ("my.py", "my.py needs the name of a module in it"),
        ("residual=0.1", "residual is no part of the attention, and follows an entrant after"),
        ("scale=unit,weight_decay=0.1", "weight_decay is no part of the attention"),
    ],
)
def test_unknown_entrants_are_refused_with_the_name_or_the_form_that_was_meant(name: str, message: str) -> None:
    with pytest.raises(RheoscopeError, match=message):
        entrant_configs([name], config())


def test_a_term_that_is_named_twice_is_refused() -> None:
    with pytest.raises(RheoscopeError, match="names residual twice; name it once"):
        parse_terms("untied+residual=.1+residual=.2")


def test_sizes_that_cannot_be_matched_are_refused() -> None:
    with pytest.raises(RheoscopeError, match="matched by parameters or flops"):
        entrant_config("metric:colour", config())
    with pytest.raises(RheoscopeError, match="without an FFN is already larger"):
        match_ffn_width(config(width=64, heads=2), config(width=8, heads=2), n_parameters)


def test_an_entrant_may_have_penalties_and_training_settings_of_its_own() -> None:
    name = "projection=tied,branches=layerscale+residual_ffn=0.5+weight_decay=0.3+clip=0.25"
    base = recipe()
    pack = Race(base, (name,), 2).packs()[-1]
    assert pack.entrant == name
    assert (pack.recipe.penalty, pack.recipe.weight_decay, pack.recipe.clip) == ({"residual_ffn": 0.5}, 0.3, 0.25)
    baseline = Race(base, (name,), 2).packs()[0]
    assert (baseline.recipe.penalty, baseline.recipe.weight_decay, baseline.recipe.clip) == ({}, 0.1, 1.0)


def test_a_training_setting_is_no_point_of_a_sweep() -> None:
    names = ["untied+residual=1", "untied+residual=2", "untied+weight_decay=1", "untied+residual=3+clip=2"]
    assert penalty_sweeps(names) == {"residual": [(1.0, "untied+residual=1"), (2.0, "untied+residual=2")]}


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (
            "decay=0.3",
            "an entrant is followed by one of asymmetry, residual, .*, weight_decay, clip, qk_clip, penalty_warmup, got 'decay=0.3'",
        ),
        ("clip", "a term after an entrant has the form NAME=NUMBER, got 'clip'"),
        ("clip=-1", "clip must be between 1e-09 and 1e"),
    ],
)
def test_unknown_terms_are_refused_in_one_line(term: str, message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as error:
        Race(recipe(), (f"untied+{term}",), 2).packs()
    assert "\n" not in str(error.value)
