"""Packed seeds are each seed alone, to rounding: logits, gradients, clipping, AdamW and Muon."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rheoscope.learn.entrants import ENTRANTS, entrant_config
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import Learner, make_packed_learner, make_single_learner
from rheoscope.learn.packed_model import PACKED_FORMS, PackedModel, PackingError
from rheoscope.learn.packed_optimiser import clip_per_seed
from rheoscope.learn.race_plan import Pack
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Task
from rheoscope.models.transformer import Transformer, Translator, make_architecture
from tests.attention.cases import record_constructions
from tests.learn.cases import Letters, config, recipe, task_for
from tests.models.cases import CASES, tiny
from tests.pretrained.cases import randomised
from tests.waiting import WaitRecorder

SEEDS = 3
KINDS_OF_MODEL = [
    "own",
    "own_biased",
    "own_encoder",
    "own_alibi",
    "own_branch",
    "own_bilinear",
    "own_additive",
    "own_sink",
    "own_translator",
    "own_translator_bilinear",
]
"""Every class of `PACKED_FORMS`, and mechanisms that learn with and without a bias of positions; the entrants are tested by name."""


TRANSLATOR = {"form": "encoder-decoder", "norm": "layer", "position": "sinusoidal", "bias": True, "ffn": "relu"}
CONFIGS = CASES | {
    "own_translator": tiny(**TRANSLATOR, kv_heads=2, scaled_embedding=True),
    "own_translator_bilinear": tiny(**TRANSLATOR, mechanism="bilinear", kv_heads=2),
}


def given(of: Config) -> tuple[torch.Tensor, ...]:
    """What a model is called with, two texts for each seed; sources are of different lengths, so that what is padding differs."""
    ids = torch.randint(of.vocabulary, (2 * SEEDS, 7))
    if of.form != "encoder-decoder":
        return (ids,)
    real = torch.arange(7) < torch.tensor([7, 3, 5, 1, 6, 7])[:, None]
    return ids, torch.randint(of.vocabulary, (2 * SEEDS, 5)), real


def models(of: Config, dtype: torch.dtype = torch.float32) -> list[Transformer | Translator]:
    """One for each seed, nothing at its initial value."""
    made = []
    for seed in range(SEEDS):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made.append(randomised(make_architecture(of)).to(dtype))
    return made


@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_logits_and_gradients_are_those_of_each_alone(name: str) -> None:
    alone = models(CONFIGS[name])
    packed, seen = PackedModel(alone), given(CONFIGS[name])
    ours, each = packed(*seen), zip(*(part.chunk(SEEDS) for part in seen), strict=True)
    theirs = torch.cat([model(*rows) for model, rows in zip(alone, each, strict=True)])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    together = dict(packed.body.named_parameters())
    for at, model in enumerate(alone):
        for own, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(
                    together[own].grad[at], p.grad, rtol=1e-3, atol=1e-4 * float(p.grad.abs().max())
                )


@pytest.mark.parametrize("name", ["own_biased", "own_translator"])
def test_unpacked_is_what_was_packed(name: str) -> None:
    alone = models(CONFIGS[name])
    packed = PackedModel(alone)
    for at, model in enumerate(alone):
        again = packed.unpack(at)
        assert again.config == model.config
        assert all(
            torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True)
        )


def test_tied_weights_stay_one() -> None:
    packed = PackedModel(models(config()))
    assert packed.body.stack.embed.weight is packed.body.unembed.weight
    assert packed.unpack(1).unembed.weight is not None
    translator = PackedModel(models(config(form="encoder-decoder"))).body
    assert translator.encoder.embed.weight is translator.decoder.embed.weight is translator.unembed.weight


@pytest.mark.parametrize("name", KINDS_OF_MODEL)
def test_a_forward_puts_no_mechanism_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedModel(models(CONFIGS[name]))
    made = record_constructions(monkeypatch)
    packed(*given(CONFIGS[name]))
    assert not made


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(PackingError, match="no packed form of BucketTable"):
        PackedModel(models(CASES["own_buckets"]))
    with pytest.raises(PackingError, match="one shape"):
        PackedModel([Transformer(config()), Transformer(config(hidden=8))])


def test_every_module_that_holds_parameters_is_packed_or_refused() -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

    model = Transformer(config())
    model.stack.norm = Strange()
    with pytest.raises(PackingError, match="Strange"):
        PackedModel([model])
    assert Strange not in PACKED_FORMS


# Training


def trained(learner: Learner, by: Recipe, task: Task, steps: int = 4) -> list[torch.Tensor]:
    """Losses of each step."""
    told = []
    for step in range(steps):
        each = [task.batch(step, by.with_changes(seed=seed)) for seed in learner.seeds]
        tokens = torch.tensor([float(task.n_targets(one)) for one in each])
        told.append(learner.step(by, step, task.concat_batches(each), tokens))
    return told


def compared(by: Recipe, task: Task) -> None:
    """In float64, to rounding; Muon works in bfloat16, where one step of rounding is larger."""
    exact = by.optimiser == "adamw"
    dtype, near = (torch.float64, 1e-9) if exact else (torch.float32, 3e-4)
    alone, packed = models(by.config, dtype), make_packed_learner(models(by.config, dtype), range(SEEDS), by, task)
    ours = torch.stack(trained(packed, by, task), 1)
    for at, model in enumerate(alone):
        theirs = trained(make_single_learner(model, at, by, task), by, task)
        torch.testing.assert_close(
            ours[at], torch.cat(theirs), rtol=1e-6 if exact else 2e-5, atol=1e-6 if exact else 1e-5
        )
        for a, b in zip(packed.model.unpack(at).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=near)


# Without biases: that of keys has no gradient but rounding, which AdamW makes as large as any other.
KINDS: list[dict[str, Any]] = [
    {},
    {"form": "encoder", "norm": "layer", "position": "learned", "tied": False},
    {"form": "encoder", "mechanism": "mahalanobis"},
    {"form": "encoder-decoder", "norm": "layer", "position": "sinusoidal"},
    {"form": "encoder-decoder", "mechanism": "metric_map"},
]


WAYS = [
    ("adamw", KINDS[0]),
    ("muon", KINDS[0]),
    ("adamw", KINDS[1]),
    ("muon", KINDS[2]),
    ("adamw", KINDS[3]),
    ("adamw", KINDS[4]),
]


@pytest.mark.parametrize(("optimiser", "kind"), WAYS, ids=str)
def test_training_is_that_of_each_alone(optimiser: str, kind: dict[str, Any]) -> None:
    by = recipe(optimiser=optimiser, rate=1e-3, clip=0.5, accumulate=2, label_smoothing=0.1, **kind)
    compared(by, task_for(by))


def test_gradients_are_clipped_by_each_seeds_own_length() -> None:
    stacked = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2, 2, 2))]
    for p in stacked:
        p.grad = torch.randn(p.shape) * torch.tensor([0.01, 9.0]).view(-1, *[1] * (p.ndim - 1))
    before = [[p.grad[at].clone() for p in stacked] for at in range(2)]
    lengths = clip_per_seed(stacked, 1.0)
    for at, own in enumerate(before):
        plain = [nn.Parameter(torch.zeros_like(g)) for g in own]
        for p, g in zip(plain, own, strict=True):
            p.grad = g
        torch.testing.assert_close(lengths[at], nn.utils.clip_grad_norm_(plain, 1.0))
        for p, q in zip(stacked, plain, strict=True):
            torch.testing.assert_close(p.grad[at], q.grad)


def test_a_seed_that_is_no_number_leaves_the_others_alone() -> None:
    for optimiser in ("adamw", "muon"):
        by = recipe(optimiser=optimiser)
        task, broken = Letters("decoder"), models(by.config)
        with torch.no_grad():
            broken[1].stack.norm.weight[0] = torch.nan
        losses = torch.stack(trained(make_packed_learner(broken, range(SEEDS), by, task), by, task), 1)
        whole = torch.stack(trained(make_packed_learner(models(by.config), range(SEEDS), by, task), by, task), 1)
        assert losses[1].isnan().all()
        assert torch.equal(losses[[0, 2]], whole[[0, 2]])


def test_what_is_kept_is_what_goes_on() -> None:
    by, task = recipe(optimiser="muon"), Letters("decoder")
    whole, parted = (make_packed_learner(models(by.config), range(SEEDS), by, task) for _ in range(2))
    trained(whole, by, task, 3)
    trained(parted, by, task, 3)
    held = parted.state_tensors()
    parted.release_device()
    assert sum(p.numel() for p in parted.model.parameters()) == 0
    parted.load_state(held, torch.device("cpu"))
    assert all(
        torch.equal(a, b) for a, b in zip(trained(whole, by, task, 2), trained(parted, by, task, 2), strict=True)
    )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_penalties_are_those_of_each_alone(norm: str) -> None:
    by = recipe(norm=norm, penalty={"asymmetry": 3.0, "residual": 0.5}, accumulate=2)
    compared(by, Letters("decoder"))


@pytest.mark.parametrize(("form", "names"), [("decoder", [*ENTRANTS]), ("encoder-decoder", ["untied", "metric_map"])])
def test_a_step_never_waits_for_the_device(form: str, names: list[str]) -> None:
    """Else it could not be recorded on a GPU."""
    usual = recipe(form=form)
    for name in names:
        by = replace(usual, config=entrant_config(name, usual.config))
        pack, task = Pack(name, by, (0, 1)), task_for(by)
        learner = make_packed_learner([initial_model(by.config, seed) for seed in pack.seeds], pack.seeds, by, task)
        batch, tokens = pack.batch(task, pack.seeds, 0)
        with WaitRecorder() as waited:
            learner.step(by, 0, batch, tokens)
        assert waited.operations == [], name
