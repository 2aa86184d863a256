"""Relation before object? A text read by another text's attention weights, or with another text's values."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.definition import for_every_head
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.layer_inputs import provenance
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit, Model, Text, check_made_by
from rheoscope.space.pair_distances import distances, inner_products, upper
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import permutations
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

SWAPS = ("weights", "values")
ORDERS = 200
"""Orders of the tokens that the null of the profiles is made of."""
LayerEdits = dict[int, LayerEdit]


@torch.no_grad()
def relation_swap(
    model: Model,
    trace: Trace,
    other: Text | None = None,
    draws: int = 4,
    token: int = -1,
    seed: int = 0,
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
    both sides follow), each with its null and, with a control, its `…_untrained`; (swap): `kl_everywhere`; numbers:
    `kl_everywhere_null`, `kl_other`.

    **Laws** the same text changes nothing: KL 0; unchanged by every move that leaves the logits unchanged.

    **Siblings** `surgery` changes M and F themselves, `attention_patching` moves the weights along their gradient.

    >>> import rheoscope as rs
    >>> model, text = rs.load(), "The keys to the cabinet are on the table"
    >>> found = rs.relation_swap(model, model.trace(text), other=text, draws=0)
    >>> bool((found.kl < 1e-9).all())
    True
    """
    check_made_by(model, trace)
    if model.view.unembed is None:
        raise RheoscopeError(f"{model.view.facts.get('model')} predicts nothing; type a language model")
    lender = model.trace(reordered(trace.ids, seed) if other is None else other)
    if len(lender) != len(trace):
        raise RheoscopeError(
            f"the texts have {len(trace)} and {len(lender)} tokens, and weights fit equal ones; type other=… of {len(trace)} tokens"
        )
    swaps = {"weights": _weights(lender), "values": _values(lender)}
    own, kls = kernel(model, trace.ids, [*swaps.values(), *shuffled(trace, draws, seed)], token, progress)
    there = exact(model.run(lender.ids)[token]).double().log_softmax(-1)
    values = _told(kls, divergence(own, there)) | profiles(trace, keep_massive, seed)
    if control is not None:
        beside = profiles(control, keep_massive, seed)
        values |= {f"{name}_untrained": beside[name] for name in ("profile_rsa", "profile_rsa_partial")}
    coords = {"swap": list(SWAPS), "layer": range(trace.view.layers)}
    said = "the same tokens in another order" if other is None else lender.text or "".join(lender.tokens)
    settings = {"other": said, "draws": draws, "token": token, "seed": seed}
    return RELATION_SWAP.answer(values, coords, provenance(trace, keep_massive, **settings))


def reordered(ids: Int[Tensor, " n"], seed: int) -> Int[Tensor, " n"]:
    """The same tokens in another order; the first (a special one in many models) and the last stay.

    >>> reordered(torch.tensor([5, 6, 7, 8]), seed=0)[[0, -1]].tolist()
    [5, 8]
    """
    orders = permutations(max(len(ids) - 2, 0), 64, seed)
    others = (torch.cat([ids[:1], ids[1:-1][order], ids[-1:]]) for order in orders)
    found = next((one for one in others if len(ids) > 2 and not torch.equal(one, ids)), None)
    if found is None:
        raise RheoscopeError(f"this text of {len(ids)} tokens has no other order; type other='…', or a longer text")
    return found


# What stands in the place of what


def _weights(lender: Trace) -> LayerEdits:
    blocks = enumerate(lender.view.blocks)
    return {layer: _by_weights(heads.every_weights(lender.read_by(layer))) for layer, heads in blocks}


def _values(lender: Trace) -> LayerEdits:
    blocks = enumerate(lender.view.blocks)
    return {layer: _with_values(heads.read(lender.read_by(layer))[2]) for layer, heads in blocks}


def shuffled(trace: Trace, draws: int, seed: int) -> Iterator[LayerEdits]:
    """Every head of a layer attends by the weights of another one of it, drawn at random."""
    generator = Generator().manual_seed(seed)
    for _ in range(draws if trace.view.heads > 1 else 0):
        yield {layer: _by_heads(ring(heads.count, generator)) for layer, heads in enumerate(trace.view.blocks)}


def ring(n: int, generator: Generator) -> list[int]:
    """For every one of n another one, drawn at random.

    >>> any(at == one for at, one in enumerate(ring(5, Generator().manual_seed(0))))
    False
    """
    order = torch.randperm(n, generator=generator)
    return torch.empty_like(order).scatter_(0, order, order.roll(1)).tolist()


def _by_weights(A: Float[Tensor, "h n n"]) -> LayerEdit:
    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return A.to(out) @ mechanism.value(for_every_head(v, q.shape[1])).to(out)

    return change


def _with_values(other: Float[Tensor, "1 g n e"]) -> LayerEdit:
    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.attend(q, k, other.to(v))

    return change


