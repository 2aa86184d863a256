"""Recipes: functions that say what to train and how, as frozen values. `rheoscope train NAME` takes one by name.

A recipe fits any vocabulary: the data decides how many tokens there are.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from rheoscope.models.config import Config
from rheoscope.models.penalty import PENALTIES
from rheoscope.shapes import RheoscopeError

CHOICES = {"schedule": ("cosine", "wsd"), "optimiser": ("adamw", "muon")}
RANGES = {
    "rate": (0, 1e3), "warmup": (0, 1e9), "floor": (0, 1), "weight_decay": (0, 1e3), "clip": (1e-9, 1e9),
    "label_smoothing": (0, 1), "held_out": (1e-9, 0.99),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A model and how it learns.

    `batch` texts of `context` tokens (sentence pairs: as many as that many tokens hold) make one step, in `accumulate`
    pieces one after the other with the same gradient. The rate rises over `warmup` steps to `rate`, then falls: `cosine`
    to `floor` · rate; `wsd` stays and falls to 0 in the last fifth.
    Matrices inside blocks may take `muon`; everything else takes AdamW. `vocabulary` is what the tokenizer is made with.
    `penalty` names what is kept small besides the loss, and how strongly: {"asymmetry": 0.1} (`penalty.py`).
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

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "accumulate", "evaluate_every"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise RheoscopeError(
                    f"{name} must be a whole number of 1 or more, got {getattr(self, name)!r}; type {name}=100"
                )
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high or (name == "rate" and self.rate == 0):
                raise RheoscopeError(
                    f"{name} must be between {low:g} and {high:g}, got {getattr(self, name)!r}; "
                    f"type {name}={Recipe.__dict__.get(name, 0.001)}"
                )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise RheoscopeError(f"unknown {name} {getattr(self, name)!r}; type one of {', '.join(choices)}")
        _check_penalty(self.penalty)
        if self.batch % self.accumulate:
            raise RheoscopeError(
                f"batch must be a multiple of accumulate, got {self.batch} and {self.accumulate}; type accumulate=1"
            )
        if self.context > self.config.context:
            raise RheoscopeError(
                f"texts of {self.context} tokens are longer than the {self.config.context} positions of the model; "
                f"type context={self.config.context}"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)

    def with_changes(self, **changes: Any) -> "Recipe":
        """The same with some fields changed; a field of the model changes the model.

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
            f"penalty must be names and how strong they are, 0 or more, got {penalties!r}; type penalty={{'asymmetry': 0.1}}"
        )
    for name in set(penalties) - set(PENALTIES):
        raise RheoscopeError(f"unknown penalty {name!r}; type one of {', '.join(PENALTIES)}")


def _check_field_name(name: str) -> None:
    if name not in RECIPE_FIELD_TYPES and name not in MODEL_FIELD_TYPES:
        names = ", ".join(sorted({*RECIPE_FIELD_TYPES, *MODEL_FIELD_TYPES}))
        raise RheoscopeError(f"a recipe has no {name!r}; type one of {names}")


