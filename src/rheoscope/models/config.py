"""Config: everything that determines a Transformer, as one frozen value that JSON can hold."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.zoo import ZOO
from rheoscope.attention.zoo import mechanism as make_mechanism
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

CHOICES: dict[str, tuple[str, ...]] = {
    "form": ("decoder", "encoder", "encoder-decoder"),
    "position": ("rotary", "learned", "sinusoidal", "alibi", "buckets", "none"),
    "norm": ("rms", "layer", "none"),
    "placement": ("pre", "post", "peri"),
    "ffn": ("swiglu", "gelu", "relu"),
    "projection": (
        "untied", "tied", "tied_positional", "symmetric_skew", "psd_skew", "skew_planes", "isometric", "isometric_tied", "identity",
        "bandwidth", "identity_queries", "nonlinear_queries", "gated", "full",
    ),
    "values": ("free", "isometric", "shared"),
    "start": ("usual", "symmetric", "mimetic", "deepnet"),
    "branch_gain": ("none", "vector", "number"),
}  # fmt: skip

TOKENS_AS_KEYS = ("full",)
"""Projections whose keys and values are the tokens themselves: one key head, as wide as a token."""

CLIPPED_PROJECTIONS = ("untied", "tied", "gated")
"""Projections whose queries and keys are both products with free matrices, which QK-clip can shrink."""

EARLIER_PROJECTIONS: dict[str, dict[str, Any]] = {
    "untied_no_diagonal": {"projection": "untied", "diagonal": False},
    "tied_no_diagonal": {"projection": "tied", "diagonal": False},
    "shared_kv": {"projection": "untied", "values": "shared"},
}
"""Projections of stored configs that are combinations today."""

FieldRule = tuple[Callable[[Any], bool], Message, Any]
"""Whether a value is allowed, what is expected, and an example value."""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1  # True is an int too


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_json_dict(value: Any) -> bool:
    """Whether a value is a dict that survives a round trip through JSON."""
    try:
        return isinstance(value, dict) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        return False


FIELD_RULES: dict[str, FieldRule] = {
    **dict.fromkeys(
        ("vocabulary", "width", "depth", "heads", "kv_heads", "head_width", "value_width", "hidden", "context"),
        (_is_count, Message("an integer of at least 1"), 4),
    ),
    **dict.fromkeys(
        ("bias", "tied", "scaled_embedding", "diagonal"),
        (lambda value: type(value) is bool, Message("True or False"), True),
    ),
    **dict.fromkeys(
        ("dropout", "attention_dropout"),
        (lambda value: _is_number(value) and 0 <= value < 1, Message("a number from 0 to below 1"), 0.1),
    ),
    "branch": (lambda value: _is_number(value) and value > 0, Message("a positive number"), 1.0),
    "attenuation": (lambda value: _is_number(value) and 0 < value <= 1, Message("a number above 0 and up to 1"), 0.5),
    "branch_warmup": (lambda value: _is_number(value) and 0 <= value < 1, Message("a number from 0 to below 1"), 0.5),
    "eps": (lambda value: _is_number(value) and value > 0, Message("a positive number"), 1e-5),
    "base": (lambda value: _is_number(value) and value > 0, Message("a positive number"), 10000.0),
    "qk_clip": (lambda value: _is_number(value) and value >= 0, Message("a number of at least 0"), 30.0),
    "skew_planes": (lambda value: type(value) is int and value >= 0, Message("an integer of at least 0"), 4),
    "options": (_is_json_dict, Message("a dict of values that JSON can hold"), {}),
}


def set_fields(**fields: Any) -> Advice:
    """Fields of a recipe or of its model to type: keyword arguments in Python, `--set` on the command line.

    >>> set_fields(heads=4)
    Advice(python='heads=4', shell='--set heads=4')
    """
    python = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return Advice(python, " ".join(f"--set {name}={value}" for name, value in fields.items()))


@dataclass(frozen=True)
class Config:
    """A Transformer as numbers and names. `recipes.py` has configs that are worth training.

    **Settings**

    - `kv_heads` is the number of key and value heads (grouped queries).
    - `head_width` is the width d_k of queries and keys. `value_width` is the width d_v of values and defaults to d_k.
    - `hidden` is the width inside the FFN. `context` is the longest text in tokens.
    - `mechanism` and `options` name a mechanism of the zoo.
    - `qk_clip` is the largest score of a head that training allows (`qk_clip.py`), or 0 for no limit.
    - `projection` says how queries and keys come from tokens, and `values` how values do (`projections.py`).
    - `skew_planes` is half the rank of the skew part of M with projection=skew_planes.
    - `diagonal=False` lets only the first token attend to itself.
    - `attention` names a module of a user in the place of self-attention (`own_attention.py`).
    - `start` says how the weights are initialised (`initialisation.py`).
    - `placement` puts norms before a sublayer (`pre`), after the sum (`post`), or before and after a sublayer (`peri`).
    - `branch` multiplies every update of a block: the depth scaling of shaped attention.
    - `branch_gain` multiplies every update by a learned vector (LayerScale) or a learned number (ReZero).
    - `attenuation` multiplies the residual path around one deep attention (`residual_branches.py`).
    - `branch_warmup` is the fraction of the training in which updates grow to their full size, early layers first.
    - `scaled_embedding` multiplies embeddings by √width, as in 2017.
    - `dropout` acts on updates of the residual stream, `attention_dropout` on the weights of a softmax.

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
    placement: Literal["pre", "post", "peri"] = "pre"
    ffn: Literal["swiglu", "gelu", "relu"] = "swiglu"
    bias: bool = False
    tied: bool = True
    scaled_embedding: bool = False
    branch: float = 1.0
    branch_gain: Literal["none", "vector", "number"] = "none"
    attenuation: float = 1.0
    branch_warmup: float = 0.0
    qk_clip: float = 0.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    eps: float = 1e-5
    base: float = 10000.0
    projection: str = "untied"
    skew_planes: int = 0
    values: Literal["free", "isometric", "shared"] = "free"
    diagonal: bool = True
    start: str = "usual"
    attention: str = ""

    def __post_init__(self) -> None:
        uses_tokens = self.projection in TOKENS_AS_KEYS
        defaults = {
            "kv_heads": self.kv_heads or (1 if uses_tokens else self.heads),
            "head_width": self.head_width or (self.width if uses_tokens else self.width // max(self.heads, 1)),
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
                Message(
                    "heads must be a multiple of kv_heads, got {heads} and {kv_heads}",
                    heads=self.heads,
                    kv_heads=self.kv_heads,
                ),
                set_fields(kv_heads=self.heads),
            )
        if self.position == "rotary" and self.head_width % 2:
            raise RheoscopeError(
                Message(
                    "rotary positions rotate pairs of coordinates and need an even head_width, got {head_width}",
                    head_width=self.head_width,
                ),
                set_fields(head_width=self.head_width + 1),
            )
        self._check_branches()
        for name in {"dim", "key_dim"} & set(self.options):
            raise RheoscopeError(
                Message(
                    "queries and keys have width head_width={head_width}, so options must not contain {name}",
                    head_width=self.head_width,
                    name=name,
                ),
                set_fields(head_width=self.options[name]),
            )
        normaliser = self.build_mechanism().normaliser
        if self.attention_dropout and (normaliser.fused_softmax is None or not normaliser.fused_softmax.is_plain):
            raise RheoscopeError(
                Message(
                    "attention_dropout needs a softmax, but {mechanism!r} normalises with {normaliser}",
                    mechanism=self.mechanism,
                    normaliser=type(normaliser).__name__,
                ),
                set_fields(attention_dropout=0),
            )

    def _check_branches(self) -> None:
        """Check that the norms and the factors of updates suit each other."""
        if self.placement == "peri" and self.norm != "rms":
            raise RheoscopeError(
                Message("placement=peri needs norm=rms, got norm={norm}", norm=self.norm), set_fields(norm="rms")
            )
        if self.placement == "peri" and self.branch_gain != "none":
            raise RheoscopeError(
                Message(
                    "placement=peri has a gain for every update, so branch_gain must be none, got {gain}",
                    gain=self.branch_gain,
                ),
                set_fields(branch_gain="none"),
            )
        has_clipped_scores = (
            self.mechanism == "scaled_dot"
            and self.projection in CLIPPED_PROJECTIONS
            and self.values == "free"
            and self.heads == self.kv_heads
            and self.form != "encoder-decoder"
            and not self.attention
        )
        if self.qk_clip and not has_clipped_scores:
            raise RheoscopeError(
                Message(
                    "qk_clip needs scaled dot products, free values, one key head per head, a single stack of layers and "
                    "projection={projections}",
                    projections=" | ".join(CLIPPED_PROJECTIONS),
                ),
                set_fields(qk_clip=0.0),
            )
        if self.placement == "post" and self.attenuation != 1:
            raise RheoscopeError(
                Message(
                    "attenuation needs norms before sublayers, got placement=post and attenuation={factor}",
                    factor=self.attenuation,
                ),
                set_fields(attenuation=1.0),
            )

    def _check_fields(self) -> None:
        """Check the type and the range of every field."""
        values = asdict(self)
        for name, (is_allowed, requirement, example) in FIELD_RULES.items():
            if not is_allowed(values[name]):
                raise RheoscopeError(
                    Message(
                        "{name} must be {requirement}, got {value!r}",
                        name=name,
                        requirement=requirement,
                        value=values[name],
                    ),
                    set_fields(**{name: example}),
                )
        for name, choices in CHOICES.items():
            if values[name] not in choices:
                raise RheoscopeError(
                    Message(
                        "{name} must be one of {choices}, got {value!r}",
                        name=name,
                        choices=", ".join(choices),
                        value=values[name],
                    ),
                    set_fields(**{name: choices[0]}),
                )

    def build_mechanism(self) -> Mechanism:
        """The named mechanism with its options, and with the widths if it learns maps of tokens or scales with the width."""
        needs_dim = self.mechanism in ZOO and ZOO[self.mechanism].needs_dim
        widths = {"dim": self.head_width} if needs_dim else {}
        if "tau0" in self.options:
            widths = {"width": self.width, "head_width": self.head_width}
        return make_mechanism(self.mechanism, **(self.options | widths))

    def save(self, file: Path) -> None:
        """Write config.json, with the model type that marks checkpoints of Rheoscope."""
        file.write_text(json.dumps({"model_type": "rheoscope", **asdict(self)}, indent=1) + "\n")

    def function_key(self) -> str:
        """The fields that decide which function the weights compute, as JSON. Defaults and training-only fields are omitted."""
        defaults = {config_field.name: config_field.default for config_field in fields(self)} | {
            "options": {},
            "value_width": self.head_width,
        }
        changed = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        training_only = {"dropout", "attention_dropout", "start", "branch_warmup", "qk_clip"}
        return json.dumps({name: changed[name] for name in changed.keys() - training_only}, sort_keys=True)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Config":
        """A Config from the content of config.json. Raises for an unknown field."""
        field_names = {config_field.name for config_field in fields(Config)}
        unknown = sorted(set(values) - field_names - {"model_type", "auto_map"})
        if unknown:
            raise RheoscopeError(
                Message("the config has an unknown field {field!r}; train the model again", field=unknown[0])
            )
        if "vocabulary" not in values:
            raise RheoscopeError(Message("the config has no field 'vocabulary'; train the model again"))
        values = values | EARLIER_PROJECTIONS.get(values.get("projection", ""), {})
        return Config(**{name: value for name, value in values.items() if name in field_names})

    def with_changes(self, **changes: Any) -> "Config":
        """A copy with some fields changed. Widths that follow from other fields are recomputed unless given."""
        depends_on = {
            "kv_heads": {"heads"},
            "head_width": {"width", "heads"},
            "value_width": {"width", "heads", "head_width"},
            "hidden": {"width", "ffn"},
        }
        recomputed = {name: 0 for name, causes in depends_on.items() if causes & set(changes) and name not in changes}
        return replace(self, **(recomputed | changes))


def default_hidden(width: int, ffn: str) -> int:
    """4 · width, or two thirds of that for a gated FFN with its third matrix, rounded up to 64 (8 for small widths)."""
    if ffn != "swiglu":
        return 4 * width
    multiple = 64 if width >= 192 else 8
    return -(-8 * width // 3 // multiple) * multiple
