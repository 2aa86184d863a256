"""Is attention a gradient flow? The energy of every head, how far it climbs it, and what stands between it and a gradient."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.attention.mask import Mask, NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import NoPosition
from rheoscope.flow.energy.landscape import Landscape, landscape
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import end_of
from rheoscope.space.float32_products import product
from rheoscope.space.head import Heads, Projected, through
from rheoscope.space.masked_means import There, counts, kept_rows, mean
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import exact, share
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.statistics.nulls import one_sided, q_values_of_rows

if TYPE_CHECKING:
    import xarray

LEVEL = 0.05
DIFFERENCES = ("mask", "norm", "position", "mlp")
Cloud = Float[Tensor, "*b n d"]
PerHead = Float[Tensor, "*b h"]


@torch.no_grad()
def energy(
    trace: Trace, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> "xarray.Dataset":
    """Does each head move tokens up its own energy, and what keeps the layers from being a gradient flow?

    **Answers** "is what this head adds the gradient of something, or could it be any direction?"

    **Formula** Λ(X̂) = (1/N) Σ_i log((1/n_i) Σ_{j permitted} e^{s_ij}); its query-side gradient is Σ_j α_ij x̂_j Mᵀ, softmax
    attention with Mᵀ for F. Only queries move; Δ_h is what the head takes from the tokens, without the bias of values.
    Every field's formula is in its `attrs["definition"]`.

    **Gives** (layer, head): `energy`, `energy_after`, `first_order`, `remainder`, `cosine` with its null, `alignment`,
    `q_value`, `gradient_like`, `symmetry`; (layer): `landscape`, `landscape_update`; (layer, difference): `ledger`. Massive
    tokens stay keys, and are left out of every mean; `attrs` has how many heads were tested and found.

    **Laws** the gradient is autograd's; Λ after a small part t of Δ_h is Λ + t · first_order; F = cMᵀ gives cosine 1;
    unchanged by every move that leaves the logits unchanged and by a turn of the axes of E.

    **Source** arXiv:2312.10794 (attention as a gradient flow), arXiv:2008.02217 (the log-sum-exp energy).

    **Relation** `operators` has alignment and symmetry without a text; `trajectory` says how far each head moves tokens.

    >>> import rheoscope as rs
    >>> found = rs.energy(rs.load().trace("The keys to the cabinet are on the table"))
    >>> found.cosine.dims, bool((abs(found.cosine) <= 1 + 1e-6).all())
    (('layer', 'head'), True)
    """
    there = trace.ordinary(keep_massive, least=2)
    values = kernel(trace, None if bool(there.all()) else there, progress) | of_weights(trace.view)
    return _answer(trace, values, keep_massive)


@torch.no_grad()
def batch(
    traces: Traces, keep_massive: bool = False, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """The heads of every layer on many texts at once: every field of `energy`."""
    values = kernel(traces, traces.counted(keep_massive, least=2), progress)
    values |= {name: x.expand(len(traces), *x.shape) for name, x in of_weights(traces.view).items()}
    q = found_beyond_chance(values["z"], values["alignment_z"])
    return values | {"q_value": q, "gradient_like": q <= LEVEL}


def kernel(
    trace: Trace | Traces, there: There, progress: Callable[[int, int], None] | None = None
) -> dict[str, Tensor]:
    """All that depends on the text, of one or of several; tokens that are not `there` stay keys, and are left out of every mean."""
    rows = []
    for layer in range(trace.view.layers):
        rows.append(of_layer(trace, layer, there))
        if progress is not None:
            progress(layer + 1, trace.view.layers)
    texts = trace.points.ndim - 3
    return {name: torch.stack([row[name] for row in rows], texts) for name in rows[0]}


def of_weights(view: View) -> dict[str, Float[Tensor, "layer *h"]]:
    """All that the weights alone tell; heads of as many layers together as a device holds: a GPU waits for each thing that it is asked."""
    rows: list[dict[str, Tensor]] = []
    landscapes: list[Tensor] = []
    form: Tensor | None = None
    each = sum(x.numel() for x in (view.blocks[0].W_Q, view.blocks[0].W_K, view.blocks[0].W_V, view.blocks[0].W_O))
    some = max(1, numbers_at_once(view.blocks[0].W_Q.device) // each)
    for part in alike(view.blocks, some):
        Ms, Fs = [heads.M().exact() for heads in part], [heads.F().exact() for heads in part]
        found = alignments(side_by_side(Ms), side_by_side(Fs), sum(len(heads.W_K) for heads in part))
        rows.append({name: x.unflatten(0, (len(part), -1)) for name, x in found.items()})
        for heads, one in zip(part, Ms, strict=True):
            before, form = form, whole(one, len(heads.W_K))
            if before is not None:
                landscapes.append(turned_from(before, [form])[0])
    landscapes.append(torch.full_like(rows[0]["symmetry"][0, 0], float("nan")))
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]} | {"landscape": torch.stack(landscapes)}


def alike(blocks: Sequence[Heads], most: int) -> Iterator[list[Heads]]:
    """Layers that follow each other and have heads of one shape, at most so many together."""
    for _, same in groupby(blocks, key=lambda heads: (heads.W_Q.shape, heads.W_K.shape, heads.W_V.shape)):
        part = list(same)
        yield from (part[low : low + most] for low in range(0, len(part), most))


def side_by_side(of: list[Factored]) -> Factored:
    return of[0] if len(of) == 1 else Factored(torch.cat([x.left for x in of]), torch.cat([x.right for x in of]))


def of_layer(trace: Trace | Traces, layer: int, there: There) -> dict[str, Tensor]:
    """What the heads of one layer do on the text."""
    step = step_of(trace, layer)
    own = _attention(trace, layer)
    others = [updated(trace, layer), *altered(trace, layer, step, own)]
    apart = turned_from(kept_rows(own, there), (kept_rows(other, there) for other in others))
    return of_heads(step, there) | {"landscape_update": apart[..., 0], "ledger": apart[..., 1:]}


def alignments(M: Factored, F: Factored, groups: int) -> dict[str, Float[Tensor, " h"]]:
    """s(M); cos⟨F, Mᵀ⟩, and how far it lies from where F Q lies at random: tr(FQM) has variance ‖MF‖²/d. All r x r.

    Heads of a group share what reads keys and values: what only these make is computed once a group.
    """
    each = len(M.left) // groups
    keys, values = M.right[::each], F.left[::each]
    answers, reads, middle = (
        (a @ b).repeat_interleave(each, 0) for a, b in ((keys, keys.mT), (values.mT, values), (keys, values))
    )
    asks, writes, cross = M.left.mT @ M.left, F.right @ F.right.mT, M.right @ M.left
    square, inner = _inner(asks, answers), _inner(middle, (F.right @ M.left).mT)
    spread = (_inner(middle.mT @ asks @ middle, writes).clamp(min=0) / M.shape[-1]).sqrt()
    return {
        "symmetry": share(_inner(cross, cross.mT), square),
        "alignment": share(inner, (square * _inner(reads, writes)).clamp(min=0).sqrt()),
        "alignment_z": share(inner, spread),
    }


def whole(M: Factored, groups: int) -> Float[Tensor, "d d"]:
    """The sum of all M of a layer. Heads that share a key add up on the side of the queries: QKᵀ + Q'Kᵀ = (Q + Q')Kᵀ."""
    queries, keys = M.left.unflatten(0, (groups, -1)).sum(1), M.right[:: len(M.left) // groups]
    return queries.transpose(0, 1).flatten(1) @ keys.flatten(0, 1)


# One layer's heads


@dataclass(frozen=True, eq=False)
class Step:
    """What every head does to its tokens, in factors: Δ_h = moved `write`, ∇Λ = slope `ask`ᵀ, nothing of size (h, n, d).

    `asked` are the queries x̂ A without their `bias`, `scale` is what the norm multiplies tokens by.
    """

    field: Landscape
    hat: Cloud
    scale: Float[Tensor, "*b n 1"]
    asked: Float[Tensor, "*b h n k"]
    bias: Float[Tensor, "*b h 1 k"]
    ask: Float[Tensor, "h d k"]
    write: Float[Tensor, "h e d"]
    energy: Float[Tensor, "*b h n"]
    slope: Float[Tensor, "*b h n k"]
    moved: Float[Tensor, "*b h n e"]
    as_read: Callable[[Tensor], Tensor] = lambda x: x

    @cached_property
    def middle(self) -> Float[Tensor, "h e k"]:
        """What a head writes, asked by its own queries."""
        return self.write @ self.ask

    @cached_property
    def written(self) -> Float[Tensor, "h e e"]:
        return self.write @ self.write.mT

    def read(self) -> Projected:
        """q, k and v of the cloud, as every mechanism takes them: before any rotation."""
        heads = self.field.heads
        q, norm = self.asked + self.bias, heads.q_norm
        q = q if norm is None else norm.hat(q) * (1.0 if norm.gain is None else norm.gain.to(q))
        v = through(heads.norm, self.hat, heads.W_V, heads.b_V, None, self.as_read)
        return (q, self.field.read, v) if q.ndim == 4 else (q[None], self.field.read[None], v[None])


def step_of(trace: Trace | Traces, layer: int) -> Step:
    heads, x = trace.view.blocks[layer], trace.read_by(layer)
    x = exact(x)
    norm, hat, made = heads.norm, heads.norm.hat(x), trace.carried(layer).exact()
    as_read, nothing = trace.view.as_read, torch.zeros_like(hat[..., :1, :])
    field = landscape(heads, hat, unseen(trace, layer), as_read)
    queries, bias = (through(norm, y, heads.W_Q, heads.b_Q, None, as_read) for y in (hat, nothing))
    energy, slope = field.slope(queries)
    asked, slope, moved = (
        x.contiguous() if x.is_cuda else x for x in (queries - bias, slope, made.moved)
    )  # for products
    ask = norm.fold(heads.W_Q.to(x.dtype))
    return Step(field, hat, norm.scale(x), asked, bias, ask, made.write, energy, slope, moved, as_read)


def unseen(trace: Trace | Traces, layer: int) -> Mask | None:
    """Padding, where texts stand side by side."""
    return trace.unseen(layer) if isinstance(trace, Traces) else None


def of_heads(step: Step, there: There) -> dict[str, PerHead]:
    """Λ before and after, the first order, and the cosine with its null."""
    first, after = moves(step, 1.0)
    before, then, slope = (mean(part, there) for part in (step.energy, after, first))
    return {
        "energy": before,
        "energy_after": then,
        "first_order": slope,
        "remainder": mean(after - step.energy - first, there),
    } | cosines(step, there)


def moves(step: Step, share: float) -> tuple[Float[Tensor, "*b h n"], Float[Tensor, "*b h n"]]:
    """⟨∇Λ_i, share Δ_i⟩ through the norm, and Λ_i after x_i + share Δ_i: from inner products of tokens, queries and Δ.

    x̂ = r x C, so that a move by Δ gives dx̂ = r (ΔC − x̂ ⟨x̂, Δ⟩/d) and 1/r'² = 1/r² + (2⟨xC, Δ⟩ + ‖ΔC‖²)/d.
    """
    norm, r, d = step.field.heads.norm, step.scale[..., None, :, 0], step.hat.shape[-1]
    moved = share * step.moved
    turned = moved @ step.middle
    climb = (turned * step.slope).sum(-1)
    if norm.eps is None:
        return climb, step.field.energies(step.asked + turned + step.bias)
    ahead = product(step.as_read(step.hat), step.write.flatten(0, 1).mT)
    ahead = ahead.unflatten(-1, step.write.shape[:2]).transpose(-3, -2)
    along = (moved * ahead).sum(-1)
    first = r * (climb - (step.slope * step.asked).sum(-1) * along / d)
    written = norm.centre(step.write) @ step.write.mT if norm.centred else step.written
    squared = r**-2 + (2 * along / r + (moved @ written * moved).sum(-1)) / d
    again = squared.clamp(min=norm.eps).rsqrt()[..., None] * (step.asked / r[..., None] + turned)
    return first, step.field.energies(again + step.bias)


def cosines(step: Step, there: There) -> dict[str, PerHead]:
    """cos(Δ, ∇Λ) and what it would be if F were turned at random, from r x r matrices.

    ⟨ΔQ, G⟩ = tr(Q GᵀΔ) has mean 0 and variance ‖ΔᵀG‖²/d over all orthogonal Q.
    """
    moved, slope, asking = kept_rows(step.moved, there), kept_rows(step.slope, there), step.ask.mT @ step.ask
    both = moved.mT @ slope
    lengths = (moved.mT @ moved * step.written).sum((-2, -1)), (slope.mT @ slope * asking).sum((-2, -1))
    size = lengths[0].clamp(min=0).sqrt() * lengths[1].clamp(min=0).sqrt()
    spread = (both.mT @ step.written @ both * asking).sum((-2, -1)).clamp(min=0).sqrt() / step.hat.shape[-1] ** 0.5
    inner = (both * step.middle).sum((-2, -1))
    shared = (moved.sum(-2)[..., None, :] @ step.middle @ slope.sum(-2)[..., None])[..., 0, 0]
    shared = shared / counts(step.energy, there)
    return {
        "cosine": share(inner, size),
        "cosine_null": torch.zeros_like(inner),
        "cosine_null_sd": share(spread, size),
        "cosine_shared": share(shared, size),
        "z": share(inner, spread),
    }


# What stands between a layer and a gradient flow


def updated(trace: Trace | Traces, layer: int) -> Cloud:
    """What the attention of the next layer does to this layer's cloud; NaN at the last layer."""
    if layer + 1 == trace.view.layers:
        return torch.full_like(exact(_at(trace, 0)), float("nan"))
    after = trace.view.blocks[layer + 1]
    mechanism, read = (
        after.mechanism.under(unseen(trace, layer + 1)),
        after.read(trace.view.as_read(trace.read_by(layer))),
    )
    return moved_by(after, mechanism, trace.read_by(layer), *read).reshape(_at(trace, 0).shape)


