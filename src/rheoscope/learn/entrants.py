"""Who races: one line each, a name, what it is, and what of the model it changes. `untied` is what all are compared with.

metric              the entrant itself
metric:parameters   with an FFN as wide as it takes to have as many parameters as the recipe's own model
metric:flops        … to cost as many FLOPs a token
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rheoscope.attention.cost import attention_cost
from rheoscope.attention.modules import Attention
from rheoscope.models.checkpoint import SkipInit
from rheoscope.models.config import Config
from rheoscope.models.position_modules import PositionEncoding
from rheoscope.models.transformer import make_architecture, parameter_count
from rheoscope.shapes import RheoscopeError

ConfigChanges = Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class Entrant:
    """A way to attend: what it is, in one sentence, and the fields of a `Config` that make it."""

    sentence: str
    changes: ConfigChanges

    def apply_to(self, config: Config) -> Config:
        """The recipe's model, attending in this way."""
        return config.with_changes(**self.changes(config))


def set_fields(**changes: Any) -> ConfigChanges:
    """These fields, whatever the model."""
    return lambda config: changes


def gaussian_metric(**changes: Any) -> ConfigChanges:
    """A Gaussian metric as warm as scaled dot products are, σ² = √(head width): what differs from them is −‖k‖²/2σ² alone."""
    return lambda config: {"mechanism": "metric", "options": {"sigma": config.head_width**0.25}} | changes


def scaled_branches(config: Config) -> dict[str, Any]:
    """What attention and FFN add to the residual stream, each times 1/√(2 depth): all together move a token as far as one would."""
    return {"branch": (2 * config.depth) ** -0.5}


BASELINE = "untied"
ENTRANTS: dict[str, Entrant] = {
    BASELINE: Entrant("queries and keys by matrices of their own, scores are dot products: the baseline", set_fields()),
    "symmetric_start": Entrant("W_Q = W_K before the first step, then both are free", set_fields(start="symmetric")),
    "mimetic_start": Entrant(
        "M near I and F near −I before the first step, as in trained models", set_fields(start="mimetic")
    ),
    "tied": Entrant(
        "W_Q = W_K throughout: tokens are compared in one coordinate system", set_fields(projection="tied")
    ),
    "untied_no_diagonal": Entrant(
        "the baseline, and no token but the first sees itself", set_fields(projection="untied_no_diagonal")
    ),
    "tied_no_diagonal": Entrant(
        "tied, and no token but the first sees itself", set_fields(projection="tied_no_diagonal")
    ),
    "tied_positional": Entrant(
        "tied, with a vector added to queries and one to keys", set_fields(projection="tied_positional")
    ),
    "symmetric_skew": Entrant(
        "M is any symmetric part and a skew one of low rank", set_fields(projection="symmetric_skew")
    ),
    "psd_skew": Entrant(
        "M is a positive semi-definite part and a skew one of low rank", set_fields(projection="psd_skew")
    ),
    "isometric": Entrant(
        "W_Q and W_K orthonormal: heads look at a subspace without deforming it", set_fields(projection="isometric")
    ),
    "identity_queries": Entrant(
        "W_Q = I: queries are the token's own coordinates", set_fields(projection="identity_queries")
    ),
    "shared_kv": Entrant("W_K = W_V: what a token is found by is what it gives", set_fields(projection="shared_kv")),
    "gated": Entrant("what a head takes is multiplied by a gate that the token opens", set_fields(projection="gated")),
    "qk_norm": Entrant(
        "queries and keys of length 1, scores are 10 times their cosine", set_fields(mechanism="cosine")
    ),
    "unscaled": Entrant(
        "dot products not divided by √(head width), as sharp as mahalanobis at the start",
        set_fields(options={"scale": 1.0}),
    ),
    "metric": Entrant("scores fall with the squared distance of query and key", gaussian_metric()),
    "metric_map": Entrant(
        "one learned map of queries and keys, scores fall with the squared distance in it",
        set_fields(mechanism="metric_map"),
    ),
    "mahalanobis": Entrant(
        "a learned metric, scores fall with the squared distance in it", set_fields(mechanism="mahalanobis")
    ),
    "tied_metric": Entrant("tied, and scores fall with the squared distance", gaussian_metric(projection="tied")),
    "symmetric_relation": Entrant(
        "one learned map of queries and keys, scores are dot products in it", set_fields(mechanism="symmetric_relation")
    ),
    "relation": Entrant(
        "a learned map of queries and one of keys, scores are dot products of the two", set_fields(mechanism="relation")
    ),
    "scaled_branches": Entrant(
        "what attention and FFN add is multiplied by 1/√(2 depth): layers start with small steps", scaled_branches
    ),
    "scaled_embedding": Entrant(
        "words begin √width times as long: first steps are small beside them", set_fields(scaled_embedding=True)
    ),
    "sink": Entrant("a softmax that may give nothing to anybody", set_fields(mechanism="softmax_sink")),
    "sigmoid": Entrant("every weight by itself, a sigmoid of its score", set_fields(mechanism="sigmoid")),
    "linear": Entrant(
        "positive features of queries and keys, divided by their sum: no softmax", set_fields(mechanism="linear")
    ),
}
"""A name, a sentence, and what it changes."""


