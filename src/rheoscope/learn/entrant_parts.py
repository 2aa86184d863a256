"""The parts of an entrant: named values that compose into the config of a model.

    projection=tied,scale=unit,diagonal=no      three choices, all others as in the baseline

`PARTS` lists every part with its values; the first value of each is the baseline's. A value is one sentence and the
fields of the config that it sets. Two values that set the same field differently are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, join
from rheoscope.models.config import Config
from rheoscope.models.initialisation import check_start
from rheoscope.models.projections import PROJECTIONS
from rheoscope.models.residual_branches import deepnet_residual
from rheoscope.shapes import RheoscopeError

ConfigChanges = Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class PartValue:
    """A value of a part: its description and the fields of a `Config` that it sets."""

    description: Message
    changes: ConfigChanges


def set_fields(**changes: Any) -> ConfigChanges:
    """The same changes for every model."""
    return lambda config: changes


def gaussian_metric(config: Config) -> dict[str, Any]:
    """A Gaussian metric with σ² = √(head width), the temperature of scaled dot products.

    It differs from scaled dot products only by the term −‖k‖²/2σ².
    """
    return {"mechanism": "metric", "options": {"sigma": config.head_width**0.25}}


def scaled_branches(config: Config) -> dict[str, Any]:
    """Multiply the outputs of attention and FFN by 1/√(2 depth) before they are added to the residual stream.

    All branches together then move a token as far as a single unscaled branch.
    """
    return {"branch": (2 * config.depth) ** -0.5}


def deepnet(config: Config) -> dict[str, Any]:
    """norm(α x + f(x)) with α = (2 depth)^¼, as norm(x + f(x)/α) in units of the residual path."""
    alpha = deepnet_residual(config)
    return {"placement": "post", "branch": 1 / alpha, "eps": config.eps / alpha**2, "start": "deepnet"}


def skew_dial(planes: int) -> PartValue:
    """M = W (D + S) Wᵀ with a skew part S of rank 2 · planes."""
    return PartValue(
        Message(
            "M is a symmetric matrix plus a skew-symmetric matrix of rank {rank}, on the same coordinates",
            rank=2 * planes,
        ),
        set_fields(projection="skew_planes", skew_planes=planes),
    )


PARTS: dict[str, dict[str, PartValue]] = {
    "projection": {
        "untied": PartValue(Message("W_Q and W_K are separate"), set_fields()),
        "tied": PartValue(
            Message("W_Q = W_K: queries and keys share one coordinate system"), set_fields(projection="tied")
        ),
        "skew_0": PartValue(
            Message("M is a symmetric matrix with eigenvalues of both signs"), set_fields(projection="skew_planes")
        ),
        **{f"skew_{planes}": skew_dial(planes) for planes in (1, 2, 4, 8)},
        "skew_full": PartValue(
            Message("M is a symmetric matrix plus a skew-symmetric matrix of the same rank, on the same coordinates"),
            lambda config: {"projection": "skew_planes", "skew_planes": config.head_width // 2},
        ),
        "isometric": PartValue(
            Message("W_Q and W_K have orthonormal columns: heads project onto a subspace without distortion"),
            set_fields(projection="isometric"),
        ),
        "isometric_tied": PartValue(
            Message("W_Q = W_K with orthonormal columns: queries and keys are the same undistorted image"),
            set_fields(projection="isometric_tied"),
        ),
        "identity": PartValue(
            Message("no W_Q and W_K: head h compares its own slice of the token's coordinates"),
            set_fields(projection="identity"),
        ),
        "bandwidth": PartValue(
            Message("as identity, with a learned factor of the coordinates for each head"),
            set_fields(projection="bandwidth"),
        ),
        "identity_queries": PartValue(
            Message("W_Q = I: queries are a slice of the token's coordinates, keys are free"),
            set_fields(projection="identity_queries"),
        ),
        "nonlinear_queries": PartValue(
            Message("queries are the token's coordinates plus a small network of them, keys are free"),
            set_fields(projection="nonlinear_queries"),
        ),
        "tied_positional": PartValue(
            Message("W_Q = W_K, with one learned vector added to queries and another to keys"),
            set_fields(projection="tied_positional"),
        ),
        "symmetric_skew": PartValue(
            Message("M is a symmetric matrix plus a low-rank skew-symmetric matrix"),
            set_fields(projection="symmetric_skew"),
        ),
        "psd_skew": PartValue(
            Message("M is a positive semi-definite matrix plus a low-rank skew-symmetric matrix"),
            set_fields(projection="psd_skew"),
        ),
        "gated": PartValue(
            Message("as untied, and the output of each head is multiplied by a gate computed from the token"),
            set_fields(projection="gated"),
        ),
    },
    "scale": {
        "free": PartValue(Message("queries and keys keep their lengths"), set_fields()),
        "unit": PartValue(
            Message("queries and keys have length 1, and scores are 10 times their cosine"),
            set_fields(mechanism="cosine"),
        ),
    },
    "diagonal": {
        "yes": PartValue(Message("a token may attend to itself"), set_fields()),
        "no": PartValue(Message("only the first token attends to itself"), set_fields(diagonal=False)),
    },
    "values": {
        "free": PartValue(Message("W_V is free"), set_fields()),
        "isometric": PartValue(
            Message("W_V has orthonormal columns: values are an undistorted image"), set_fields(values="isometric")
        ),
        "shared": PartValue(Message("values are the keys, before positions are applied"), set_fields(values="shared")),
    },
    "score": {
        "dot": PartValue(Message("dot products, divided by √(head width)"), set_fields()),
        "unscaled": PartValue(
            Message("dot products that are not divided by √(head width)"), set_fields(options={"scale": 1.0})
        ),
        "metric": PartValue(
            Message("scores decrease with the squared distance between query and key"), gaussian_metric
        ),
        "metric_map": PartValue(
            Message("one learned map of queries and keys; scores decrease with the squared distance of the images"),
            set_fields(mechanism="metric_map"),
        ),
        "mahalanobis": PartValue(
            Message("scores decrease with the squared distance under a learned metric"),
            set_fields(mechanism="mahalanobis"),
        ),
        "symmetric_relation": PartValue(
            Message("one learned map of queries and keys; scores are dot products of the images"),
            set_fields(mechanism="symmetric_relation"),
        ),
        "relation": PartValue(
            Message("separate learned maps of queries and keys; scores are dot products of the images"),
            set_fields(mechanism="relation"),
        ),
        "sink": PartValue(
            Message("softmax with a sink: weights may sum to less than 1"), set_fields(mechanism="softmax_sink")
        ),
        "sigmoid": PartValue(Message("each weight is the sigmoid of its own score"), set_fields(mechanism="sigmoid")),
        "linear": PartValue(
            Message("linear attention: normalised products of positive features, without softmax"),
            set_fields(mechanism="linear"),
        ),
    },
    "start": {
        "usual": PartValue(Message("weights start as N(0, .02²)"), set_fields()),
        "symmetric": PartValue(
            Message("W_Q = W_K at initialisation, then both are free"), set_fields(start="symmetric")
        ),
        "mimetic": PartValue(
            Message("M ≈ I and F ≈ −I at initialisation, as in trained models"), set_fields(start="mimetic")
        ),
    },
    "branches": {
        "plain": PartValue(Message("outputs of attention and FFN are added to the residual stream"), set_fields()),
        "scaled": PartValue(
            Message("outputs of attention and FFN are multiplied by 1/√(2 depth): initial updates are small"),
            scaled_branches,
        ),
        "layerscale": PartValue(
            Message("outputs of attention and FFN are multiplied by a learned vector that starts at .1"),
            set_fields(branch_gain="vector"),
        ),
        "rezero": PartValue(
            Message("outputs of attention and FFN are multiplied by a learned number that starts at 0"),
            set_fields(branch_gain="number"),
        ),
        "deepnet": PartValue(
            Message("post-norm with a residual path multiplied by (2 depth)^¼, and smaller initial weights"), deepnet
        ),
        "attenuated": PartValue(
            Message("the residual path around the attention at three quarters of the depth is multiplied by ½"),
            set_fields(attenuation=0.5),
        ),
        "warmup": PartValue(
            Message("updates grow from 0 to their full size in the first half of the training, early layers first"),
            set_fields(branch_warmup=0.5),
        ),
    },
    "placement": {
        "pre": PartValue(Message("norms before attention and FFN"), set_fields()),
        "post": PartValue(
            Message("norms after the sums of the stream, none before attention and FFN"), set_fields(placement="post")
        ),
        "peri": PartValue(Message("norms before and after attention and FFN"), set_fields(placement="peri")),
    },
    "embedding": {
        "plain": PartValue(Message("embeddings enter the residual stream unchanged"), set_fields()),
        "scaled": PartValue(
            Message("embeddings are multiplied by √width: initial updates are small in comparison"),
            set_fields(scaled_embedding=True),
        ),
    },
}
"""Every part with its values, the baseline's first."""


