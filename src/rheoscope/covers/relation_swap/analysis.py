"""Relation swap: the model runs a text with the attention weights, or with the values, of another text."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import provenance
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit, Model, Text, check_same_weights
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.safe_arithmetic import at_least_float32, safe_divide
from rheoscope.space.settings import Draws, Seed, TokenIndex
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_permutations
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

SWAPS = ("weights", "values")
N_PERMUTATIONS = 200
"""The number of random token orders in the null of the profile correlations."""
LayerEdits = dict[int, LayerEdit]


@torch.no_grad()
def relation_swap(
    model: Model,
    trace: Trace,
    other: Text | None = None,
    draws: Draws = 4,
    token: TokenIndex = -1,
    seed: Seed = 0,
    keep_massive: bool = False,
    control: Trace | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The effect on the prediction when a text runs with the weights, or the values, of another text.

    **Question** What changes the prediction more: which tokens attend to which, or the content of the tokens? Do tokens with
    similar attention profiles have similar points?

    **Formula** Every head computes o_i = Σ_j A_ij v_j. The swap `weights` takes A from the other text and v from this one. The swap
    `values` takes v from the other text and A from this one. Each is done in one layer at a time, and in all layers. `kl` is
    KL(p ‖ p') of the prediction at `token`, with p the unchanged prediction. The profile of token i in a layer is its row and its
    column of A in all heads. `profile_rsa` is the Spearman correlation of the distances between profiles and the distances between
    the centred, normalised points that the layer reads.

    **Settings**
    `other` is a text with as many tokens. The default is the same tokens in another order, with the first and the last in place.
    `draws` is the number of null draws. In a draw, every head uses the weights of another random head of its layer.
    `control=rs.load(…, untrained=True).trace(text)` adds the profile correlations of an untrained model. Under a causal mask,
    weights and points both depend on position, even there.

    **Returns** (swap, layer): `kl`. (layer): `kl_null`, `kl_null_sd`, `profile_rsa` and `profile_rsa_partial` (given |i − j| and
    i + j), each with its null over permuted tokens and, with a control, its `…_untrained`. (swap): `kl_all_layers`. Scalars:
    `kl_all_layers_null`, `kl_other_text`.

    **Laws** Swapping with the same text gives KL 0. Transformations that leave the logits unchanged leave every field unchanged.

    **See also** `surgery`, which changes M and F; `attention_patching`, which moves the weights along their gradient.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "The keys to the cabinet are on the table"
    >>> result = rs.relation_swap(model, model.trace(text), other=text, draws=0)
    >>> bool((result.kl < 1e-9).all())
    True
    """
    check_same_weights(model, trace)
    check_unembedding(model)
    donor = model.trace(reordered_ids(trace.ids, seed) if other is None else other)
    if len(donor) != len(trace):
        raise RheoscopeError(
            Message(
                "other must have as many tokens as the text ({expected}), got {received}; use another text",
                expected=len(trace),
                received=len(donor),
            )
        )
    swaps = {"weights": _weight_swaps(donor), "values": _value_swaps(donor)}
    clean_log_probs, kls = kernel(
        model, trace.ids, [*swaps.values(), *random_head_swaps(trace, draws, seed)], token, progress
    )
    donor_log_probs = at_least_float32(model.run(donor.ids)[token]).double().log_softmax(-1)
    values = _kl_values(kls, kl_divergence(clean_log_probs, donor_log_probs)) | profile_values(
        trace, keep_massive, seed
    )
    if control is not None:
        control_values = profile_values(control, keep_massive, seed)
        values |= {f"{name}_untrained": control_values[name] for name in ("profile_rsa", "profile_rsa_partial")}
    coords = {"swap": list(SWAPS), "layer": range(trace.view.layers)}
    donor_text = Message("the same tokens in another order") if other is None else donor.text or "".join(donor.tokens)
    settings = {"other": donor_text, "draws": draws, "token": token, "seed": seed}
    return RELATION_SWAP.label(values, coords, provenance(trace, keep_massive, **settings))


def check_unembedding(model: Model) -> None:
    """Raise for a model that predicts no tokens."""
    if model.view.unembed is None and model.view.facts.get("side") == "source":
        raise RheoscopeError(
            Message("the encoder of {model} predicts no tokens; its decoder does", model=model.view.facts.get("model")),
            Advice("rs.target_model(model, source)", "--target TEXT"),
        )
    if model.view.unembed is None:
        raise RheoscopeError(
            Message("{model} has no unembedding, expected a language model", model=model.view.facts.get("model")),
            Advice('rs.load("gpt2")', "--model gpt2"),
        )


