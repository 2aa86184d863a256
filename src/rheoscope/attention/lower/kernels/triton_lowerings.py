"""Which mechanisms run on kernels of our own, and how each is handed to its kernel.

The kernels are written in Triton, which comes with torch's builds for CUDA: it is imported when a kernel first runs. A
normaliser names its kernel (`tiled`), a score says what it can be read as (`dot`, `tanh`, `elementwise`, `per_distance`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.lower.kernels.dots import (
    WIDEST,
    Dots,
    dots,
    filled,
    refuse_dots,
    refuse_mask,
    refuse_tensors,
    values,
)
from rheoscope.attention.lower.lowering import Offer, Run

TRITON = find_spec("triton") is not None
NO_TRITON = "Triton is not installed; it comes with torch's builds for CUDA"
UNITS = 128
"""The most hidden units of an additive score."""


@dataclass(frozen=True)
class Kernel:
    """A kernel: what it does in words, how to run it, and why it cannot, beyond what all kernels refuse."""

    why: str
    run: Run
    refuse: Callable[[Definition, Tensor, Tensor], str]


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    refusal = refuse_tensors(q, k)
    kernel = None if refusal else kernel_of(mechanism, q, k)
    if kernel is None:
        return (
            refusal
            or f"there is no kernel of our own for {type(mechanism.normaliser).__name__} of {type(mechanism.score).__name__}"
        )
    refusal = refuse_mask(mechanism, q, k) or _refuse_values(mechanism, q, v) or kernel.refuse(mechanism, q, k)
    if refusal or not TRITON:
        return refusal or NO_TRITON
    return Offer(f"{kernel.why}, in tiles on the GPU, recomputed in the backward pass: O(N) memory", kernel.run)


def kernel_of(mechanism: Definition, q: Tensor, k: Tensor) -> Kernel | None:
    """The kernel that its normaliser names, or under softmax that of additive scores or of distances."""
    if mechanism.normaliser.tiled is not None:
        return KERNELS[mechanism.normaliser.tiled.kernel]
    fused = mechanism.normaliser.fused
    if fused is None or not fused.bare:
        return None
    if mechanism.score.per_distance > 0:
        return LAPLACE
    return ADDITIVE if _one_pair_of_units(mechanism, q, k) is not None else None


def _one_pair_of_units(mechanism: Definition, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    return mechanism.score.tanh(q[:1, :, :1].float(), for_every_head(k[:1, :, :1], q.shape[1]).float())


def _refuse_values(mechanism: Definition, q: Tensor, v: Tensor) -> str:
    if v.dtype != q.dtype:
        return f"values are {v.dtype}, queries {q.dtype}, and kernels multiply one dtype"
    if not mechanism.value.identity or v.shape[-1] > WIDEST:
        return _refuse_width(mechanism.value(for_every_head(v[:1, :, :1], q.shape[1]).float()).shape[-1])
    return ""


def _refuse_width(width: int) -> str:
    return "" if width <= WIDEST else f"kernels hold rows of up to {WIDEST} numbers, these have {width}"


def _pointwise(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.pointwise import pointwise

    form, tiled = dots(mechanism, q, k), mechanism.normaliser.tiled
    assert tiled is not None, "offer() has seen it"
    own, width = values(mechanism, v, q.shape[1])
    biases = _biases(form)
    settings = (form.scale, tiled.number, tiled.kernel == "sigmoid", mechanism.mask.is_causal)
    return pointwise(form.q, form.k, own, *biases, *settings)[..., :width]


def _biases(form: Dots) -> tuple[Tensor | None, Tensor | None]:
    """Both or none."""
    if form.query_bias is None and form.key_bias is None:
        return None, None
    q, k = (x.new_zeros(x.shape[:3]).float() for x in (form.q, form.k))
    return q if form.query_bias is None else form.query_bias, k if form.key_bias is None else form.key_bias


def _entmax(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.entmax import entmax

    form, tiled = dots(mechanism, q, k), mechanism.normaliser.tiled
    assert tiled is not None, "offer() has seen it"
    own, width = values(mechanism, v, q.shape[1])
    return entmax(form.q, form.k, own, form.key_bias, form.scale, tiled.number, mechanism.mask.is_causal)[0][
        ..., :width
    ]


def _sinkhorn(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.sinkhorn import sinkhorn

    form, tiled = dots(mechanism, q, k), mechanism.normaliser.tiled
    assert tiled is not None, "offer() has seen it"
    own, width = values(mechanism, v, q.shape[1])
    return sinkhorn(form.q, form.k, own, form.scale, int(tiled.number))[0][..., :width]


def _linear(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.linear import linear

    own, width = values(mechanism, v, q.shape[1])
    elu = mechanism.score.elementwise == "elu_plus_one" and mechanism.position.nowhere and _power_of_two(q.shape[-1])
    if elu:
        rows, keys = filled(q), filled(for_every_head(k, q.shape[1]))
    else:
        form = dots(mechanism, q, k)
        rows, keys = form.q * form.scale, form.k
    return linear(rows, keys, own, elu, mechanism.mask.is_causal)[0][..., :width]


def _power_of_two(width: int) -> bool:
    """Whether rows need no filling: phi(0) is 1, so zeros would be seen."""
    return width >= 16 and width & (width - 1) == 0


def _additive(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.additive import additive, hidden

    i, j = positions(q.shape[-2], k.shape[-2], q.device)
    place, keys = mechanism.position.place, for_every_head(k, q.shape[1])
    form = mechanism.score.tanh(place(q.float(), i), place(keys.float(), j))
    assert form is not None, "offer() has seen it"
    own, width = values(mechanism, v, q.shape[1])
    a, c = (hidden(filled(x)) for x in form[:2])
    w = filled(form[2].float()).expand(q.shape[1], -1).contiguous()
    return additive(a, c, w, own, q.shape[-2], mechanism.mask.is_causal)[0][..., :width]


def _laplace(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.laplace import laplace

    keys, (i, j) = for_every_head(k, q.shape[1]), positions(q.shape[-2], k.shape[-2], q.device)
    own, width = values(mechanism, v, q.shape[1])
    rows = [
        x if mechanism.position.nowhere else mechanism.position.place(x.float(), at).to(x.dtype)
        for x, at in ((q, i), (keys, j))
    ]
    return laplace(*map(filled, rows), own, mechanism.score.per_distance, mechanism.mask.is_causal)[0][..., :width]


def _no_bias(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Scores that are the product and nothing beside it."""
    form = mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))
    if form is not None and (form.key_bias is not None or form.query_bias is not None):
        return "its kernel reads bare inner products, and the score adds a bias to every key"
    return refuse_dots(mechanism, q, k)