@dataclass(frozen=True)
class EntrantParts:
    """One value for every part. The defaults are the baseline.

    **Laws** Every combination gives a valid config or is refused in one line. `parse` inverts `name`.

    >>> parts = EntrantParts(projection="tied", diagonal="no")
    >>> parts.name, EntrantParts.parse(parts.name) == parts
    ('projection=tied,diagonal=no', True)
    """

    projection: str = "untied"
    scale: str = "free"
    diagonal: str = "yes"
    values: str = "free"
    score: str = "dot"
    start: str = "usual"
    branches: str = "plain"
    placement: str = "pre"
    embedding: str = "plain"

    def __post_init__(self) -> None:
        for part, value in self.values_by_part().items():
            if value not in PARTS[part]:
                raise RheoscopeError(
                    Message(
                        "{part} must be one of {values}, got {value!r}",
                        part=part,
                        values=", ".join(PARTS[part]),
                        value=value,
                    ),
                    Advice(f'"{part}={next(iter(PARTS[part]))}"', "rheoscope race list"),
                )

    @staticmethod
    def parse(text: str) -> "EntrantParts":
        """The parts of `projection=tied,scale=unit`. Parts that are not named are those of the baseline.

        >>> EntrantParts.parse("scale=unit").scale
        'unit'
        """
        choices: dict[str, str] = {}
        for assignment in text.split(","):
            part, equals, value = (piece.strip() for piece in assignment.partition("="))
            if not equals and (owner := next((name for name in PARTS if part in PARTS[name]), None)):
                raise RheoscopeError(
                    Message("{value!r} is no part of an entrant, but a value of {part}", value=part, part=owner),
                    Advice(f'"{owner}={part}"', f"{owner}={part}"),
                )
            if not equals or part not in PARTS:
                raise RheoscopeError(
                    Message(
                        "an entrant consists of parts {parts}, got {received!r}",
                        parts=", ".join(f"{name}=…" for name in PARTS),
                        received=assignment.strip(),
                    ),
                    Advice('"projection=tied,scale=unit"', "rheoscope race list"),
                )
            if part in choices:
                raise RheoscopeError(Message("{entrant} names {part} twice; name it once", entrant=text, part=part))
            choices[part] = value
        return EntrantParts(**choices)

    @property
    def name(self) -> str:
        """The parts that differ from the baseline, in the order of `PARTS`; empty for the baseline."""
        changed = {part: value for part, value in self.values_by_part().items() if value != next(iter(PARTS[part]))}
        return ",".join(f"{part}={value}" for part, value in changed.items())

    @property
    def description(self) -> Message:
        """One sentence per part that differs from the baseline."""
        changed = (assignment.split("=") for assignment in self.name.split(",") if assignment)
        return join("; ", [PARTS[part][value].description for part, value in changed])

    def values_by_part(self) -> dict[str, str]:
        """The value of every part."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def apply_to(self, config: Config) -> Config:
        """A model with these parts. Raises if they do not combine with each other or with the model."""
        changes: dict[str, Any] = {}
        setters: dict[str, str] = {}
        for part, value in self.values_by_part().items():
            for name, setting in PARTS[part][value].changes(config).items():
                if name in changes and changes[name] != setting:
                    raise RheoscopeError(
                        Message(
                            "{first} and {second} both determine {field}; choose one of them",
                            first=setters[name],
                            second=f"{part}={value}",
                            field=name,
                        )
                    )
                changes[name], setters[name] = setting, f"{part}={value}"
        return check_projection(config.with_changes(**changes))


FACTORIAL = tuple(
    f"projection={projection},scale={scale},diagonal={diagonal}"
    for projection in ("untied", "tied", "identity", "isometric_tied")
    for scale in PARTS["scale"]
    for diagonal in PARTS["diagonal"]
)
"""The 16 entrants that separate tying, deformation, length and the diagonal: one preserved coordinate system is the last."""


def check_projection(config: Config) -> Config:
    """The config itself. Raises if its projection, values or start do not suit each other or the shape of its heads."""
    check_start(PROJECTIONS[config.projection](config), config.start)
    return config


def split_entrants(text: str) -> list[str]:
    """The entrants in a list with commas. A part that follows another part continues its entrant.

    A part that the entrant already has begins the next one.

    >>> split_entrants("qk_norm, projection=tied,scale=unit, projection=identity, metric")
    ['qk_norm', 'projection=tied,scale=unit', 'projection=identity', 'metric']
    """
    entrants: list[str] = []
    open_parts: set[str] = set()
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        part = part_name(item)
        if part and open_parts and part not in open_parts:
            entrants[-1] += f",{item}"
            open_parts.add(part)
        else:
            entrants.append(item)
            open_parts = {part} if part else set()
        if "+" in item or ":" in item:  # penalties and a size end an entrant
            open_parts = set()
    return entrants


def part_name(item: str) -> str:
    """The part that an item of a list assigns, or an empty string.

    >>> part_name("scale=unit+residual=0.1"), part_name("untied+residual=0.1")
    ('scale', '')
    """
    name, equals, _ = item.partition("+")[0].partition(":")[0].partition("=")
    return name if equals else ""


def describe_parts(parts: Mapping[str, Mapping[str, PartValue]] = PARTS) -> list[tuple[str, str, Message]]:
    """Every part, value and description, for a table."""
    return [(part, value, choice.description) for part, values in parts.items() for value, choice in values.items()]