def altered(trace: Trace | Traces, layer: int, step: Step, own: Cloud) -> list[Cloud]:
    """The attention's displacement `own` without mask, norm, position and MLP."""
    heads, mechanism = step.field.heads, step.field.heads.mechanism
    hidden = trace.padding if isinstance(trace, Traces) else None
    free, nowhere = replace(mechanism, mask=NoMask()), replace(mechanism, position=NoPosition())
    x, given = exact(trace.read_by(layer)), [trace.view.as_read(part) for part in step.read()]
    return [
        own if mechanism.mask.forbids_nothing else moved_by(heads, free.under(hidden), x, *given).reshape(own.shape),
        _normed(step, trace, layer, x, own),
        own
        if mechanism.position.nowhere
        else moved_by(heads, nowhere.under(unseen(trace, layer)), x, *given).reshape(own.shape),
        exact(_at(trace, end_of(trace, layer))) - x,
    ]


def _normed(step: Step, trace: Trace | Traces, layer: int, x: Cloud, own: Cloud) -> Cloud:
    """What the displacement becomes through the norm: of x̂ where the norm comes before, of the sum where it comes after."""
    middle = trace.middle[layer]
    if trace.steps[middle].is_sum:
        return exact(_at(trace, middle + 1)) - x
    return step.field.heads.norm.hat(x + own) - step.hat


