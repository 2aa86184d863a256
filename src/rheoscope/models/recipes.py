"""Recipes: functions that return what to train and how, as frozen values. `rheoscope train NAME` runs one.

A recipe fits any vocabulary, because the data decides the number of tokens.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.config import Config, set_fields
from rheoscope.models.penalty import PENALTIES
from rheoscope.shapes import RheoscopeError

CHOICES = {"schedule": ("cosine", "wsd"), "optimiser": ("adamw", "muon")}
RANGES = {
    "rate": (0, 1e3), "warmup": (0, 1e9), "floor": (0, 1), "weight_decay": (0, 1e3), "clip": (1e-9, 1e9),
    "label_smoothing": (0, 1), "held_out": (1e-9, 0.99), "penalty_warmup": (0, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained.

    **Settings** One step takes `batch` texts of `context` tokens, or as many sentence pairs as fit into that many tokens. The batch is
    processed in `accumulate` parts with the same total gradient. The learning rate rises to `rate` over `warmup` steps. After that
    `cosine` decays to `floor` · rate, and `wsd` stays constant and decays to 0 in the last fifth. With `muon`, matrices inside blocks
    use Muon and everything else uses AdamW. `vocabulary` is the size of the tokenizer. `penalty` maps penalties to their strengths,
    such as {"asymmetry": 0.1} (`penalty.py`). They grow from 0 to their strengths in the fraction `penalty_warmup` of the steps.
    """

    config: Config
    steps: int
    batch: int
    context: int
    rate: float
    warmup: int = 100
    schedule: Literal["cosine", "wsd"] = "cosine"
    floor: float = 0.1
    optimiser: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    label_smoothing: float = 0.0
    seed: int = 0
    evaluate_every: int = 250
    vocabulary: int | str = 4096
    held_out: float = 0.02
    penalty: dict[str, Any] = field(default_factory=dict)
    penalty_warmup: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "accumulate", "evaluate_every"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise RheoscopeError(
                    Message(
                        "{name} must be an integer of at least 1, got {value!r}", name=name, value=getattr(self, name)
                    ),
                    set_fields(**{name: 100}),
                )
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high or (name == "rate" and self.rate == 0):
                raise RheoscopeError(
                    Message(
                        "{name} must be between {low:g} and {high:g}, got {value!r}",
                        name=name,
                        low=low,
                        high=high,
                        value=getattr(self, name),
                    ),
                    set_fields(**{name: Recipe.__dict__.get(name, 0.001)}),
                )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise RheoscopeError(
                    Message(
                        "{name} must be one of {choices}, got {value!r}",
                        name=name,
                        choices=", ".join(choices),
                        value=getattr(self, name),
                    ),
                    set_fields(**{name: choices[0]}),
                )
        _check_penalty(self.penalty)
        if self.batch % self.accumulate:
            raise RheoscopeError(
                Message(
                    "batch must be a multiple of accumulate, got {batch} and {accumulate}",
                    batch=self.batch,
                    accumulate=self.accumulate,
                ),
                set_fields(accumulate=1),
            )
        if self.context > self.config.context:
            raise RheoscopeError(
                Message(
                    "texts of {n} tokens exceed the {context} positions of the model",
                    n=self.context,
                    context=self.config.context,
                ),
                set_fields(context=self.config.context),
            )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON stores it."""
        return asdict(self)

    def with_changes(self, **changes: Any) -> "Recipe":
        """A copy with some fields changed. A field of the model changes the model.

        >>> tiny().with_changes(width=32, steps=5).config.width
        32
        """
        recipe_changes = {name: value for name, value in changes.items() if name in RECIPE_FIELD_TYPES}
        model_changes = {name: value for name, value in changes.items() if name in MODEL_FIELD_TYPES}
        for name in changes:
            _check_field_name(name)
        if "context" in recipe_changes:
            model_changes["context"] = max(recipe_changes["context"], self.config.context)
        model_changes.pop("vocabulary", None)
        return replace(self, **recipe_changes, config=self.config.with_changes(**model_changes))


RECIPE_FIELD_TYPES = {
    config_field.name: config_field.type for config_field in fields(Recipe) if config_field.name != "config"
}
MODEL_FIELD_TYPES = {config_field.name: config_field.type for config_field in fields(Config)}


def _check_penalty(penalties: Any) -> None:
    if not isinstance(penalties, dict) or any(
        type(x) not in (int, float) or not 0 <= x < 1e9 for x in penalties.values()
    ):
        raise RheoscopeError(
            Message("penalty must map names to strengths of at least 0, got {value!r}", value=penalties),
            Advice("penalty={'asymmetry': 0.1}", "--penalty asymmetry=0.1"),
        )
    for name in set(penalties) - set(PENALTIES):
        raise RheoscopeError(
            Message("penalty must be one of {choices}, got {value!r}", choices=", ".join(PENALTIES), value=name),
            Advice("penalty={'asymmetry': 0.1}", "--penalty asymmetry=0.1"),
        )


def _check_field_name(name: str) -> None:
    if name not in RECIPE_FIELD_TYPES and name not in MODEL_FIELD_TYPES:
        names = ", ".join(sorted({*RECIPE_FIELD_TYPES, *MODEL_FIELD_TYPES}))
        raise RheoscopeError(
            Message("a recipe has no setting {name!r}; its settings are {names}", name=name, names=names)
        )


def parse_setting(text: str) -> tuple[str, Any]:
    """The name and value of a field of a recipe or of its model, from `name=value` as typed.

    >>> parse_setting("rate=1e-3"), parse_setting("betas=0.9,0.98")
    (('rate', 0.001), ('betas', (0.9, 0.98)))
    >>> parse_setting("vocabulary=characters"), parse_setting("tied=false")
    (('vocabulary', 'characters'), ('tied', False))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise RheoscopeError(
            Message("a setting must have the form name=value, got {text!r}", text=text), Advice("", "--set rate=0.001")
        )
    _check_field_name(name)
    field_type = (MODEL_FIELD_TYPES | RECIPE_FIELD_TYPES)[name]
    parse, requirement, example = PARSERS.get(field_type, (str, Message("a word"), "…"))
    try:
        return name, parse(value)
    except (ValueError, KeyError) as error:
        raise RheoscopeError(
            Message("{name} must be {requirement}, got {value!r}", name=name, requirement=requirement, value=value),
            Advice("", f"--set {name}={example}"),
        ) from error


