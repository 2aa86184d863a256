"""The entrants of a race: variants of attention, composed of parts.

    projection=tied,scale=unit      an entrant as its parts (`entrant_parts.py`)
    metric                          an entrant by its short name
    metric:parameters               with an FFN width that matches the parameter count of the recipe's own model
    metric:flops                    with an FFN width that matches its FLOPs per token
    metric+residual=0.1             with a penalty added to its loss
    metric+weight_decay=0.3         with a setting of training of its own: weight_decay, clip, qk_clip or penalty_warmup

All entrants are compared with the baseline, `untied`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.attention.cost import attention_cost
from rheoscope.attention.modules import Attention
from rheoscope.learn.entrant_parts import EntrantParts, part_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.closest_name import closest_name
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import SkipInit
from rheoscope.models.config import Config
from rheoscope.models.own_attention import OWN_ATTENTION, OwnAttention
from rheoscope.models.penalty import PENALTIES
from rheoscope.models.position_modules import POSITION_ENCODINGS, PositionEncoding
from rheoscope.models.transformer import make_architecture, parameter_count
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True)
class Entrant:
    """A variant of attention with a name of its own: its description and its parts."""

    description: Message
    parts: EntrantParts


BASELINE = "untied"
ENTRANTS: dict[str, Entrant] = {
    BASELINE: Entrant(Message("the baseline: W_Q and W_K are separate and scores are dot products"), EntrantParts()),
    "symmetric_start": Entrant(
        Message("W_Q = W_K at initialisation, then both are free"), EntrantParts(start="symmetric")
    ),
    "mimetic_start": Entrant(
        Message("M ≈ I and F ≈ −I at initialisation, as in trained models"), EntrantParts(start="mimetic")
    ),
    "tied": Entrant(
        Message("W_Q = W_K throughout: queries and keys share one coordinate system"), EntrantParts(projection="tied")
    ),
    "untied_no_diagonal": Entrant(
        Message("the baseline, but only the first token attends to itself"), EntrantParts(diagonal="no")
    ),
    "tied_no_diagonal": Entrant(
        Message("tied, but only the first token attends to itself"), EntrantParts(projection="tied", diagonal="no")
    ),
    "tied_positional": Entrant(
        Message("tied, with one learned vector added to queries and another to keys"),
        EntrantParts(projection="tied_positional"),
    ),
    "symmetric_skew": Entrant(
        Message("M is a symmetric matrix plus a low-rank skew-symmetric matrix"),
        EntrantParts(projection="symmetric_skew"),
    ),
    "psd_skew": Entrant(
        Message("M is a positive semi-definite matrix plus a low-rank skew-symmetric matrix"),
        EntrantParts(projection="psd_skew"),
    ),
    "symmetric": Entrant(
        Message("M is symmetric, with eigenvalues of both signs: one end of the skew dial"),
        EntrantParts(projection="skew_0"),
    ),
    "isometric": Entrant(
        Message("W_Q and W_K have orthonormal columns: heads project onto a subspace without distortion"),
        EntrantParts(projection="isometric"),
    ),
    "identity_queries": Entrant(
        Message("W_Q = I: queries are the coordinates of the token itself"), EntrantParts(projection="identity_queries")
    ),
    "nonlinear_queries": Entrant(
        Message("queries are the token's coordinates plus a small network of them, keys are free"),
        EntrantParts(projection="nonlinear_queries"),
    ),
    "gaussian_kernel": Entrant(
        Message(
            "no W_Q, W_K and W_V: a Gaussian kernel of slices of the token, with a learned bandwidth for each head"
        ),
        EntrantParts(projection="bandwidth", values="shared", score="metric"),
    ),
    "shared_kv": Entrant(Message("W_K = W_V: keys and values are the same vectors"), EntrantParts(values="shared")),
    "gated": Entrant(
        Message("the output of each head is multiplied by a gate computed from the token"),
        EntrantParts(projection="gated"),
    ),
    "qk_norm": Entrant(
        Message("queries and keys have length 1 and scores are 10 times their cosine"), EntrantParts(scale="unit")
    ),
    "unscaled": Entrant(
        Message("dot products are not divided by √(head width): initially as sharp as mahalanobis"),
        EntrantParts(score="unscaled"),
    ),
    "metric": Entrant(
        Message("scores decrease with the squared distance between query and key"), EntrantParts(score="metric")
    ),
    "metric_map": Entrant(
        Message("one learned map of queries and keys; scores decrease with the squared distance of the images"),
        EntrantParts(score="metric_map"),
    ),
    "mahalanobis": Entrant(
        Message("scores decrease with the squared distance under a learned metric"), EntrantParts(score="mahalanobis")
    ),
    "tied_metric": Entrant(
        Message("tied, and scores decrease with the squared distance"), EntrantParts(projection="tied", score="metric")
    ),
    "symmetric_relation": Entrant(
        Message("one learned map of queries and keys; scores are dot products of the images"),
        EntrantParts(score="symmetric_relation"),
    ),
    "relation": Entrant(
        Message("separate learned maps of queries and keys; scores are dot products of the images"),
        EntrantParts(score="relation"),
    ),
    "scaled_branches": Entrant(
        Message("outputs of attention and FFN are multiplied by 1/√(2 depth): initial updates are small"),
        EntrantParts(branches="scaled"),
    ),
    "layerscale": Entrant(
        Message("outputs of attention and FFN are multiplied by a learned vector that starts at .1"),
        EntrantParts(branches="layerscale"),
    ),
    "rezero": Entrant(
        Message("outputs of attention and FFN are multiplied by a learned number that starts at 0"),
        EntrantParts(branches="rezero"),
    ),
    "deepnet": Entrant(
        Message("post-norm with a residual path multiplied by (2 depth)^¼, and smaller initial weights"),
        EntrantParts(branches="deepnet"),
    ),
    "attenuated": Entrant(
        Message("the residual path around the attention at three quarters of the depth is multiplied by ½"),
        EntrantParts(branches="attenuated"),
    ),
    "branch_warmup": Entrant(
        Message("updates grow from 0 to their full size in the first half of the training, early layers first"),
        EntrantParts(branches="warmup"),
    ),
    "post_norm": Entrant(
        Message("norms after the sums of the stream, none before attention and FFN"), EntrantParts(placement="post")
    ),
    "peri_norm": Entrant(Message("norms before and after attention and FFN"), EntrantParts(placement="peri")),
    "scaled_embedding": Entrant(
        Message("embeddings are multiplied by √width: initial updates are small in comparison"),
        EntrantParts(embedding="scaled"),
    ),
    "sink": Entrant(Message("softmax with a sink: weights may sum to less than 1"), EntrantParts(score="sink")),
    "sigmoid": Entrant(Message("each weight is the sigmoid of its own score"), EntrantParts(score="sigmoid")),
    "linear": Entrant(
        Message("linear attention: normalised products of positive features, without softmax"),
        EntrantParts(score="linear"),
    ),
}
"""Entrants by their short names."""
SHORT_NAMES = {entrant.parts: name for name, entrant in ENTRANTS.items()}
"""The short names of the combinations that have one."""


TRAINING_SETTINGS = ("weight_decay", "clip", "qk_clip", "penalty_warmup")
"""Settings of a recipe or of its model that an entrant may have for itself. None changes the function of the weights."""


def base_entrant(name: str) -> str:
    """The name of an entrant without its penalties, its training settings and its size measure.

    >>> base_entrant("metric:flops"), base_entrant("untied+asymmetry=0.1")
    ('metric', 'untied')
    """
    return name.partition("+")[0].partition(":")[0]


def entrant_parts(base_name: str) -> EntrantParts:
    """The parts of an entrant, from its short name or from the parts themselves.

    >>> entrant_parts("qk_norm") == entrant_parts("scale=unit")
    True
    """
    if "=" in base_name:
        if (error := misplaced_term(base_name)) is not None:
            raise error
        return EntrantParts.parse(base_name)
    if base_name not in ENTRANTS:
        raise unknown_entrant(base_name)
    return ENTRANTS[base_name].parts


def unknown_entrant(name: str) -> RheoscopeError:
    """The error for an entrant that does not exist, with the name that was probably meant."""
    if name.endswith(".py"):
        return RheoscopeError(Message("{file} needs the name of a module in it", file=name), Advice("", f"{name}:NAME"))
    closest = closest_name(name.lower(), ENTRANTS)
    if closest is not None:
        return RheoscopeError(
            Message("there is no entrant {name!r}; the closest name is {closest}", name=name, closest=closest),
            Advice("", "rheoscope race list"),
        )
    return RheoscopeError(
        Message(
            "there is no entrant {name!r}, expected one of {n} names such as {example} or parts such as projection=tied,scale=unit",
            name=name,
            n=len(ENTRANTS),
            example="qk_norm",
        ),
        Advice("", "rheoscope race list"),
    )


def canonical_name(name: str) -> str:
    """The name under which an entrant is stored: its short name, or its parts in a fixed order without the baseline's.

    >>> canonical_name("diagonal=no,projection=tied:flops"), canonical_name("scale=unit,projection=tied+residual=0.1")
    ('tied_no_diagonal:flops', 'projection=tied,scale=unit+residual=0.1')
    """
    base_name = base_entrant(name)
    if "=" not in base_name:
        return name
    parts = entrant_parts(base_name)
    return SHORT_NAMES.get(parts, parts.name) + name.removeprefix(base_name)


def entrant_description(name: str) -> Message:
    """What distinguishes an entrant, without its penalties and its size."""
    base_name = base_entrant(name)
    if base_name in ENTRANTS:
        return ENTRANTS[base_name].description
    if "=" not in base_name:
        return Message("an attention module from a file: {name}", name=base_name)
    return entrant_parts(base_name).description


def entrant_config(name: str, config: Config, n_tokens: int | None = None) -> Config:
    """The model config of an entrant, derived from the recipe's own model.

    `NAME:parameters` and `NAME:flops` match its size to that model. FLOPs are counted for texts of `n_tokens`
    tokens (default: the context length).

    >>> config = Config(vocabulary=64, width=32, heads=2)
    >>> entrant_config("metric", config).mechanism, entrant_config("metric:parameters", config).hidden == config.hidden
    ('metric', True)
    """
    base_name, measure_name = base_entrant(name), name.partition("+")[0].partition(":")[2]
    is_own = base_name in OWN_ATTENTION
    changed_config = config.with_changes(attention=base_name) if is_own else entrant_parts(base_name).apply_to(config)
    if not measure_name:
        return changed_config
    if measure_name not in SIZE_MEASURES:
        raise RheoscopeError(
            Message("an entrant is matched by parameters or flops, got {name!r}", name=name),
            Advice(f'"{base_name}:parameters"', f"--mechanisms {base_name}:parameters"),
        )
    return match_ffn_width(changed_config, config, lambda candidate: SIZE_MEASURES[measure_name](candidate, n_tokens))


def entrant_configs(names: Sequence[str], config: Config, n_tokens: int | None = None) -> dict[str, Config]:
    """The model configs of a race. The baseline comes first, even if it was not named.

    >>> list(entrant_configs(["metric", "scale=unit"], Config(vocabulary=64, width=32, heads=2)))
    ['untied', 'metric', 'qk_norm']
    """
    unique_names = dict.fromkeys([BASELINE, *map(canonical_name, names)])
    return {name: entrant_config(name, config, n_tokens) for name in unique_names}


def parse_terms(name: str) -> dict[str, float]:
    """The penalties and training settings after an entrant, with their numbers.

    >>> parse_terms("untied+asymmetry=0.1+weight_decay=0.3"), parse_terms("tied")
    ({'asymmetry': 0.1, 'weight_decay': 0.3}, {})
    """
    numbers = {}
    for term in name.split("+")[1:]:
        term_name, _, number = term.partition("=")
        if term_name in numbers:
            raise RheoscopeError(Message("{entrant} names {part} twice; name it once", entrant=name, part=term_name))
        if term_name not in (*PENALTIES, *TRAINING_SETTINGS):
            raise RheoscopeError(
                Message(
                    "an entrant is followed by one of {names}, got {term!r}",
                    names=", ".join((*PENALTIES, *TRAINING_SETTINGS)),
                    term=term,
                ),
                TERM_EXAMPLE,
            )
        try:
            numbers[term_name] = float(number)
        except ValueError as error:
            raise RheoscopeError(
                Message("a term after an entrant has the form NAME=NUMBER, got {term!r}", term=term), TERM_EXAMPLE
            ) from error
    return numbers


def misplaced_term(name: str) -> RheoscopeError | None:
    """The error for a penalty or a setting of the training among the parts of an entrant. None for other names.

    >>> str(misplaced_term("scale=unit,residual=0.1").message)
    "residual is no part of the attention, and follows an entrant after '+'"
    """
    terms = [part_name(item) for item in base_entrant(name).split(",")]
    term = next((term for term in terms if term in (*PENALTIES, *TRAINING_SETTINGS)), None)
    if term is None:
        return None
    message = Message("{term} is no part of the attention, and follows an entrant after '+'", term=term)
    return RheoscopeError(message, Advice(f'"untied+{term}=0.1"', f"--entrant untied+{term}=0.1"))


TERM_EXAMPLE = Advice('"untied+asymmetry=0.1"', "--mechanisms untied+asymmetry=0.1")


def parse_penalties(name: str) -> dict[str, float]:
    """The penalties that an entrant adds to its loss, with their strengths.

    >>> parse_penalties("untied+asymmetry=0.1+clip=0.5"), parse_penalties("tied")
    ({'asymmetry': 0.1}, {})
    """
    return {term: number for term, number in parse_terms(name).items() if term in PENALTIES}


def parse_training_settings(name: str) -> dict[str, float]:
    """The training settings that an entrant has for itself.

    >>> parse_training_settings("untied+asymmetry=0.1+clip=0.5")
    {'clip': 0.5}
    """
    return {term: number for term, number in parse_terms(name).items() if term in TRAINING_SETTINGS}


def penalty_sweeps(names: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    """For each penalty, the baseline under it at two or more strengths, weakest first.

    >>> penalty_sweeps(["untied", "untied+asymmetry=10", "untied+asymmetry=0.1", "tied+asymmetry=1", "untied+residual=1"])
    {'asymmetry': [(0.1, 'untied+asymmetry=0.1'), (10.0, 'untied+asymmetry=10')]}
    """
    sweeps: dict[str, list[tuple[float, str]]] = {}
    for name in (name for name in names if name.partition("+")[0] == BASELINE):
        nonzero = [(term, number) for term, number in parse_terms(name).items() if number > 0]
        if len(nonzero) == 1 and nonzero[0][0] in PENALTIES:
            penalty, strength = nonzero[0]
            sweeps.setdefault(penalty, []).append((strength, name))
    return {penalty: sorted(points) for penalty, points in sweeps.items() if len(points) > 1}


def match_ffn_width(config: Config, reference: Config, measure: Callable[[Config], int]) -> Config:
    """The config with the FFN width at which `measure` is closest to that of the reference.

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
            Message(
                "{mechanism} without an FFN is already larger than the model with {reference}, expected a wider model",
                mechanism=config.mechanism,
                reference=reference.mechanism,
            ),
            Advice(f"width={2 * reference.width}", f"--set width={2 * reference.width}"),
        )
    return config.with_changes(hidden=hidden)


