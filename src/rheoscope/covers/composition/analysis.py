"""Q-, K- and V-composition: how strongly each head writes into what later heads read."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.decompositions import triangular_factor
from rheoscope.space.head import Heads
from rheoscope.space.report_run import ReportRun
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.settings import Top
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

KINDS = ("q", "k", "v")


@torch.no_grad()
def composition(view: View, top: Top = 10, progress: Callable[[int, int], None] | None = None) -> "xarray.Dataset":
    """How strongly every head writes into what every later head reads, from the weights alone.

    **Question** Which heads work together? For example, the keys of an induction head read what a previous-token head
    wrote (K-composition).

    **Formula** q = ‖F₁M₂‖/(‖F₁‖‖M₂‖), k = ‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖) and v = ‖F₁F₂‖/(‖F₁‖‖F₂‖), in Frobenius norms. The gain of
    the later layer is folded into M₂ and F₂, and M₂ is taken at offset 0. From each, 1/√d is subtracted. That is the root
    mean square for operators with a random rotation between them.

    **Returns** (head_from, head_to): `q`, `k` and `v`, with heads named `"L0.H1"`. They are NaN unless the first head is
    in an earlier layer. (kind, place): `top_score`, `top_from` and `top_to` of the `top` strongest pairs.

    **Laws** The values equal those of the dense products and lie in [−1/√d, 1 − 1/√d]. They do not change under
    reparametrisations that preserve the logits, or under a scale of an operator.

    **Source** transformer-circuits.pub/2021/framework, which also subtracts the random level.

    **See also** `path_weights` composes the attention weights of heads on a text.

    >>> import rheoscope as rs
    >>> result = rs.composition(rs.load().view)
    >>> result.q.dims, bool(result.q.sel(head_from="L1.H0", head_to="L1.H0").isnull())
    (('head_from', 'head_to'), True)
    """
    if view.layers < 2:
        raise RheoscopeError(
            Message("composition needs a model with at least 2 layers, got 1"),
            Advice('rs.composition(rs.load("gpt2").view)', "rheoscope analyse composition --model gpt2"),
        )
    if top < 1:
        raise RheoscopeError(Message("top must be at least 1, got {value}", value=top), use(top=10))
    head_names = [f"L{layer}.H{head}" for layer, heads in enumerate(view.layer_heads) for head in range(heads.n_heads)]
    tables = kernel(view.layer_heads, view.width, progress)
    coords = {"head_from": head_names, "head_to": head_names, "kind": list(KINDS)}
    attributes = {"space": "weights, gains folded", "top": top, "baseline": view.width**-0.5}
    facts = {name: str(value) for name, value in view.facts.items()}
    values = dict(zip(KINDS, tables, strict=True)) | strongest_pairs(tables, top)
    return COMPOSITION.label(values, coords, attributes | facts)


def kernel(
    blocks: Sequence[Heads], width: int, progress: Callable[[int, int], None] | None = None
) -> Float[Tensor, "kind all_heads all_heads"]:
    """q, k and v of every two heads. Rows are the earlier heads; NaN unless a row's head is in an earlier layer."""
    head_offsets = [0, *accumulate(heads.n_heads for heads in blocks)]
    shape, device = (len(KINDS), head_offsets[-1], head_offsets[-1]), blocks[0].W_Q.device
    tables = torch.full(shape, float("nan"), dtype=torch.float64, device=device)
    earlier_writes: list[Tensor] = []
    for later_layer, heads in enumerate(blocks):
        later_heads, read_matrices = (
            slice(head_offsets[later_layer], head_offsets[later_layer + 1]),
            read_factors(heads),
        )
        for earlier_layer, writes in enumerate(earlier_writes):
            earlier_heads = slice(head_offsets[earlier_layer], head_offsets[earlier_layer + 1])
            tables[:, earlier_heads, later_heads] = (
                torch.stack([product_norms(writes, read_matrix) for read_matrix in read_matrices]) - width**-0.5
            )
        earlier_writes.append(write_factors(heads))
        if progress is not None:
            progress(later_layer + 1, len(blocks))
    return tables


def write_factors(heads: Heads) -> Float[Tensor, "h e d"]:
    """F of every head up to an orthogonal map on the left, scaled to norm 1: T W_O with a triangular factor T."""
    F = heads.F()
    return _normalise(triangular_factor(at_least_float32(F.left)) @ at_least_float32(F.right))


