"""All that determines a Transformer, as one frozen value that JSON can hold."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.zoo import ZOO
from rheoscope.attention.zoo import mechanism as make_mechanism
from rheoscope.shapes import RheoscopeError

CHOICES: dict[str, tuple[str, ...]] = {
    "form": ("decoder", "encoder", "encoder-decoder"),
    "position": ("rotary", "learned", "sinusoidal", "alibi", "buckets", "none"),
    "norm": ("rms", "layer", "none"),
    "placement": ("pre", "post"),
    "ffn": ("swiglu", "gelu", "relu"),
    "projection": (
        "untied", "untied_no_diagonal", "tied", "tied_no_diagonal", "tied_positional", "symmetric_skew", "psd_skew",
        "isometric", "identity_queries", "shared_kv", "gated",
    ),
    "start": ("usual", "symmetric", "mimetic"),
}  # fmt: skip

FieldRule = tuple[Callable[[Any], bool], str, str]
"""Whether a value will do, what is wanted, and what to type."""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # True is an int too


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_json_dict(value: Any) -> bool:
    """A dict that JSON holds, and gives back as it was."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        return False


FIELD_RULES: dict[str, FieldRule] = {
    **dict.fromkeys(
        ("vocabulary", "width", "depth", "heads", "kv_heads", "head_width", "value_width", "hidden", "context"),
        (_is_count, "a whole number of 1 or more", "4"),
    ),
    **dict.fromkeys(("bias", "tied", "scaled_embedding"), (lambda value: type(value) is bool, "True or False", "True")),
    **dict.fromkeys(
        ("dropout", "attention_dropout"),
        (lambda value: _is_number(value) and 0 <= value < 1, "a share below 1", "0.1"),
    ),
    "branch": (lambda value: _is_number(value) and value > 0, "a positive number", "1.0"),
    "eps": (lambda value: _is_number(value) and value > 0, "a positive number", "1e-5"),
    "base": (lambda value: _is_number(value) and value > 0, "a positive number", "10000.0"),
    "options": (_is_json_dict, "names and values that JSON holds", "{}"),
}


