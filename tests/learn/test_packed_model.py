"""Packed seeds equal each seed alone up to rounding: logits, gradients, clipping, AdamW and Muon."""

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
MODEL_NAMES = [
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
"""All classes of `PACKED_FORMS`, and learned mechanisms with and without position bias.

The entrants have their own test.
"""


TRANSLATOR = {"form": "encoder-decoder", "norm": "layer", "position": "sinusoidal", "bias": True, "ffn": "relu"}
CONFIGS = CASES | {
    "own_translator": tiny(**TRANSLATOR, kv_heads=2, scaled_embedding=True),
    "own_translator_bilinear": tiny(**TRANSLATOR, mechanism="bilinear", kv_heads=2),
}


def model_inputs(model_config: Config) -> tuple[torch.Tensor, ...]:
    """Inputs of two texts per seed. Sources have different lengths, so their padding differs."""
    ids = torch.randint(model_config.vocabulary, (2 * SEEDS, 7))
    if model_config.form != "encoder-decoder":
        return (ids,)
    is_real = torch.arange(7) < torch.tensor([7, 3, 5, 1, 6, 7])[:, None]
    return ids, torch.randint(model_config.vocabulary, (2 * SEEDS, 5)), is_real


def models(model_config: Config, dtype: torch.dtype = torch.float32) -> list[Transformer | Translator]:
    """One model per seed, with no parameter at its initial value."""
    result = []
    for seed in range(SEEDS):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            result.append(randomised(make_architecture(model_config)).to(dtype))
    return result


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_logits_and_gradients_equal_those_of_each_model(name: str) -> None:
    single_models = models(CONFIGS[name])
    packed, inputs = PackedModel(single_models), model_inputs(CONFIGS[name])
    packed_logits, inputs_by_seed = packed(*inputs), zip(*(part.chunk(SEEDS) for part in inputs), strict=True)
    single_logits = torch.cat([model(*rows) for model, rows in zip(single_models, inputs_by_seed, strict=True)])
    torch.testing.assert_close(packed_logits, single_logits, rtol=1e-4, atol=1e-4)
    for logits in (packed_logits, single_logits):
        logits.square().sum().backward()
    packed_parameters = dict(packed.body.named_parameters())
    for index, model in enumerate(single_models):
        for name_of_parameter, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(
                    packed_parameters[name_of_parameter].grad[index],
                    p.grad,
                    rtol=1e-3,
                    atol=1e-4 * float(p.grad.abs().max()),
                )


@pytest.mark.parametrize("name", ["own_biased", "own_translator"])
def test_unpacking_restores_each_model(name: str) -> None:
    single_models = models(CONFIGS[name])
    packed = PackedModel(single_models)
    for index, model in enumerate(single_models):
        unpacked = packed.unpack(index)
        assert unpacked.config == model.config
        assert all(
            torch.equal(a, b) for a, b in zip(unpacked.state_dict().values(), model.state_dict().values(), strict=True)
        )


def test_tied_weights_stay_tied() -> None:
    packed = PackedModel(models(config()))
    assert packed.body.stack.embed.weight is packed.body.unembed.weight
    assert packed.unpack(1).unembed.weight is not None
    translator = PackedModel(models(config(form="encoder-decoder"))).body
    assert translator.encoder.embed.weight is translator.decoder.embed.weight is translator.unembed.weight


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_forward_pass_constructs_no_mechanism(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = PackedModel(models(CONFIGS[name]))
    constructions = record_constructions(monkeypatch)
    packed(*model_inputs(CONFIGS[name]))
    assert not constructions


def test_unpackable_models_are_refused() -> None:
    with pytest.raises(PackingError, match="BucketTable has no packed form"):
        PackedModel(models(CASES["own_buckets"]))
    with pytest.raises(PackingError, match="same parameter shapes"):
        PackedModel([Transformer(config()), Transformer(config(hidden=8))])


def test_every_module_that_holds_parameters_is_packed_or_refused() -> None:
    class UnknownModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

    model = Transformer(config())
    model.stack.norm = UnknownModule()
    with pytest.raises(PackingError, match="UnknownModule has no packed form"):
        PackedModel([model])
    assert UnknownModule not in PACKED_FORMS


# Training


def train_steps(learner: Learner, training_recipe: Recipe, task: Task, steps: int = 3) -> list[torch.Tensor]:
    """The losses of each step."""
    losses = []
    for step in range(steps):
        batches = [task.batch(step, training_recipe.with_changes(seed=seed)) for seed in learner.seeds]
        tokens = torch.tensor([float(task.n_targets(batch)) for batch in batches])
        losses.append(learner.step(training_recipe, step, task.concat_batches(batches), tokens))
    return losses


def check_packed_equals_single(training_recipe: Recipe, task: Task) -> None:
    """In float64 up to rounding. Muon works in bfloat16, where rounding is larger."""
    is_adamw = training_recipe.optimiser == "adamw"
    dtype, tolerance = (torch.float64, 1e-9) if is_adamw else (torch.float32, 3e-4)
    single_models, packed = (
        models(training_recipe.config, dtype),
        make_packed_learner(models(training_recipe.config, dtype), range(SEEDS), training_recipe, task),
    )
    packed_losses = torch.stack(train_steps(packed, training_recipe, task), 1)
    for index, model in enumerate(single_models):
        single_losses = train_steps(make_single_learner(model, index, training_recipe, task), training_recipe, task)
        torch.testing.assert_close(
            packed_losses[index],
            torch.cat(single_losses),
            rtol=1e-6 if is_adamw else 2e-5,
            atol=1e-6 if is_adamw else 1e-5,
        )
        for a, b in zip(packed.model.unpack(index).parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


# Without biases: the gradient of the key bias is pure rounding error, which AdamW scales up.
MODEL_CHANGES: list[dict[str, Any]] = [
    {},
    {"form": "encoder", "norm": "layer", "position": "learned", "tied": False},
    {"form": "encoder", "mechanism": "mahalanobis"},
    {"form": "encoder-decoder", "norm": "layer", "position": "sinusoidal"},
    {"form": "encoder-decoder", "mechanism": "metric_map"},
]


TRAINING_CASES = [
    ("adamw", MODEL_CHANGES[0]),
    ("muon", MODEL_CHANGES[0]),
    ("adamw", MODEL_CHANGES[1]),
    ("muon", MODEL_CHANGES[2]),
    ("adamw", MODEL_CHANGES[3]),
    ("adamw", MODEL_CHANGES[4]),
]


@pytest.mark.parametrize(("optimiser", "changes"), TRAINING_CASES, ids=str)
def test_training_equals_that_of_each_model(optimiser: str, changes: dict[str, Any]) -> None:
    training_recipe = recipe(optimiser=optimiser, rate=1e-3, clip=0.5, accumulate=2, label_smoothing=0.1, **changes)
    check_packed_equals_single(training_recipe, task_for(training_recipe))


def test_gradients_are_clipped_by_the_norm_of_each_seed() -> None:
    stacked = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2, 2, 2))]
    for p in stacked:
        p.grad = torch.randn(p.shape) * torch.tensor([0.01, 9.0]).view(-1, *[1] * (p.ndim - 1))
    before = [[p.grad[index].clone() for p in stacked] for index in range(2)]
    norms = clip_per_seed(stacked, 1.0)
    for index, seed_gradients in enumerate(before):
        single_parameters = [nn.Parameter(torch.zeros_like(g)) for g in seed_gradients]
        for p, g in zip(single_parameters, seed_gradients, strict=True):
            p.grad = g
        torch.testing.assert_close(norms[index], nn.utils.clip_grad_norm_(single_parameters, 1.0))
        for p, q in zip(stacked, single_parameters, strict=True):
            torch.testing.assert_close(p.grad[index], q.grad)


