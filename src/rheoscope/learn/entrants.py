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
from rheoscope.models.checkpoint import Undrawn
from rheoscope.models.config import Config
from rheoscope.models.position_modules import Places
from rheoscope.models.transformer import architecture, parameter_count
from rheoscope.shapes import RheoscopeError

Changes = Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class Entrant:
    """A way to attend: what it is, in one sentence, and the fields of a `Config` that make it."""

    sentence: str
    changes: Changes

    def of(self, config: Config) -> Config:
        """The recipe's model, attending in this way."""
        return config.but(**self.changes(config))


def to(**changes: Any) -> Changes:
    """These fields, whatever the model."""
    return lambda config: changes


def metric(**changes: Any) -> Changes:
    """A Gaussian metric as warm as scaled dot products are, σ² = √(head width): what differs from them is −‖k‖²/2σ² alone."""
    return lambda config: {"mechanism": "metric", "options": {"sigma": config.head_width**0.25}} | changes


def scaled_branches(config: Config) -> dict[str, Any]:
    """What attention and FFN add to the residual stream, each times 1/√(2 depth): all together move a token as far as one would."""
    return {"branch": (2 * config.depth) ** -0.5}


BASELINE = "untied"
# fmt: off
ENTRANTS: dict[str, Entrant] = {
    BASELINE: Entrant("queries and keys by matrices of their own, scores are dot products: the baseline", to()),
    "symmetric_start": Entrant("W_Q = W_K before the first step, then both are free", to(start="symmetric")),
    "mimetic_start": Entrant("M near I and F near −I before the first step, as in trained models", to(start="mimetic")),
    "tied": Entrant("W_Q = W_K throughout: tokens are compared in one coordinate system", to(projection="tied")),
    "untied_no_diagonal": Entrant("the baseline, and no token but the first sees itself", to(projection="untied_no_diagonal")),
    "tied_no_diagonal": Entrant("tied, and no token but the first sees itself", to(projection="tied_no_diagonal")),
    "tied_positional": Entrant("tied, with a vector added to queries and one to keys", to(projection="tied_positional")),
    "symmetric_skew": Entrant("M is any symmetric part and a skew one of low rank", to(projection="symmetric_skew")),
    "psd_skew": Entrant("M is a positive semi-definite part and a skew one of low rank", to(projection="psd_skew")),
    "isometric": Entrant("W_Q and W_K orthonormal: heads look at a subspace without deforming it", to(projection="isometric")),
    "identity_queries": Entrant("W_Q = I: queries are the token's own coordinates", to(projection="identity_queries")),
    "shared_kv": Entrant("W_K = W_V: what a token is found by is what it gives", to(projection="shared_kv")),
    "gated": Entrant("what a head takes is multiplied by a gate that the token opens", to(projection="gated")),
    "qk_norm": Entrant("queries and keys of length 1, scores are 10 times their cosine", to(mechanism="cosine")),
    "unscaled": Entrant("dot products that are not divided by √(head width): as sharp as mahalanobis starts", to(options={"scale": 1.0})),
    "metric": Entrant("scores fall with the squared distance of query and key", metric()),
    "metric_map": Entrant("one learned map of queries and keys, scores fall with their squared distance in it", to(mechanism="metric_map")),
    "mahalanobis": Entrant("a learned metric, scores fall with the squared distance in it", to(mechanism="mahalanobis")),
    "tied_metric": Entrant("tied, and scores fall with the squared distance", metric(projection="tied")),
    "symmetric_relation": Entrant("one learned map of queries and keys, scores are dot products in it", to(mechanism="symmetric_relation")),
    "relation": Entrant("a learned map of queries and one of keys, scores are dot products of the two", to(mechanism="relation")),
    "scaled_branches": Entrant("what attention and FFN add is multiplied by 1/√(2 depth): layers start with small steps", scaled_branches),
    "scaled_embedding": Entrant("words begin √width times as long: first steps are small beside them", to(scaled_embedding=True)),
    "sink": Entrant("a softmax that may give nothing to anybody", to(mechanism="softmax_sink")),
    "sigmoid": Entrant("every weight by itself, a sigmoid of its score", to(mechanism="sigmoid")),
    "linear": Entrant("positive features of queries and keys, divided by their sum: no softmax", to(mechanism="linear")),
}
# fmt: on
"""A name, a sentence, and what it changes."""