def moved_by(heads: Heads, mechanism: Mechanism, x: Cloud, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "b n d"]:
    """What the attention of a layer adds to clouds when its weights are computed by `mechanism`."""
    out = heads.gated(mechanism.attend(q, k, v), x).transpose(1, 2).flatten(2)
    total = product(out, heads.W_O.flatten(0, 1)) + (0 if heads.b_O is None else heads.b_O)
    if heads.after is None:
        return total
    return total * heads.after_scale(total) + (0 if heads.after.bias is None else heads.after.bias)


def turned_from(a: Cloud, others: Iterable[Cloud]) -> Float[Tensor, "*b others"]:
    """1 − cos of an array and of each of several, as vectors; 0 where one of the two is 0."""
    a = a.flatten(-2)
    pairs = [(torch.linalg.vecdot(a, b), b.norm(dim=-1)) for b in (other.flatten(-2) for other in others)]
    inner, sizes = (torch.stack(part, -1) for part in zip(*pairs, strict=True))
    sizes = a.norm(dim=-1)[..., None] * sizes
    return torch.where(sizes == 0, 0, 1 - inner / torch.where(sizes == 0, 1, sizes))


def _attention(trace: Trace | Traces, layer: int) -> Cloud:
    return exact(_at(trace, trace.middle[layer])) - exact(_at(trace, trace.where[layer]))