def test_a_diverged_seed_does_not_affect_the_others() -> None:
    for optimiser in ("adamw", "muon"):
        training_recipe = recipe(optimiser=optimiser)
        task, models_with_nan = Letters("decoder"), models(training_recipe.config)
        with torch.no_grad():
            models_with_nan[1].stack.norm.weight[0] = torch.nan
        losses = torch.stack(
            train_steps(
                make_packed_learner(models_with_nan, range(SEEDS), training_recipe, task), training_recipe, task
            ),
            1,
        )
        expected = torch.stack(
            train_steps(
                make_packed_learner(models(training_recipe.config), range(SEEDS), training_recipe, task),
                training_recipe,
                task,
            ),
            1,
        )
        assert losses[1].isnan().all()
        assert torch.equal(losses[[0, 2]], expected[[0, 2]])


def test_a_restored_learner_continues_identically() -> None:
    training_recipe, task = recipe(optimiser="muon"), Letters("decoder")
    uninterrupted, resumed = (
        make_packed_learner(models(training_recipe.config), range(SEEDS), training_recipe, task) for _ in range(2)
    )
    train_steps(uninterrupted, training_recipe, task, 3)
    train_steps(resumed, training_recipe, task, 3)
    saved_state = resumed.state_tensors()
    resumed.release_device()
    assert sum(p.numel() for p in resumed.model.parameters()) == 0
    resumed.load_state(saved_state, torch.device("cpu"))
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            train_steps(uninterrupted, training_recipe, task, 2),
            train_steps(resumed, training_recipe, task, 2),
            strict=True,
        )
    )


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_penalties_equal_those_of_each_model(norm: str) -> None:
    training_recipe = recipe(norm=norm, penalty={"asymmetry": 3.0, "residual": 0.5}, accumulate=2)
    check_packed_equals_single(training_recipe, Letters("decoder"))


@pytest.mark.parametrize(("form", "names"), [("decoder", [*ENTRANTS]), ("encoder-decoder", ["untied", "metric_map"])])
def test_a_step_never_synchronises_with_the_device(form: str, names: list[str]) -> None:
    """Otherwise it could not be recorded on a GPU."""
    base_recipe = recipe(form=form)
    for name in names:
        training_recipe = replace(base_recipe, config=entrant_config(name, base_recipe.config))
        pack, task = Pack(name, training_recipe, (0, 1)), task_for(training_recipe)
        learner = make_packed_learner(
            [initial_model(training_recipe.config, seed) for seed in pack.seeds], pack.seeds, training_recipe, task
        )
        batch, tokens = pack.batch(task, pack.seeds, 0)
        with WaitRecorder() as recorder:
            learner.step(training_recipe, 0, batch, tokens)
        assert recorder.operations == [], name
