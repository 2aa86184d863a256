"""Which heads speak to which? What a head writes, as later heads read it: Q-, K- and V-composition of every two heads."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.head import Heads
from rheoscope.space.share import exact
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

if TYPE_CHECKING:
    import xarray

KINDS = ("q", "k", "v")
DEFINITIONS = {
    "q": "‖F₁M₂‖/(‖F₁‖‖M₂‖) − 1/√d: does the later head ask with what the earlier one wrote? 0 at random",
    "k": "‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖) − 1/√d: does the later head look for what the earlier one wrote? 0 at random",
    "v": "‖F₁F₂‖/(‖F₁‖‖F₂‖) − 1/√d: does the later head carry on what the earlier one wrote? 0 at random",
    "top_score": "the largest compositions of each kind, falling",
    "top_from": "their earlier head, as layer · heads + head",
    "top_to": "their later head, as layer · heads + head",
}


@torch.no_grad()
def composition(view: View, top: int = 10, progress: Callable[[int, int], None] | None = None) -> "xarray.Dataset":
    """How strongly every head writes into what every later head reads, from the weights alone.

    **Answers** "which heads work together?" An induction head, for one, looks for (K) what a previous-token head wrote.

    **Formula** q: ‖F₁M₂‖/(‖F₁‖‖M₂‖), k: ‖F₁M₂ᵀ‖/(‖F₁‖‖M₂‖), v: ‖F₁F₂‖/(‖F₁‖‖F₂‖), Frobenius norms, the gain of the
    later layer folded into M₂ and F₂ (M₂ at offset 0), less 1/√d, the root mean square for a random turn between them.

    **Gives** (head_from, head_to): `q`, `k`, `v`, heads named `"L0.H1"`, NaN where the first is not in an earlier layer;
    (kind, place): `top_score`, `top_from`, `top_to`, the strongest pairs.

    **Laws** equal to the dense products; in [−1/√d, 1 − 1/√d]; unchanged by every move that leaves the logits unchanged and
    by a scale of any operator.

    **Source** transformer-circuits.pub/2021/framework, whose scores have the random level taken away too.

    **Siblings** `path_weights` composes the weights of heads on a text.

    >>> import rheoscope as rs
    >>> found = rs.composition(rs.load().view)
    >>> found.q.dims, bool(found.q.sel(head_from="L1.H0", head_to="L1.H0").isnull())
    (('head_from', 'head_to'), True)
    """
    names = [f"L{layer}.H{head}" for layer, heads in enumerate(view.blocks) for head in range(heads.count)]
    tables = torch.full((3, len(names), len(names)), float("nan"), dtype=torch.float64)
    counts = torch.tensor([0, *(heads.count for heads in view.blocks)]).cumsum(0).tolist()
    written: list[Tensor] = []
    for later, heads in enumerate(view.blocks):
        to = slice(counts[later], counts[later + 1])
        reads = read_by(heads)
        for earlier, rows in enumerate(written):
            at = slice(counts[earlier], counts[earlier + 1])
            tables[:, at, to] = torch.stack([pairs(rows, side) for side in reads]).cpu() - view.width**-0.5
        written.append(written_by(heads))
        if progress is not None:
            progress(later + 1, view.layers)
    if not 1 <= top <= int((~tables[0].isnan()).sum()):
        raise RheoscopeError(
            f"top lies between 1 and the number of pairs of heads in different layers "
            f"({int((~tables[0].isnan()).sum())}), got {top}; type top=1, or a model with more layers"
        )
    values: dict[str, tuple[tuple[str, ...], Tensor]] = {
        name: (("head_from", "head_to"), table) for name, table in zip(KINDS, tables, strict=True)
    }
    values |= {name: (("kind", "place"), x) for name, x in strongest(tables, top).items()}
    coords = {"head_from": names, "head_to": names, "kind": list(KINDS)}
    return dataset(values, DEFINITIONS, coords, _told(view))


def _told(view: View) -> dict[str, Any]:
    told = {"analysis": "composition", "space": "weights, gains folded", "baseline": view.width**-0.5}
    return told | {name: str(value) for name, value in view.facts.items()}


def written_by(heads: Heads) -> Float[Tensor, "h e d"]:
    """F of every head up to a turn of what it reads, of norm 1: T W_O, T the triangle of what it takes."""
    F = heads.F()
    return _unit(_triangle(exact(F.left)) @ exact(F.right))


def read_by(heads: Heads) -> list[Float[Tensor, "h d r"]]:
    """M, Mᵀ and F of every head up to a turn of where they go, of norm 1."""
    M, F = heads.M(), heads.F()
    asking, answering = exact(M.left), exact(M.right).mT
    carried = exact(F.left) @ _triangle(exact(F.right).mT).mT
    return [_unit(x) for x in (asking @ _triangle(answering).mT, answering @ _triangle(asking).mT, carried)]


def pairs(written: Float[Tensor, "a e d"], read: Float[Tensor, "b d r"]) -> Float[Tensor, "a b"]:
    """‖written_a read_b‖ of every two heads, as one product."""
    rows, columns = written.flatten(0, 1), read.transpose(0, 1).flatten(1)
    table = (rows @ columns).unflatten(0, written.shape[:2]).unflatten(-1, (len(read), -1))
    return table.square().sum((1, 3)).double().sqrt()


def _triangle(A: Float[Tensor, "h d r"]) -> Float[Tensor, "h k r"]:
    return torch.linalg.qr(A, mode="r")[1]


def _unit(A: Float[Tensor, "h m n"]) -> Float[Tensor, "h m n"]:
    """Of norm 1; 0 stays 0."""
    size = A.norm(dim=(-2, -1), keepdim=True)
    return A / torch.where(size > 0, size, 1)


def strongest(tables: Float[Tensor, "3 a b"], top: int) -> dict[str, Tensor]:
    """The largest entries of every table, and where they stand."""
    score, at = tables.nan_to_num(-torch.inf).flatten(1).topk(top)
    return {"top_score": score, "top_from": at // tables.shape[-1], "top_to": at % tables.shape[-1]}


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
    steps = [layer for layer, _ in path]
    if not steps or steps != sorted(set(steps)):
        raise RheoscopeError(
            f"a path goes through heads of later and later layers, got {list(path)}; type [(0, 1), (2, 3)]"
        )
    found = trace.weights(*path[0])
    for layer, head in path[1:]:
        found = trace.weights(layer, head) @ found
    return found