def _by_heads(order: list[int]) -> LayerEdit:
    def change(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return mechanism.weights(q, k)[:, order].to(out) @ mechanism.value(for_every_head(v, q.shape[1])).to(out)

    return change


# What it does to the prediction


def kernel(
    model: Model,
    ids: Int[Tensor, " n"],
    swaps: Sequence[LayerEdits],
    token: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Float[Tensor, " vocabulary"], Float[Tensor, "s columns"]]:
    """The prediction as it is, and how far every swap moves it: in each layer alone, and in all of them at once (last)."""
    batch, passed = ids[None], model.passed(ids[None])

    def predicted(edit: LayerEdits, given: Sequence[Any] = ()) -> Float[Tensor, " vocabulary"]:
        return exact(model.run_batch(batch, edit=edit, given=given)[0, token]).double().log_softmax(-1)

    own, rows = predicted({}), []
    for done, swap in enumerate(swaps, 1):
        each = [predicted({layer: swap[layer]}, passed[:layer]) for layer in sorted(swap)]
        rows.append(torch.stack([divergence(own, law) for law in (*each, predicted(swap))]))
        if progress is not None:
            progress(done, len(swaps))
    return own, torch.stack(rows)


def divergence(p: Float[Tensor, " vocabulary"], q: Float[Tensor, " vocabulary"]) -> Float[Tensor, ""]:
    """KL(p ‖ q) of log probabilities; rounding never makes it negative."""
    return (p.exp() * (p - q)).sum().clamp(min=0)


def _told(kls: Float[Tensor, "s columns"], other: Float[Tensor, ""]) -> dict[str, Tensor]:
    own, drawn = kls[: len(SWAPS)], kls[len(SWAPS) :]
    values = {"kl": own[:, :-1], "kl_everywhere": own[:, -1], "kl_other": other}
    if len(drawn):
        values |= {"kl_null": drawn[:, :-1].mean(0), "kl_everywhere_null": drawn[:, -1].mean()}
    return values | ({"kl_null_sd": drawn[:, :-1].std(0)} if len(drawn) > 1 else {})


# Relations and places


def profiles(trace: Trace, keep_massive: bool, seed: int) -> dict[str, Tensor]:
    """How well relations predict places, layer by layer."""
    kept = trace.ordinary(keep_massive, least=4)
    blocks = enumerate(trace.view.blocks)
    rows = [of_layer(heads, trace.read_by(layer), kept, seed) for layer, heads in blocks]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def of_layer(
    heads: Heads, x: Float[Tensor, "n d"], kept: Bool[Tensor, " n"], seed: int
) -> dict[str, Float[Tensor, ""]]:
    """RSA of the profiles of the kept tokens with their points, beside permuted tokens."""
    inner = profile_products(heads.every_weights(x))[kept][:, kept].cpu()
    points = exact(x)[kept].double()
    points = points - points.mean(0)
    places = points / points.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    at = kept.nonzero()[:, 0].double().cpu()
    follow = upper(torch.stack([(at[:, None] - at).abs(), at[:, None] + at]))
    return compared(distances(inner), distances(inner_products(places)).cpu(), follow, seed)


def profile_products(A: Float[Tensor, "h n n"]) -> Float[Tensor, "n n"]:
    """Inner products of the profiles: a token's row and its column in every head."""
    A = A.double()
    return (A @ A.mT + A.mT @ A).sum(0)


def compared(
    relations: Float[Tensor, "n n"], places: Float[Tensor, "n n"], follow: Float[Tensor, "c pairs"], seed: int
) -> dict[str, Float[Tensor, ""]]:
    """Spearman correlation of two tables of distances, as it is and given what both may follow; tokens permuted beside it."""
    n = len(places)
    orders = torch.cat([torch.arange(n)[None], permutations(n, ORDERS, seed)])
    ranks = unit_ranks(upper(relations))
    table = torch.zeros(n, n, dtype=ranks.dtype)
    i, j = torch.triu_indices(n, n, 1)
    table[i, j] = table[j, i] = unit_ranks(upper(places))
    drawn = table[orders[:, i], orders[:, j]]
    basis = torch.linalg.qr(unit_ranks(follow).mT).Q
    left = ranks - basis @ (basis.mT @ ranks)
    size = (drawn.square().sum(-1) - (drawn @ basis).square().sum(-1)).clamp(min=0).sqrt() * left.norm()
    found = {"profile_rsa": drawn @ ranks, "profile_rsa_partial": share(drawn @ left, size)}
    return {
        f"{name}{end}": value
        for name, x in found.items()
        for end, value in {"": x[0], "_null": x[1:].mean(), "_null_sd": x[1:].std()}.items()
    }


def _rsa(name: str, what: str) -> dict[str, Field]:
    return {
        name: Field(("layer",), what, null=f"{name}_null", null_sd=f"{name}_null_sd"),
        f"{name}_null": Field(("layer",), f"mean of {name} with the places of the tokens permuted"),
        f"{name}_null_sd": Field(("layer",), "standard deviation of the same"),
        f"{name}_untrained": Field(("layer",), f"{name} in the untrained control"),
    }


RELATION_SWAP = Analysis(
    name="relation_swap",
    question="Is a text its relations or its objects: what if it ran with another's weights, or another's values?",
    ask=relation_swap,
    needs="model",
    dear=True,
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
        "kl_everywhere": Field(
            ("swap",), "the same as kl, swapped in all layers at once", "nats", null="kl_everywhere_null"
        ),
        "kl_everywhere_null": Field((), "the same as kl_null, in all layers at once", "nats"),
        "kl_other": Field((), "KL of the other text's own prediction from this one's", "nats"),
    }
    | _rsa(
        "profile_rsa",
        "Spearman correlation of the distances between tokens' relations (row and column of A in all heads) with those between their "
        "points as the layer reads them",
    )
    | _rsa("profile_rsa_partial", "the same given how far apart and how late in the text the two tokens stand"),
)