def _at(trace: Trace | Traces, point: int) -> Cloud:
    return trace.points[..., point, :, :]


# The answer


def found_beyond_chance(z: Float[Tensor, "*b layer h"], alignment_z: Float[Tensor, "*b layer h"]) -> Tensor:
    """q-values of "both are higher than chance", text by text: the larger of two p-values is one for the pair."""
    p = torch.maximum(*(one_sided(x.double()) for x in (z, alignment_z)))
    return q_values_of_rows(p.reshape(-1, p.shape[-2:].numel())).reshape(p.shape)


def _answer(trace: Trace, values: dict[str, Tensor], keep_massive: bool) -> "xarray.Dataset":
    q = found_beyond_chance(values["z"], values["alignment_z"])
    attributes = {
        "space": "x̂",
        "massive": trace.massive(),
        "keep_massive": int(keep_massive),
        "null": "F Q for all orthogonal Q: mean and spread in closed form, tails of a normal law",
        "level": LEVEL,
        "tested": q.numel(),
        "found": int((q <= LEVEL).sum()),
        "found_expected_false": LEVEL * int((q <= LEVEL).sum()),
        "found_expected_under_null": f"at most one, with a chance of {LEVEL:.0%}",
    }
    numbers = {"layer": range(trace.view.layers), "head": range(trace.view.heads)}
    found = values | {"q_value": q, "gradient_like": q <= LEVEL}
    return ENERGY.answer(found, numbers | {"difference": list(DIFFERENCES)}, attributes | trace.provenance)