def entrant(name: str, config: Config, tokens: int | None = None) -> Config:
    """The model of an entrant by name, from the recipe's own model; `NAME:parameters` and `NAME:flops` are matched to it, the latter
    on texts of so many `tokens` (or the longest).

    >>> config = Config(vocabulary=64, width=32, heads=2)
    >>> entrant("metric", config).mechanism, entrant("metric:parameters", config).hidden == config.hidden
    ('metric', True)
    """
    own, _, matching = name.partition("+")[0].partition(":")
    if own not in ENTRANTS:
        raise RheoscopeError(f"unknown entrant {own!r}; type one of {', '.join(ENTRANTS)}, or --list for what they are")
    made = ENTRANTS[own].of(config)
    if not matching:
        return made
    if matching not in MEASURES:
        raise RheoscopeError(f"an entrant is matched by {' or '.join(MEASURES)}, got {name!r}; type {own}:parameters")
    return matched(made, config, lambda of: MEASURES[matching](of, tokens))


def entrants(names: Sequence[str], config: Config, tokens: int | None = None) -> dict[str, Config]:
    """The models of a race, the baseline first whether or not it was named.

    >>> list(entrants(["metric"], Config(vocabulary=64, width=32, heads=2)))
    ['untied', 'metric']
    """
    return {name: entrant(name, config, tokens) for name in dict.fromkeys([BASELINE, *names])}


def penalties(name: str) -> dict[str, float]:
    """What an entrant keeps small besides its loss, and how strongly.

    >>> penalties("untied+asymmetry=0.1"), penalties("tied")
    ({'asymmetry': 0.1}, {})
    """
    found = {}
    for told in name.split("+")[1:]:
        what, _, strength = told.partition("=")
        try:
            found[what] = float(strength)
        except ValueError as error:
            raise RheoscopeError(
                f"a penalty is NAME=NUMBER, got {told!r}; type --mechanisms untied+asymmetry=0.1"
            ) from error
    return found


def dials(names: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    """For every penalty, the entrants that are the baseline under it at two or more strengths, weakest first: points of one curve.

    >>> dials(["untied", "untied+asymmetry=10", "untied+asymmetry=0.1", "tied+asymmetry=1", "untied+residual=1"])
    {'asymmetry': [(0.1, 'untied+asymmetry=0.1'), (10.0, 'untied+asymmetry=10')]}
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for name in (name for name in names if name.partition("+")[0] == BASELINE):
        told = [(penalty, strength) for penalty, strength in penalties(name).items() if strength > 0]
        if len(told) == 1:
            penalty, strength = told[0]
            found.setdefault(penalty, []).append((strength, name))
    return {penalty: sorted(along) for penalty, along in found.items() if len(along) > 1}


def matched(config: Config, like: Config, measure: Callable[[Config], int]) -> Config:
    """The config with the width of the FFN at which it measures as another does, as near as a whole number comes.

    >>> small = Config(vocabulary=64, width=32, heads=2, kv_heads=1)
    >>> abs(parameters(matched(small, small.but(kv_heads=2), parameters)) - parameters(small.but(kv_heads=2))) < 300
    True
    """
    wanted, low = measure(like), measure(config.but(hidden=1))
    per_unit = measure(config.but(hidden=2)) - low
    hidden = 1 + round((wanted - low) / per_unit)
    if hidden < 1:
        raise RheoscopeError(f"{config.mechanism} is larger than {like.mechanism} without any FFN; type a wider model")
    return config.but(hidden=hidden)


def parameters(config: Config, tokens: int | None = None) -> int:
    """How many numbers a model trains, however long its texts are."""
    return parameter_count(_shape(config))


def flops(config: Config, tokens: int | None = None) -> int:
    """FLOPs of one token in training on texts of n `tokens` (or the longest), by counting matrix products.

    **Formula** 3 · (2 · weights that a token is multiplied with + attention of n tokens / n); looking something up in a table costs
    nothing.
    """
    n, model = tokens or config.context, _shape(config)
    weights = sum(
        p.numel()
        for m in model.modules()
        if not isinstance(m, TABLES)
        for p in m.parameters(recurse=False)
        if p.ndim >= 2
    )
    asking, answering = (1, config.heads, n, config.head_width), (1, config.kv_heads, n, config.head_width)
    attention = sum(
        attention_cost(m.mechanism, asking, answering, config.value_width).flops
        for m in model.modules()
        if isinstance(m, Attention)
    )
    return 3 * (2 * weights + attention // n)


TABLES = (nn.Embedding, Places, nn.ParameterDict)
"""What holds numbers that are looked up; those that a mechanism learns are counted with it."""


def _shape(config: Config) -> nn.Module:
    with torch.device("meta"), Undrawn():
        return architecture(config)


MEASURES: dict[str, Callable[[Config, int | None], int]] = {"parameters": parameters, "flops": flops}
"""By what an entrant may be matched with the recipe's own model."""