def read_factors(heads: Heads) -> list[Float[Tensor, "h d r"]]:
    """M, Mᵀ and F of every head up to an orthogonal map on the right, scaled to norm 1."""
    M, F = heads.M(), heads.F()
    query_factor, key_factor = at_least_float32(M.left), at_least_float32(M.right).mT
    value_factor = at_least_float32(F.left) @ triangular_factor(at_least_float32(F.right).mT).mT
    return [
        _normalise(x)
        for x in (
            query_factor @ triangular_factor(key_factor).mT,
            key_factor @ triangular_factor(query_factor).mT,
            value_factor,
        )
    ]


def product_norms(writes: Float[Tensor, "a e d"], reads: Float[Tensor, "b d r"]) -> Float[Tensor, "a b"]:
    """‖writes_a reads_b‖ of every two heads, from a single matrix product."""
    rows, columns = writes.flatten(0, 1), reads.transpose(0, 1).flatten(1)
    table = (rows @ columns).unflatten(0, writes.shape[:2]).unflatten(-1, (len(reads), -1))
    return table.square().sum((1, 3)).double().sqrt()


def _normalise(A: Float[Tensor, "h m n"]) -> Float[Tensor, "h m n"]:
    """Matrices scaled to norm 1. Zero stays zero."""
    norm = A.norm(dim=(-2, -1), keepdim=True)
    return A / torch.where(norm > 0, norm, 1)


def strongest_pairs(tables: Float[Tensor, "3 a b"], top: int) -> dict[str, Tensor]:
    """The largest entries of every table, and the pairs of heads they belong to."""
    n_pairs = int((~tables[0].isnan()).sum())
    scores, flat_index = tables.nan_to_num(-torch.inf).flatten(1).topk(min(top, n_pairs))
    return {"top_score": scores, "top_from": flat_index // tables.shape[-1], "top_to": flat_index % tables.shape[-1]}


@torch.no_grad()
def path_weights(trace: Trace, path: Sequence[tuple[int, int]]) -> Float[Tensor, "n n"]:
    """Attention along a path of heads: how much of token j reaches token i through all heads of the path.

    **Formula** A = A_last ⋯ A_2 A_1. Attention weights are Markov kernels (rows sum to 1), which compose by products.

    **Settings** `path` is a list of (layer, head) with increasing layers.

    **Returns** An (n, n) matrix. A row is the token where the path ends, a column the token where it starts.

    **Laws** The product is associative, so a path may be cut anywhere. Rows sum to 1 if those of every head do.

    **See also** `composition` compares the operators of the heads. The attention flow of Abnar and Zuidema is different:
    it is a maximum flow in the graph of all heads.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are")
    >>> rs.path_weights(trace, [(0, 1), (2, 3)]).sum(-1).round(decimals=4).unique().tolist()
    [1.0]
    """
    layers = [layer for layer, _ in path]
    if not layers or layers != sorted(set(layers)):
        raise RheoscopeError(
            Message("the layers of a path must increase, got {path}", path=str(list(path))),
            Advice("rs.path_weights(trace, [(0, 1), (2, 3)])"),
        )
    weights = trace.weights(*path[0])
    for layer, head in path[1:]:
        weights = trace.weights(layer, head) @ weights
    return weights


COMPOSITION = Analysis(
    name="composition",
    question="Which heads work together?",
    ask=composition,
    needs="view",
    report_runs=(ReportRun("covers", 6, for_files=True),),
    expensive=True,
    fields={
        "q": Field(
            ("head_from", "head_to"),
            "‖F₁M₂‖/(‖F₁‖‖M₂‖) − 1/√d: how strongly the queries of the later head read what the earlier head writes; 0 at random",
        ),
        "k": Field(
            ("head_from", "head_to"),
            "‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖) − 1/√d: how strongly the keys of the later head read what the earlier head writes; 0 at random",
        ),
        "v": Field(
            ("head_from", "head_to"),
            "‖F₁F₂‖/(‖F₁‖‖F₂‖) − 1/√d: how strongly the content of the later head reads what the earlier head writes; 0 at random",
        ),
        "top_score": Field(("kind", "place"), "the largest compositions of each kind, in descending order"),
        "top_from": Field(("kind", "place"), "earlier head of the pair, as layer · heads + head"),
        "top_to": Field(("kind", "place"), "later head of the pair, as layer · heads + head"),
    },
)