def n_parameters(config: Config, n_tokens: int | None = None) -> int:
    """The number of trainable parameters; it does not depend on the length of texts."""
    return parameter_count(_meta_model(config))


def flops_per_token(config: Config, n_tokens: int | None = None) -> int:
    """FLOPs per token in training on texts of `n_tokens` tokens (default: the context length).

    **Formula** 3 · (2 · weights that a token is multiplied with + attention FLOPs of n tokens / n). Table lookups
    cost nothing.
    """
    n, model = n_tokens or config.context, _meta_model(config)
    own_modules = [m for m in model.modules() if isinstance(m, OwnAttention)]
    counted_parts = {part for own in own_modules for part in own.modules()}
    n_weights = sum(
        p.numel()
        for m in model.modules()
        if m not in counted_parts and not isinstance(m, LOOKUP_MODULES)
        for p in m.parameters(recurse=False)
        if p.ndim >= 2
    )
    query_shape, key_shape = (1, config.heads, n, config.head_width), (1, config.kv_heads, n, config.head_width)
    attention_flops = sum(
        attention_cost(m.mechanism, query_shape, key_shape, config.value_width).flops
        for m in model.modules()
        if isinstance(m, Attention) and m not in counted_parts
    )
    own_flops = sum(forward_flops(own, config, n) for own in own_modules)
    return 3 * (2 * n_weights + (attention_flops + own_flops) // n)


def forward_flops(own: OwnAttention, config: Config, n_tokens: int) -> int:
    """The FLOPs of a user's module on a text of n tokens, as torch counts them."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        rotation = POSITION_ENCODINGS[config.position](config, config.form == "decoder").rotation(slice(0, n_tokens))
        own(torch.empty(1, n_tokens, config.width), None, rotation)
    return int(counter.get_total_flops())


LOOKUP_MODULES = (nn.Embedding, PositionEncoding, nn.ParameterDict)
"""Modules whose parameters are looked up, not multiplied. Parameters of a mechanism are counted in its own cost."""


def _meta_model(config: Config) -> nn.Module:
    with torch.device("meta"), SkipInit():
        return make_architecture(config)


SIZE_MEASURES: dict[str, Callable[[Config, int | None], int]] = {"parameters": n_parameters, "flops": flops_per_token}
"""The measures by which an entrant can be matched to the recipe's own model."""