def entrant_config(name: str, config: Config, n_tokens: int | None = None) -> Config:
    """The model of an entrant by name, from the recipe's own model; `NAME:parameters` and `NAME:flops` are matched to it, the latter
    on texts of so many `tokens` (or the longest).

    >>> config = Config(vocabulary=64, width=32, heads=2)
    >>> entrant_config("metric", config).mechanism, entrant_config("metric:parameters", config).hidden == config.hidden
    ('metric', True)
    """
    base_name, _, measure_name = name.partition("+")[0].partition(":")
    if base_name not in ENTRANTS:
        raise RheoscopeError(
            f"unknown entrant {base_name!r}; type one of {', '.join(ENTRANTS)}, or --list for what they are"
        )
    changed_config = ENTRANTS[base_name].apply_to(config)
    if not measure_name:
        return changed_config
    if measure_name not in SIZE_MEASURES:
        raise RheoscopeError(
            f"an entrant is matched by {' or '.join(SIZE_MEASURES)}, got {name!r}; type {base_name}:parameters"
        )
    return match_ffn_width(changed_config, config, lambda candidate: SIZE_MEASURES[measure_name](candidate, n_tokens))


def entrant_configs(names: Sequence[str], config: Config, n_tokens: int | None = None) -> dict[str, Config]:
    """The models of a race, the baseline first whether or not it was named.

    >>> list(entrant_configs(["metric"], Config(vocabulary=64, width=32, heads=2)))
    ['untied', 'metric']
    """
    return {name: entrant_config(name, config, n_tokens) for name in dict.fromkeys([BASELINE, *names])}


def parse_penalties(name: str) -> dict[str, float]:
    """What an entrant keeps small besides its loss, and how strongly.

    >>> parse_penalties("untied+asymmetry=0.1"), parse_penalties("tied")
    ({'asymmetry': 0.1}, {})
    """
    strengths = {}
    for term in name.split("+")[1:]:
        penalty, _, strength = term.partition("=")
        try:
            strengths[penalty] = float(strength)
        except ValueError as error:
            raise RheoscopeError(
                f"a penalty is NAME=NUMBER, got {term!r}; type --mechanisms untied+asymmetry=0.1"
            ) from error
    return strengths


def penalty_sweeps(names: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    """For every penalty, the entrants that are the baseline under it at two or more strengths, weakest first: points of one curve.

    >>> penalty_sweeps(["untied", "untied+asymmetry=10", "untied+asymmetry=0.1", "tied+asymmetry=1", "untied+residual=1"])
    {'asymmetry': [(0.1, 'untied+asymmetry=0.1'), (10.0, 'untied+asymmetry=10')]}
    """
    sweeps: dict[str, list[tuple[float, str]]] = {}
    for name in (name for name in names if name.partition("+")[0] == BASELINE):
        nonzero = [(penalty, strength) for penalty, strength in parse_penalties(name).items() if strength > 0]
        if len(nonzero) == 1:
            penalty, strength = nonzero[0]
            sweeps.setdefault(penalty, []).append((strength, name))
    return {penalty: sorted(points) for penalty, points in sweeps.items() if len(points) > 1}


def match_ffn_width(config: Config, reference: Config, measure: Callable[[Config], int]) -> Config:
    """The config with the width of the FFN at which it measures as another does, as near as a whole number comes.

    >>> small = Config(vocabulary=64, width=32, heads=2, kv_heads=1)
    >>> other = small.with_changes(kv_heads=2)
    >>> abs(n_parameters(match_ffn_width(small, other, n_parameters)) - n_parameters(other)) < 300
    True
    """
    target_size, base_size = measure(reference), measure(config.with_changes(hidden=1))
    size_per_unit = measure(config.with_changes(hidden=2)) - base_size
    hidden = 1 + round((target_size - base_size) / size_per_unit)
    if hidden < 1:
        raise RheoscopeError(
            f"{config.mechanism} is larger than {reference.mechanism} without any FFN; type a wider model"
        )
    return config.with_changes(hidden=hidden)


def n_parameters(config: Config, n_tokens: int | None = None) -> int:
    """How many numbers a model trains, however long its texts are."""
    return parameter_count(_meta_model(config))


def flops_per_token(config: Config, n_tokens: int | None = None) -> int:
    """FLOPs of one token in training on texts of n `tokens` (or the longest), by counting matrix products.

    **Formula** 3 · (2 · weights that a token is multiplied with + attention of n tokens / n); looking something up in a table costs
    nothing.
    """
    n, model = n_tokens or config.context, _meta_model(config)
    n_weights = sum(
        p.numel()
        for m in model.modules()
        if not isinstance(m, LOOKUP_MODULES)
        for p in m.parameters(recurse=False)
        if p.ndim >= 2
    )
    query_shape, key_shape = (1, config.heads, n, config.head_width), (1, config.kv_heads, n, config.head_width)
    attention_flops = sum(
        attention_cost(m.mechanism, query_shape, key_shape, config.value_width).flops
        for m in model.modules()
        if isinstance(m, Attention)
    )
    return 3 * (2 * n_weights + attention_flops // n)


LOOKUP_MODULES = (nn.Embedding, PositionEncoding, nn.ParameterDict)
"""What holds numbers that are looked up; those that a mechanism learns are counted with it."""


def _meta_model(config: Config) -> nn.Module:
    with torch.device("meta"), SkipInit():
        return make_architecture(config)


SIZE_MEASURES: dict[str, Callable[[Config, int | None], int]] = {"parameters": n_parameters, "flops": flops_per_token}
"""By what an entrant may be matched with the recipe's own model."""
