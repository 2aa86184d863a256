"""Relation before object? A text read by another text's attention weights, or with another text's values."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import provenance
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
"""Orders of the tokens that the null of the profiles is made of."""
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
    """Is a text its relations or its objects? It runs with another text's attention weights, and with another text's values.

    **Answers** "what changes the prediction more: who looks at whom, or what is there to be seen?" and "do tokens that stand in the same
    relations lie at the same place?"

    **Formula** o_i = Σ_j A_ij v_j in every head. `weights`: A of the other text, v of this one as it runs; `values`: A of this one as it
    runs, v of the other; in one layer, and in all of them. KL(p ‖ p') of the prediction at `token`, p without any swap. The profile
    of token i in a layer is its row and its column of A in all heads; RSA is the Spearman correlation of the distances between profiles
    with those between directions of the points (around their mean) that the layer reads.

    **Shapes** `other` has as many tokens as the text. Without it: the same tokens in another order, the first and the last in their places.

    **Null** of a swap: every head attends by the weights of another head of its layer, drawn at random, which is the same as to
    carry the content of another; `draws` times (0 leaves it out). Of RSA: tokens permuted. **Control**
    `control=rs.load(…, untrained=True).trace(text)`: under a causal mask relations and places both follow the position of a token, in
    an untrained model too.

    **Gives** (swap, layer): `kl`; (layer): `kl_null`, `kl_null_sd`, `profile_rsa` and `profile_rsa_partial` (given |i − j| and i + j, which
    both sides follow), each with its null and, with a control, its `…_untrained`; (swap): `kl_all_layers`; numbers:
    `kl_all_layers_null`, `kl_other_text`.

    **Laws** the same text changes nothing: KL 0; unchanged by every move that leaves the logits unchanged.

    **Siblings** `surgery` changes M and F themselves, `attention_patching` moves the weights along their gradient.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "The keys to the cabinet are on the table"
    >>> found = rs.relation_swap(model, model.trace(text), other=text, draws=0)
    >>> bool((found.kl < 1e-9).all())
    True
    """
    check_same_weights(model, trace)
    if model.view.unembed is None:
        raise RheoscopeError(f"{model.view.facts.get('model')} predicts nothing; type a language model")
    donor = model.trace(reordered_ids(trace.ids, seed) if other is None else other)
    if len(donor) != len(trace):
        raise RheoscopeError(
            f"the texts have {len(trace)} and {len(donor)} tokens, and weights fit equal ones; type other=… of {len(trace)} tokens"
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
    donor_text = "the same tokens in another order" if other is None else donor.text or "".join(donor.tokens)
    settings = {"other": donor_text, "draws": draws, "token": token, "seed": seed}
    return RELATION_SWAP.label(values, coords, provenance(trace, keep_massive, **settings))


def reordered_ids(ids: Int[Tensor, " n"], seed: int) -> Int[Tensor, " n"]:
    """The same tokens in another order; the first (a special one in many models) and the last stay.

    >>> reordered_ids(torch.tensor([5, 6, 7, 8]), seed=0)[[0, -1]].tolist()
    [5, 8]
    """
    orders = random_permutations(max(len(ids) - 2, 0), 64, seed)
    candidates = (torch.cat([ids[:1], ids[1:-1][order], ids[-1:]]) for order in orders)
    reordering = next((candidate for candidate in candidates if len(ids) > 2 and not torch.equal(candidate, ids)), None)
    if reordering is None:
        raise RheoscopeError(f"this text of {len(ids)} tokens has no other order; type other='…', or a longer text")
    return reordering


# What stands in the place of what


def _weight_swaps(donor: Trace) -> LayerEdits:
    blocks = enumerate(donor.view.layer_heads)
    return {layer: _use_weights(heads.all_weights(donor.layer_input(layer))) for layer, heads in blocks}


def _value_swaps(donor: Trace) -> LayerEdits:
    blocks = enumerate(donor.view.layer_heads)
    return {layer: _use_values(heads.qkv(donor.layer_input(layer))[2]) for layer, heads in blocks}


def random_head_swaps(trace: Trace, draws: int, seed: int) -> Iterator[LayerEdits]:
    """Every head of a layer attends by the weights of another one of it, drawn at random."""
    generator = Generator().manual_seed(seed)
    for _ in range(draws if trace.view.heads > 1 else 0):
        yield {
            layer: _use_head_order(random_derangement(heads.n_heads, generator))
            for layer, heads in enumerate(trace.view.layer_heads)
        }


def random_derangement(n: int, generator: Generator) -> list[int]:
    """For every one of n another one, drawn at random.

    >>> any(at == one for at, one in enumerate(random_derangement(5, Generator().manual_seed(0))))
    False
    """
    order = torch.randperm(n, generator=generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1)).tolist()


def _use_weights(A: Float[Tensor, "h n n"]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return A.to(out) @ mechanism.value(repeat_kv_heads(v, q.shape[1])).to(out)

    return edit


def _use_values(donor_values: Float[Tensor, "1 g n e"]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.attend(q, k, donor_values.to(v))

    return edit


def _use_head_order(order: list[int]) -> LayerEdit:
    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.weights(q, k)[:, order].to(out) @ mechanism.value(repeat_kv_heads(v, q.shape[1])).to(out)

    return edit


# What it does to the prediction


def kernel(
    model: Model,
    ids: Int[Tensor, " n"],
    swaps: Sequence[LayerEdits],
    token: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, "s columns"]]:
    """The prediction as it is, and how far every swap moves it: in each layer alone, and in all of them at once (last)."""
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
    """KL(p ‖ q) of log probabilities; rounding never makes it negative."""
    return (p.exp() * (p - q)).sum().clamp(min=0)


def _kl_values(kls: Float[Tensor, "s columns"], donor_kl: Float[Tensor, ""]) -> dict[str, Tensor]:
    swap_kls, null_kls = kls[: len(SWAPS)], kls[len(SWAPS) :]
    values = {"kl": swap_kls[:, :-1], "kl_all_layers": swap_kls[:, -1], "kl_other_text": donor_kl}
    if len(null_kls):
        values |= {"kl_null": null_kls[:, :-1].mean(0), "kl_all_layers_null": null_kls[:, -1].mean()}
    return values | ({"kl_null_sd": null_kls[:, :-1].std(0)} if len(null_kls) > 1 else {})


# Relations and places


def profile_values(trace: Trace, keep_massive: bool, seed: int) -> dict[str, Tensor]:
    """How well relations predict places, layer by layer."""
    is_included = trace.valid_mask(keep_massive, min_tokens=4)
    blocks = enumerate(trace.view.layer_heads)
    rows = [layer_profile_values(heads, trace.layer_input(layer), is_included, seed) for layer, heads in blocks]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def layer_profile_values(
    heads: Heads, x: Float[Tensor, "n d"], is_included: Bool[Tensor, " n"], seed: int
) -> dict[str, Float[Tensor, ""]]:
    """RSA of the profiles of the kept tokens with their points, beside permuted tokens."""
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
    """Inner products of the profiles: a token's row and its column in every head."""
    A = A.double()
    return (A @ A.mT + A.mT @ A).sum(0)


def profile_correlations(
    profile_distances: Float[Tensor, "n n"],
    point_distances: Float[Tensor, "n n"],
    covariates: Float[Tensor, "c pairs"],
    seed: int,
) -> dict[str, Float[Tensor, ""]]:
    """Spearman correlation of two tables of distances, as it is and given what both may follow; tokens permuted beside it."""
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
        f"{name}_null": Field(("layer",), f"mean of {name} with the places of the tokens permuted"),
        f"{name}_null_sd": Field(("layer",), "standard deviation of the same"),
        f"{name}_untrained": Field(("layer",), f"{name} in the untrained control"),
    }