PARSERS: dict[Any, tuple[Callable[[str], Any], Message, str]] = {
    int: (int, Message("an integer"), "4"),
    float: (float, Message("a number"), "0.1"),
    bool: ({"true": True, "false": False}.__getitem__, Message("true or false"), "true"),
    tuple[float, float]: (
        lambda value: _pair(*map(float, value.split(","))),
        Message("two numbers separated by a comma"),
        "0.9,0.95",
    ),
    int | str: (
        lambda value: int(value) if value.isdigit() else value,
        Message("a number of tokens, or characters"),
        "4096",
    ),
    dict[str, Any]: (json.loads, Message("a JSON object"), "'{\"sigma\": 2}'"),
}


def _pair(*numbers: float) -> tuple[float, float]:
    first, second = numbers
    return first, second


def tiny() -> Recipe:
    """A decoder of about 0.1M parameters that trains in seconds on a CPU, for trying things out."""
    config = Config(vocabulary=512, width=64, depth=2, heads=4, context=128)
    return Recipe(config, steps=200, batch=16, context=64, rate=3e-3, warmup=20, evaluate_every=100, vocabulary=512)


def default() -> Recipe:
    """The default model: a small decoder with rotary positions, RMSNorm and SwiGLU, for English prose."""
    config = Config(vocabulary=4096, width=256, depth=6, heads=4, hidden=672, context=1024, dropout=0.1)
    return Recipe(
        config, steps=9000, batch=64, context=1024, rate=2e-3, warmup=200, schedule="wsd", evaluate_every=1000
    )


def shakespeare() -> Recipe:
    """nanoGPT's character model of 10.65M parameters for tiny Shakespeare, with more dropout and fewer steps."""
    config = Config(
        vocabulary=65,
        width=384,
        depth=6,
        heads=6,
        context=256,
        position="learned",
        norm="layer",
        ffn="gelu",
        dropout=0.3,
        attention_dropout=0.3,
    )
    return Recipe(
        config, steps=3000, batch=64, context=256, rate=1e-3, betas=(0.9, 0.99), evaluate_every=250,
        vocabulary="characters", held_out=0.1,
    )  # fmt: skip


def gpt2() -> Recipe:
    """A decoder with the architecture of GPT-2 (124M parameters)."""
    config = Config(
        vocabulary=50304, width=768, depth=12, heads=12, context=1024, position="learned", norm="layer", ffn="gelu"
    )
    return Recipe(
        config, steps=100_000, batch=480, context=1024, rate=6e-4, warmup=2000, accumulate=15, vocabulary=50304
    )