def _inner(a: Float[Tensor, "h r s"], b: Float[Tensor, "h r s"]) -> Float[Tensor, " h"]:
    return (a * b).sum((-2, -1))


ENERGY = Analysis(
    name="energy",
    question="Does each head move tokens up its own energy, and what keeps the layers from being a gradient flow?",
    ask=energy,
    batch=batch,
    needs="trace",
    fields={
        "energy": Field(
            ("layer", "head"),
            "Λ = mean over tokens of log((1/n_i) Σ_j e^{s_ij}) over permitted keys j: the head's own scores on x̂, "
            "without the bias of keys where it is constant along a row and softmax cannot see it",
            unit="nats",
        ),
        "energy_after": Field(
            ("layer", "head"),
            "Λ after this head's own Δ_h is added to every query, x̂ taken anew through the norm, the keys as they were",
            unit="nats",
        ),
        "first_order": Field(
            ("layer", "head"),
            "⟨∇Λ, Δ_h⟩ by the query-side gradient through the norm: what a small step of Δ_h changes Λ by",
            unit="nats",
        ),
        "remainder": Field(
            ("layer", "head"), "energy_after − energy − first_order: what the size of the step adds", unit="nats"
        ),
        "cosine": Field(
            ("layer", "head"),
            "cos(Δ_h, ∇Λ) over the whole cloud, ∇Λ = Σ_j α_ij x̂_j Mᵀ by x̂: 1 where the head moves tokens straight up its energy",
            null="cosine_null",
            null_sd="cosine_null_sd",
        ),
        "cosine_null": Field(
            ("layer", "head"),
            "mean of the same when F is turned at random (F Q, Q orthogonal: the same singular values): 0",
        ),
        "cosine_null_sd": Field(
            ("layer", "head"), "standard deviation of the same over all Q, exact: ‖Δ_hᵀ∇Λ‖/(√d ‖Δ_h‖ ‖∇Λ‖)"
        ),
        "cosine_shared": Field(
            ("layer", "head"),
            "mean of the same with Δ_h permuted among the tokens: what tokens have in common, not what each one does",
        ),
        "z": Field(("layer", "head"), "(cosine − cosine_null)/cosine_null_sd"),
        "alignment": Field(
            ("layer", "head"), "cos⟨F, Mᵀ⟩: 1 where the head moves tokens up its own relevance, whatever the text"
        ),
        "alignment_z": Field(
            ("layer", "head"), "alignment over its standard deviation when F is turned at random, ‖MF‖/(√d ‖M‖ ‖F‖)"
        ),
        "q_value": Field(
            ("layer", "head"),
            "share of false findings when this head and all less likely ones are called gradient-like (Benjamini–Hochberg), "
            "from the larger of the one-sided p-values of cosine and alignment",
        ),
        "gradient_like": Field(("layer", "head"), "q_value ≤ 0.05: both cosine and alignment are higher than chance"),
        "symmetry": Field(
            ("layer", "head"), "tr(MM)/tr(MMᵀ): 1 where relevance is mutual, so that keys climb as queries do"
        ),
        "landscape": Field(
            ("layer",),
            "1 − cos of the head-summed M of this layer and the next: 0 the same landscape; NaN at the last layer",
        ),
        "landscape_update": Field(
            ("layer",),
            "1 − cos of what the attention of this layer and of the next do to this layer's cloud; NaN at the last layer",
        ),
        "ledger": Field(
            ("layer", "difference"),
            "1 − cos of what the layer's attention does to its cloud with and without a part, 0 where it makes no difference: "
            "mask (every key permitted), norm (Δ against what it does to x̂), position (no rotation, no bias of place), "
            "mlp (Δ of attention against that of the whole layer)",
        ),
    },
)