def reordered_ids(ids: Int[Tensor, " n"], seed: int) -> Int[Tensor, " n"]:
    """The same tokens in another random order. The first (a special token in many models) and the last stay.

    >>> reordered_ids(torch.tensor([5, 6, 7, 8]), seed=0)[[0, -1]].tolist()
    [5, 8]
    """
    orders = random_permutations(max(len(ids) - 2, 0), 64, seed)
    candidates = (torch.cat([ids[:1], ids[1:-1][order], ids[-1:]]) for order in orders)
    reordering = next((candidate for candidate in candidates if len(ids) > 2 and not torch.equal(candidate, ids)), None)
    if reordering is None:
        raise RheoscopeError(
            Message("this text of {n} tokens has no other order; use a longer text, or pass another text", n=len(ids)),
            use(other="Once upon a time"),
        )
    return reordering


# The edits that swap weights, values or heads


def _weight_swaps(donor: Trace) -> LayerEdits:
    blocks = enumerate(donor.view.layer_heads)
    return {layer: use_weights(heads.all_weights(donor.layer_input(layer))) for layer, heads in blocks}


def _value_swaps(donor: Trace) -> LayerEdits:
    blocks = enumerate(donor.view.layer_heads)
    return {layer: use_values(heads.qkv(donor.layer_input(layer))[2]) for layer, heads in blocks}


def random_head_swaps(trace: Trace, draws: int, seed: int) -> Iterator[LayerEdits]:
    """Edits in which every head uses the weights of another random head of its layer."""
    generator = Generator().manual_seed(seed)
    for _ in range(draws if trace.view.heads > 1 else 0):
        yield {
            layer: _use_head_order(random_derangement(heads.n_heads, generator))
            for layer, heads in enumerate(trace.view.layer_heads)
        }


def random_derangement(n: int, generator: Generator) -> list[int]:
    """A random permutation of 0, …, n − 1 without fixed points.

    >>> any(i == j for i, j in enumerate(random_derangement(5, Generator().manual_seed(0))))
    False
    """
    order = torch.randperm(n, generator=generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1)).tolist()


def use_weights(A: Float[Tensor, "*b h n n"]) -> LayerEdit:
    """An edit in which heads mix their own values with these weights."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return A.to(out) @ mechanism.value(repeat_kv_heads(v, q.shape[1])).to(out)

    return edit


def use_values(donor_values: Float[Tensor, "b g n e"]) -> LayerEdit:
    """An edit in which heads mix these values with their own weights."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.attend(q, k, donor_values.to(v))

    return edit


def _use_head_order(order: list[int]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.weights(q, k)[:, order].to(out) @ mechanism.value(repeat_kv_heads(v, q.shape[1])).to(out)

    return edit


# The effect on the prediction


def kernel(
    model: Model,
    ids: Int[Tensor, " n"],
    swaps: Sequence[LayerEdits],
    token: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, "s columns"]]:
    """The unchanged log probabilities, and the KL of every swap in each layer alone and in all layers (last column)."""
    batch_ids, block_outputs = ids[None], model.block_outputs(ids[None])

    def predict(edit: LayerEdits, cached_prefix: Sequence[Any] = ()) -> Float[Tensor, " vocabulary"]:
        return (
            at_least_float32(model.run_batch(batch_ids, edit=edit, block_outputs=cached_prefix)[0, token])
            .double()
            .log_softmax(-1)
        )

    clean_log_probs, rows = predict({}), []
    for done, swap in enumerate(swaps, 1):
        layer_log_probs = [predict({layer: swap[layer]}, block_outputs[:layer]) for layer in sorted(swap)]
        rows.append(
            torch.stack([kl_divergence(clean_log_probs, log_probs) for log_probs in (*layer_log_probs, predict(swap))])
        )
        if progress is not None:
            progress(done, len(swaps))
    return clean_log_probs, torch.stack(rows)


def kl_divergence(p: Float[Tensor, " vocabulary"], q: Float[Tensor, " vocabulary"]) -> Float[Tensor, ""]:
    """KL(p ‖ q) from log probabilities, clamped at 0 against rounding."""
    return (p.exp() * (p - q)).sum().clamp(min=0)


def _kl_values(kls: Float[Tensor, "s columns"], donor_kl: Float[Tensor, ""]) -> dict[str, Tensor]:
    swap_kls, null_kls = kls[: len(SWAPS)], kls[len(SWAPS) :]
    values = {"kl": swap_kls[:, :-1], "kl_all_layers": swap_kls[:, -1], "kl_other_text": donor_kl}
    if len(null_kls):
        values |= {"kl_null": null_kls[:, :-1].mean(0), "kl_all_layers_null": null_kls[:, -1].mean()}
    return values | ({"kl_null_sd": null_kls[:, :-1].std(0)} if len(null_kls) > 1 else {})


# Attention profiles and points