RELATION_SWAP = Analysis(
    name="relation_swap",
    question="Is a text its relations or its objects: what if it ran with another's weights, or another's values?",
    ask=relation_swap,
    needs="model",
    expensive=True,
    fields={
        "kl": Field(
            ("swap", "layer"),
            "KL of the prediction from the text's own where this layer has the other text's weights, or values",
            "nats",
            null="kl_null",
            null_sd="kl_null_sd",
        ),
        "kl_null": Field(
            ("layer",), "mean of the same where every head of the layer attends by another head's weights", "nats"
        ),
        "kl_null_sd": Field(("layer",), "standard deviation of the same over draws", "nats"),
        "kl_all_layers": Field(
            ("swap",), "the same as kl, swapped in all layers at once", "nats", null="kl_all_layers_null"
        ),
        "kl_all_layers_null": Field((), "the same as kl_null, in all layers at once", "nats"),
        "kl_other_text": Field((), "KL of the other text's own prediction from this one's", "nats"),
    }
    | _rsa_fields(
        "profile_rsa",
        "Spearman correlation of the distances between tokens' relations (row and column of A in all heads) with those between their "
        "points as the layer reads them",
    )
    | _rsa_fields("profile_rsa_partial", "the same given how far apart and how late in the text the two tokens stand"),
)