def base2017() -> Recipe:
    """The base model of "Attention is all you need" (arXiv:1706.03762): post-norm, 63M parameters with 37,000 tokens."""
    config = Config(
        vocabulary=37000, width=512, depth=6, heads=8, context=512, form="encoder-decoder", position="sinusoidal",
        norm="layer", placement="post", ffn="relu", bias=True, scaled_embedding=True, dropout=0.1,
    )  # fmt: skip
    return Recipe(
        config, steps=100_000, batch=500, context=50, rate=7e-4, warmup=4000, betas=(0.9, 0.98), weight_decay=0.0,
        label_smoothing=0.1, vocabulary=37000,
    )  # fmt: skip


def translation() -> Recipe:
    """A small encoder-decoder for a small parallel corpus (Multi30k): pre-norm, strong dropout, label smoothing."""
    config = Config(
        vocabulary=8000, width=256, depth=3, heads=8, hidden=1024, context=256, form="encoder-decoder",
        position="sinusoidal", norm="layer", ffn="relu", bias=True, scaled_embedding=True, dropout=0.35,
    )  # fmt: skip
    return Recipe(
        config, steps=6000, batch=128, context=48, rate=7e-4, warmup=400, betas=(0.9, 0.98), weight_decay=0.01,
        label_smoothing=0.1, evaluate_every=500, vocabulary=8000,
    )  # fmt: skip


def encoder() -> Recipe:
    """A small encoder that predicts masked tokens (BERT's task, arXiv:1810.04805), in a minute on a CPU."""
    config = Config(vocabulary=512, width=64, depth=2, heads=4, context=128, form="encoder")
    return Recipe(config, steps=400, batch=32, context=64, rate=5e-3, warmup=40, evaluate_every=100, vocabulary=512)


def two_moons() -> Recipe:
    """A small encoder that predicts which of two moons a point lies on, from a few labelled points. No --data, seconds on a CPU."""
    config = Config(vocabulary=434, width=32, depth=2, heads=2, context=24, form="encoder", position="none", tied=False)
    return Recipe(config, steps=250, batch=16, context=24, rate=5e-3, warmup=25, weight_decay=0.0, evaluate_every=25)


def digits() -> Recipe:
    """A small encoder that classifies digits from 16 patches (scikit-learn's images). No --data, seconds on a CPU."""
    config = Config(
        vocabulary=267, width=32, depth=2, heads=2, context=17, form="encoder", position="learned", tied=False
    )
    return Recipe(config, steps=200, batch=16, context=17, rate=5e-3, warmup=20, weight_decay=0.0, evaluate_every=25)


TAU0 = 0.025
"""τ₀ for initial weights N(0, .02²), where the theory has N(0, 1/width). At width 64 scores are 40 times smaller, and so is τ₀."""


def shaped() -> Recipe:
    """The tiny decoder with shaped attention at the temperature of its width (arXiv:2306.17759) and branches scaled by 1/√depth."""
    recipe = tiny()
    return recipe.with_changes(mechanism="shaped", options={"tau0": TAU0}, branch=recipe.config.depth**-0.5)


def emf() -> Recipe:
    """The EMF model: one form M and one map F per layer, on E itself, without factors and norms. Half a minute on a CPU.

    Embeddings are scaled up, because without a norm small tokens give M hardly any gradient. F starts small, like every map that
    writes to the stream. Training is stable at twice this rate and diverges at four times. A `branch` below 1 is not needed.
    """
    config = Config(
        vocabulary=512, width=64, depth=2, heads=1, context=128, position="learned", norm="none", projection="full",
        options={"scale": 1.0}, scaled_embedding=True,
    )  # fmt: skip
    return Recipe(config, steps=200, batch=16, context=64, rate=1e-2, warmup=20, evaluate_every=100, vocabulary=512)


RECIPES: dict[str, Callable[[], Recipe]] = {
    make_recipe.__name__: make_recipe
    for make_recipe in (
        tiny,
        default,
        shakespeare,
        gpt2,
        base2017,
        translation,
        encoder,
        shaped,
        emf,
        two_moons,
        digits,
    )
}


def recipe_by_name(name: str) -> Recipe:
    """A recipe by name.

    >>> recipe_by_name("shakespeare").config.width
    384
    """
    if name not in RECIPES:
        raise RheoscopeError(
            Message("unknown recipe {name!r}; the recipes are {recipes}", name=name, recipes=", ".join(RECIPES)),
            Advice("", "rheoscope train --list"),
        )
    return RECIPES[name]()
