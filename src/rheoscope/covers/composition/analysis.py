"""Which heads speak to which? What a head writes, as later heads read it: Q-, K- and V-composition of every two heads."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

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

    **Answers** "which heads work together?" An induction head, for one, looks for (K) what a previous-token head wrote.

    **Formula** q: ‖F₁M₂‖/(‖F₁‖‖M₂‖), k: ‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖), v: ‖F₁F₂‖/(‖F₁‖‖F₂‖), Frobenius norms, the gain of the
    later layer folded into M₂ and F₂ (M₂ at offset 0), less 1/√d, the root mean square for a random turn between them.

    **Gives** (head_from, head_to): `q`, `k`, `v`, heads named `"L0.H1"`, NaN where the first is not in an earlier layer;
    (kind, place): `top_score`, `top_from`, `top_to`, the `top` strongest pairs, or all where there are fewer.

    **Laws** equal to the dense products; in [−1/√d, 1 − 1/√d]; unchanged by every move that leaves the logits unchanged and
    by a scale of any operator.

    **Source** transformer-circuits.pub/2021/framework, whose scores have the random level taken away too.

    **Siblings** `path_weights` composes the weights of heads on a text.

    >>> import rheoscope as rs
    >>> found = rs.composition(rs.load().view)
    >>> found.q.dims, bool(found.q.sel(head_from="L1.H0", head_to="L1.H0").isnull())
    (('head_from', 'head_to'), True)
    """
    if view.layers < 2:
        raise RheoscopeError(
            "composition is between heads of different layers, this model has one; type a model with more layers"
        )
    if top < 1:
        raise RheoscopeError(f"the strongest pairs are 1 or more, got top={top}; type top=10")
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
    """q, k and v of every two heads, row = the earlier one; NaN where the first is not in an earlier layer."""
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
    """F of every head up to a turn of what it reads, of norm 1: T W_O, T the triangle of what it takes."""
    F = heads.F()
    return _normalise(triangular_factor(at_least_float32(F.left)) @ at_least_float32(F.right))


def read_factors(heads: Heads) -> list[Float[Tensor, "h d r"]]:
    """M, Mᵀ and F of every head up to a turn of where they go, of norm 1."""
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
    """‖written_a read_b‖ of every two heads, as one product."""
    rows, columns = writes.flatten(0, 1), reads.transpose(0, 1).flatten(1)
    table = (rows @ columns).unflatten(0, writes.shape[:2]).unflatten(-1, (len(reads), -1))
    return table.square().sum((1, 3)).double().sqrt()


def _normalise(A: Float[Tensor, "h m n"]) -> Float[Tensor, "h m n"]:
    """Of norm 1; 0 stays 0."""
    norm = A.norm(dim=(-2, -1), keepdim=True)
    return A / torch.where(norm > 0, norm, 1)


def strongest_pairs(tables: Float[Tensor, "3 a b"], top: int) -> dict[str, Tensor]:
    """The largest entries of every table, and where they stand."""
    n_pairs = int((~tables[0].isnan()).sum())
    scores, flat_index = tables.nan_to_num(-torch.inf).flatten(1).topk(min(top, n_pairs))
    return {"top_score": scores, "top_from": flat_index // tables.shape[-1], "top_to": flat_index % tables.shape[-1]}


@torch.no_grad()
def path_weights(trace: Trace, path: Sequence[tuple[int, int]]) -> Float[Tensor, "n n"]:
    """Attention along a path of heads: how much of token j arrives at token i through all of them, earlier layers first.

    **Formula** A = A_last ⋯ A_2 A_1: weights are a Markov kernel (rows sum to 1), kernels compose by products.

    **Shapes** (n, n), row = where the path ends, column = where it starts.

    **Laws** associative: a path may be cut anywhere; rows sum to 1 where those of every head do.

    **Relation** this is who looks at whom, not what is carried: F stands beside it (`composition`). It is not the attention
    flow of Abnar and Zuidema, which is a maximum flow in the graph of all heads.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are")
    >>> rs.path_weights(trace, [(0, 1), (2, 3)]).sum(-1).round(decimals=4).unique().tolist()
    [1.0]
    """
    layers = [layer for layer, _ in path]
    if not layers or layers != sorted(set(layers)):
        raise RheoscopeError(
            f"a path goes through heads of later and later layers, got {list(path)}; type [(0, 1), (2, 3)]"
        )
    weights = trace.weights(*path[0])
    for layer, head in path[1:]:
        weights = trace.weights(layer, head) @ weights
    return weights


COMPOSITION = Analysis(
    name="composition",
    question="Which heads work together: what does each head write that later heads read?",
    ask=composition,
    needs="view",
    report_runs=(ReportRun("covers", 6, for_files=True),),
    expensive=True,
    fields={
        "q": Field(
            ("head_from", "head_to"),
            "‖F₁M₂‖/(‖F₁‖‖M₂‖) − 1/√d: does the later head ask with what the earlier one wrote? 0 at random",
        ),
        "k": Field(
            ("head_from", "head_to"),
            "‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖) − 1/√d: does the later head look for what the earlier one wrote? 0 at random",
        ),
        "v": Field(
            ("head_from", "head_to"),
            "‖F₁F₂‖/(‖F₁‖‖F₂‖) − 1/√d: does the later head carry on what the earlier one wrote? 0 at random",
        ),
        "top_score": Field(("kind", "place"), "the largest compositions of each kind, falling"),
        "top_from": Field(("kind", "place"), "their earlier head, as layer · heads + head"),
        "top_to": Field(("kind", "place"), "their later head, as layer · heads + head"),
    },
)