def parse_setting(text: str) -> tuple[str, Any]:
    """A field of a recipe or of its model and its value, from `name=value` as a person types it.

    >>> parse_setting("rate=1e-3"), parse_setting("betas=0.9,0.98"), parse_setting("vocabulary=characters"), parse_setting("tied=false")
    (('rate', 0.001), ('betas', (0.9, 0.98)), ('vocabulary', 'characters'), ('tied', False))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise RheoscopeError(f"a setting is name=value, got {text!r}; type --set rate=0.001")
    _check_field_name(name)
    field_type = (MODEL_FIELD_TYPES | RECIPE_FIELD_TYPES)[name]
    parse, description = PARSERS.get(field_type, (str, "a word"))
    try:
        return name, parse(value)
    except (ValueError, KeyError) as error:
        raise RheoscopeError(f"{name} takes {description}, got {value!r}; type --set {name}=…") from error


PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    tuple[float, float]: (lambda value: _pair(*map(float, value.split(","))), "two numbers, as 0.9,0.95"),
    int | str: (lambda value: int(value) if value.isdigit() else value, "a number of tokens or characters"),
    dict[str, Any]: (json.loads, 'JSON, as {"sigma": 2}'),
}


def _pair(*numbers: float) -> tuple[float, float]:
    first, second = numbers
    return first, second


def tiny() -> Recipe:
    """A decoder of about 0.1M parameters that learns in seconds on a CPU: to try things out."""
    config = Config(vocabulary=512, width=64, depth=2, heads=4, context=128)
    return Recipe(config, steps=200, batch=16, context=64, rate=3e-3, warmup=20, evaluate_every=100, vocabulary=512)


def default() -> Recipe:
    """The model that ships: a small decoder with rotary positions, RMSNorm and SwiGLU, for English prose."""
    config = Config(vocabulary=4096, width=256, depth=6, heads=4, hidden=672, context=1024, dropout=0.1)
    return Recipe(
        config, steps=9000, batch=64, context=1024, rate=2e-3, warmup=200, schedule="wsd", evaluate_every=1000
    )


def shakespeare() -> Recipe:
    """nanoGPT's character model of 10.65M parameters on tiny Shakespeare, with more dropout and fewer steps."""
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
    """A decoder of GPT-2's shape (124M parameters)."""
    config = Config(
        vocabulary=50304, width=768, depth=12, heads=12, context=1024, position="learned", norm="layer", ffn="gelu"
    )
    return Recipe(
        config, steps=100_000, batch=480, context=1024, rate=6e-4, warmup=2000, accumulate=15, vocabulary=50304
    )


def base2017() -> Recipe:
    """The base model of "Attention is all you need" (arXiv:1706.03762), post-norm, 63M parameters with 37000 tokens."""
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
    """A small encoder that says which tokens are hidden (BERT's task, arXiv:1810.04805), in a minute on a CPU."""
    config = Config(vocabulary=512, width=64, depth=2, heads=4, context=128, form="encoder")
    return Recipe(config, steps=400, batch=32, context=64, rate=5e-3, warmup=40, evaluate_every=100, vocabulary=512)


def two_moons() -> Recipe:
    """A small encoder that says which of two moons points lie on, from a few that show theirs; no --data, seconds on a CPU."""
    config = Config(vocabulary=434, width=32, depth=2, heads=2, context=24, form="encoder", position="none", tied=False)
    return Recipe(config, steps=250, batch=16, context=24, rate=5e-3, warmup=25, weight_decay=0.0, evaluate_every=25)


def digits() -> Recipe:
    """A small encoder that says which digit 16 patches show (scikit-learn's images); no --data, seconds on a CPU."""
    config = Config(
        vocabulary=267, width=32, depth=2, heads=2, context=17, form="encoder", position="learned", tied=False
    )
    return Recipe(config, steps=200, batch=16, context=17, rate=5e-3, warmup=20, weight_decay=0.0, evaluate_every=25)


TAU0 = 0.025
"""Weights start at N(0, .02²), the theory has N(0, 1/width): at a width of 64 scores are 40 times smaller; so is τ₀, about."""


def shaped() -> Recipe:
    """The tiny decoder with shaped attention, as warm as it is wide (arXiv:2306.17759), and the branch scaled by 1/√depth."""
    recipe = tiny()
    return recipe.with_changes(mechanism="shaped", options={"tau0": TAU0}, branch=recipe.config.depth**-0.5)


RECIPES: dict[str, Callable[[], Recipe]] = {
    make_recipe.__name__: make_recipe
    for make_recipe in (tiny, default, shakespeare, gpt2, base2017, translation, encoder, shaped, two_moons, digits)
}


def recipe_by_name(name: str) -> Recipe:
    """A recipe by name.

    >>> recipe_by_name("shakespeare").config.width
    384
    """
    if name not in RECIPES:
        raise RheoscopeError(f"unknown recipe {name!r}; type one of {', '.join(RECIPES)}")
    return RECIPES[name]()