def _square(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.is_causal and q.shape[-2] != k.shape[-2]:
        return "sums run over all keys or over the past of the same tokens; there are more keys than queries"
    return _no_bias(mechanism, q, k)


def _no_bias_of_position(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    i, _ = positions(1, k.shape[-2], q.device)
    return "" if mechanism.position.bias(i, i) is None else "the position adds a bias of its own to every pair"


def _distances(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    return _refuse_width(q.shape[-1]) or _no_bias_of_position(mechanism, q, k)


def _units(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if refusal := _no_bias_of_position(mechanism, q, k):
        return refusal
    form = _one_pair_of_units(mechanism, q, k)
    units = 0 if form is None else form[0].shape[-1]
    return "" if units <= UNITS else f"the kernel of additive scores holds up to {UNITS} hidden units, it has {units}"


LAPLACE = Kernel("the score is a distance, computed from squares and a product", _laplace, _distances)
ADDITIVE = Kernel("the score is a sum over hidden units", _additive, _units)
KERNELS = {
    "sigmoid": Kernel("every weight is the sigmoid of its own score", _pointwise, refuse_dots),
    "relu": Kernel("every weight is the positive part of its own score", _pointwise, refuse_dots),
    "entmax": Kernel("a row's threshold is found by passes over its keys", _entmax, refuse_dots),
    "sinkhorn": Kernel("potentials of rows and columns are found by passes over tiles", _sinkhorn, _no_bias),
    "linear": Kernel("weights are inner products of features, so sums over keys replace them", _linear, _square),
}
"""By the name that a normaliser gives."""


def refuse_statistics(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why there is no kernel for the statistics of these weights."""
    fused = mechanism.normaliser.fused
    if fused is None or fused.dropped:
        return f"the kernel of statistics knows softmax, the normaliser is {type(mechanism.normaliser).__name__}"
    refusal = refuse_tensors(q, k) or refuse_mask(mechanism, q, k) or refuse_dots(mechanism, q, k)
    refusal = refusal or _felt_row_constant(mechanism, q, k)
    return refusal if refusal or TRITON else NO_TRITON


def statistics(mechanism: Definition, q: Tensor, k: Tensor, lengths: Tensor | None) -> dict[str, Tensor]:
    """Entropy, first, top, distance and received of softmax weights in two passes."""
    from rheoscope.attention.lower.kernels.weights import weight_sums

    fused, sink = mechanism.normaliser.fused, None
    assert fused is not None, "refuse_statistics() has seen a softmax"
    if fused.sink is not None:
        sink = q.new_zeros(q.shape[1]).float() + fused.sink
    return weight_sums(dots(mechanism, q, k), mechanism.mask.is_causal, sink, lengths)._asdict()


def _felt_row_constant(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    form = mechanism.score.dot(q[:1, :, :1], for_every_head(k[:1, :, :1], q.shape[1]))
    felt = form is not None and form.query_bias is not None and not mechanism.normaliser.shift_invariant
    return "a sink feels the score's row constant, which the kernel leaves out" if felt else ""