@dataclass(frozen=True)
class Config:
    """A Transformer in numbers and names; `recipes.py` has the ones worth training.

    `kv_heads` groups heads (grouped queries), `head_width` is that of queries and keys (d_k), `value_width` that of values
    (d_v, as d_k where it is not given), `hidden` the width inside the FFN, `context` the longest text,
    `mechanism` and `options` a row of the zoo, `branch` a factor on everything a block adds (the depth scaling of shaped
    attention), `scaled_embedding` multiplies embeddings by √width (2017). `dropout` is on what is added to the stream,
    `attention_dropout` on the weights of a softmax. `projection` says how queries, keys and values of self attention come from
    tokens (`projections.py`), `start` what weights are before the first step (`starts.py`).

    >>> Config(vocabulary=256, width=64, heads=4).head_width
    16
    """

    vocabulary: int
    width: int = 256
    depth: int = 6
    heads: int = 4
    kv_heads: int = 0
    head_width: int = 0
    value_width: int = 0
    hidden: int = 0
    context: int = 512
    form: Literal["decoder", "encoder", "encoder-decoder"] = "decoder"
    mechanism: str = "scaled_dot"
    options: dict[str, Any] = field(default_factory=dict)
    position: Literal["rotary", "learned", "sinusoidal", "alibi", "buckets", "none"] = "rotary"
    norm: Literal["rms", "layer", "none"] = "rms"
    placement: Literal["pre", "post"] = "pre"
    ffn: Literal["swiglu", "gelu", "relu"] = "swiglu"
    bias: bool = False
    tied: bool = True
    scaled_embedding: bool = False
    branch: float = 1.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    eps: float = 1e-5
    base: float = 10000.0
    projection: str = "untied"
    start: str = "usual"

    def __post_init__(self) -> None:
        defaults = {
            "kv_heads": self.kv_heads or self.heads,
            "head_width": self.head_width or self.width // max(self.heads, 1),
            "hidden": self.hidden or default_hidden(self.width, self.ffn),
        }
        defaults["value_width"] = self.value_width or defaults["head_width"]
        for name, value in defaults.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        self._check_fields()
        if self.heads % self.kv_heads:
            raise RheoscopeError(
                f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}; type kv_heads={self.heads}"
            )
        if self.position == "rotary" and self.head_width % 2:
            raise RheoscopeError(f"rotary turns pairs: an even head_width, got {self.head_width}; type another width")
        for name in {"dim", "key_dim"} & set(self.options):
            raise RheoscopeError(
                f"a mechanism reads queries and keys of head_width={self.head_width}, got options with a {name}; "
                "type head_width=…"
            )
        normaliser = self.build_mechanism().normaliser
        if self.attention_dropout and (normaliser.fused_softmax is None or not normaliser.fused_softmax.is_plain):
            raise RheoscopeError(
                f"attention_dropout drops weights of a softmax, {self.mechanism!r} has {type(normaliser).__name__}; "
                "type attention_dropout=0"
            )

    def _check_fields(self) -> None:
        """Every field by itself: its type and what it may be."""
        values = asdict(self)
        for name, (is_allowed, requirement, example) in FIELD_RULES.items():
            if not is_allowed(values[name]):
                raise RheoscopeError(f"{name} must be {requirement}, got {values[name]!r}; type {name}={example}")
        for name, choices in CHOICES.items():
            if values[name] not in choices:
                raise RheoscopeError(f"unknown {name} {values[name]!r}; type one of {', '.join(choices)}")

    def build_mechanism(self) -> Mechanism:
        """The named mechanism with its options, and the widths where it learns maps of tokens or is as warm as the model is wide."""
        needs_dim = self.mechanism in ZOO and ZOO[self.mechanism].needs_dim
        widths = {"dim": self.head_width} if needs_dim else {}
        if "tau0" in self.options:
            widths = {"width": self.width, "head_width": self.head_width}
        return make_mechanism(self.mechanism, **(self.options | widths))

    def save(self, file: Path) -> None:
        """As config.json, with the words that tell Rheoscope's own checkpoints from others."""
        file.write_text(json.dumps({"model_type": "rheoscope", **asdict(self)}, indent=1) + "\n")

    def function_key(self) -> str:
        """What of it decides which function the weights are: fields at their defaults and those of training left out."""
        defaults = {config_field.name: config_field.default for config_field in fields(self)} | {
            "options": {},
            "value_width": self.head_width,
        }
        changed = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        training_only = {"dropout", "attention_dropout", "start"}
        return json.dumps({name: changed[name] for name in changed.keys() - training_only}, sort_keys=True)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Config":
        """From what config.json holds; an unknown field is refused by name."""
        field_names = {config_field.name for config_field in fields(Config)}
        unknown = sorted(set(values) - field_names - {"model_type"})
        if unknown or "vocabulary" not in values:
            problem = f"the unknown field {unknown[0]!r}" if unknown else "no vocabulary"
            raise RheoscopeError(
                f"this config has {problem}; it was written by another version, or by hand: train again"
            )
        return Config(**{name: value for name, value in values.items() if name in field_names})

    def with_changes(self, **changes: Any) -> "Config":
        """The same with some fields changed; widths that follow from others are worked out anew unless given."""
        depends_on = {
            "kv_heads": {"heads"},
            "head_width": {"width", "heads"},
            "value_width": {"width", "heads", "head_width"},
            "hidden": {"width", "ffn"},
        }
        recomputed = {name: 0 for name, causes in depends_on.items() if causes & set(changes) and name not in changes}
        return replace(self, **(recomputed | changes))


def default_hidden(width: int, ffn: str) -> int:
    """4 widths; a gated FFN has a third matrix, so two thirds of that, in steps of 64 (of 8 for small widths)."""
    if ffn != "swiglu":
        return 4 * width
    multiple = 64 if width >= 192 else 8
    return -(-8 * width // 3 // multiple) * multiple