def profile_values(trace: Trace, keep_massive: bool, seed: int) -> dict[str, Tensor]:
    """The profile correlations of every layer."""
    is_included = trace.valid_mask(keep_massive, min_tokens=4)
    blocks = enumerate(trace.view.layer_heads)
    rows = [layer_profile_values(heads, trace.layer_input(layer), is_included, seed) for layer, heads in blocks]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def layer_profile_values(
    heads: Heads, x: Float[Tensor, "n d"], is_included: Bool[Tensor, " n"], seed: int
) -> dict[str, Float[Tensor, ""]]:
    """The correlation of profile distances and point distances in one layer, with its null."""
    profile_inner = profile_products(heads.all_weights(x))[is_included][:, is_included].cpu()
    points = at_least_float32(x)[is_included].double()
    points = points - points.mean(0)
    directions = points / points.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    positions = is_included.nonzero()[:, 0].double().cpu()
    covariates = upper_triangle(torch.stack([(positions[:, None] - positions).abs(), positions[:, None] + positions]))
    return profile_correlations(
        distances(profile_inner), distances(centred_inner_products(directions)).cpu(), covariates, seed
    )


def profile_products(A: Float[Tensor, "h n n"]) -> Float[Tensor, "n n"]:
    """Inner products of the profiles. A profile is a token's row and column of A in every head."""
    A = A.double()
    return (A @ A.mT + A.mT @ A).sum(0)


def profile_correlations(
    profile_distances: Float[Tensor, "n n"],
    point_distances: Float[Tensor, "n n"],
    covariates: Float[Tensor, "c pairs"],
    seed: int,
) -> dict[str, Float[Tensor, ""]]:
    """The Spearman correlation of two distance matrices, plain and given covariates, with permuted tokens as the null."""
    n = len(point_distances)
    orders = torch.cat([torch.arange(n)[None], random_permutations(n, N_PERMUTATIONS, seed)])
    ranks = unit_ranks(upper_triangle(profile_distances))
    rank_table = torch.zeros(n, n, dtype=ranks.dtype)
    i, j = torch.triu_indices(n, n, 1)
    rank_table[i, j] = rank_table[j, i] = unit_ranks(upper_triangle(point_distances))
    permuted_ranks = rank_table[orders[:, i], orders[:, j]]
    basis = torch.linalg.qr(unit_ranks(covariates).mT).Q
    residual_ranks = ranks - basis @ (basis.mT @ ranks)
    size = (permuted_ranks.square().sum(-1) - (permuted_ranks @ basis).square().sum(-1)).clamp(
        min=0
    ).sqrt() * residual_ranks.norm()
    correlations = {
        "profile_rsa": permuted_ranks @ ranks,
        "profile_rsa_partial": safe_divide(permuted_ranks @ residual_ranks, size),
    }
    return {
        f"{name}{suffix}": value
        for name, x in correlations.items()
        for suffix, value in {"": x[0], "_null": x[1:].mean(), "_null_sd": x[1:].std()}.items()
    }


def _rsa_fields(name: str, definition: str) -> dict[str, Field]:
    return {
        name: Field(("layer",), definition, null=f"{name}_null", null_sd=f"{name}_null_sd"),
        f"{name}_null": Field(("layer",), Message("mean of {field} with the tokens permuted", field=name)),
        f"{name}_null_sd": Field(
            ("layer",), Message("standard deviation of {field} with the tokens permuted", field=name)
        ),
        f"{name}_untrained": Field(("layer",), Message("{field} in the untrained control", field=name)),
    }


RELATION_SWAP = Analysis(
    name="relation_swap",
    question="What changes the prediction more: the attention weights or the values of another text?",
    ask=relation_swap,
    needs="model",
    expensive=True,
    fields={
        "kl": Field(
            ("swap", "layer"),
            "KL(unchanged ‖ swapped) of the prediction if this layer uses the other text's weights or values",
            "nats",
            null="kl_null",
            null_sd="kl_null_sd",
        ),
        "kl_null": Field(
            ("layer",), "mean KL if every head of the layer uses the weights of another random head", "nats"
        ),
        "kl_null_sd": Field(("layer",), "standard deviation of the KL over the null draws", "nats"),
        "kl_all_layers": Field(
            ("swap",),
            "KL(unchanged ‖ swapped) of the prediction if all layers are swapped",
            "nats",
            null="kl_all_layers_null",
        ),
        "kl_all_layers_null": Field(
            (), "mean KL if every head of every layer uses the weights of another random head", "nats"
        ),
        "kl_other_text": Field((), "KL(this text ‖ other text) of the unchanged predictions", "nats"),
    }
    | _rsa_fields(
        "profile_rsa",
        Message(
            "Spearman correlation of the distances between attention profiles (row and column of A in all heads) and between points"
        ),
    )
    | _rsa_fields(
        "profile_rsa_partial", Message("profile_rsa given the distance and the mean position of the two tokens")
    ),
)
