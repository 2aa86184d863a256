"""Which mechanisms run on kernels of our own, and how each is handed to its kernel.

The kernels are written in Triton, which comes with torch's builds for CUDA: it is imported when a kernel first runs. A
normaliser names its kernel (`tiled`), a score says what it can be read as (`dot`, `tanh`, `elementwise`, `per_distance`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.kernels.dots import (
    MAX_WIDTH,
    DotInputs,
    dot_inputs,
    dot_refusal,
    mask_refusal,
    pad_to_power_of_two,
    padded_values,
    tensor_refusal,
)
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall

HAS_TRITON = find_spec("triton") is not None
NO_TRITON_MESSAGE = "Triton is not installed; it comes with torch's builds for CUDA"
MAX_UNITS = 128
"""The most hidden units of an additive score."""


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: what it does in words, how to run it, and why it cannot, beyond what all kernels refuse."""

    description: str
    run: AttentionFunction
    refusal: Callable[[Definition, Tensor, Tensor], str]


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    refusal = tensor_refusal(q, k)
    kernel = None if refusal else kernel_for(mechanism, q, k)
    if kernel is None:
        return (
            refusal
            or f"there is no kernel of our own for {type(mechanism.normaliser).__name__} of {type(mechanism.score).__name__}"
        )
    refusal = mask_refusal(mechanism, q, k) or _value_refusal(mechanism, q, v) or kernel.refusal(mechanism, q, k)
    if refusal or not HAS_TRITON:
        return refusal or NO_TRITON_MESSAGE
    return LoweredCall(
        f"{kernel.description}, in tiles on the GPU, recomputed in the backward pass: O(N) memory", kernel.run
    )


def kernel_for(mechanism: Definition, q: Tensor, k: Tensor) -> KernelSpec | None:
    """The kernel that its normaliser names, or under softmax that of additive scores or of distances."""
    if mechanism.normaliser.gpu_kernel is not None:
        return NORMALISER_KERNELS[mechanism.normaliser.gpu_kernel.kernel]
    fused = mechanism.normaliser.fused_softmax
    if fused is None or not fused.is_plain:
        return None
    if mechanism.score.distance_slope > 0:
        return LAPLACE_KERNEL
    return ADDITIVE_KERNEL if _single_pair_units(mechanism, q, k) is not None else None


def _single_pair_units(mechanism: Definition, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    return mechanism.score.tanh_form(q[:1, :, :1].float(), repeat_kv_heads(k[:1, :, :1], q.shape[1]).float())


def _value_refusal(mechanism: Definition, q: Tensor, v: Tensor) -> str:
    if v.dtype != q.dtype:
        return f"values are {v.dtype}, queries {q.dtype}, and kernels multiply one dtype"
    if not mechanism.value.is_identity or v.shape[-1] > MAX_WIDTH:
        return _width_refusal(mechanism.value(repeat_kv_heads(v[:1, :, :1], q.shape[1]).float()).shape[-1])
    return ""


def _width_refusal(width: int) -> str:
    return "" if width <= MAX_WIDTH else f"kernels hold rows of up to {MAX_WIDTH} numbers, these have {width}"


def _run_pointwise(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.pointwise import pointwise

    inputs, tiled = dot_inputs(mechanism, q, k), mechanism.normaliser.gpu_kernel
    assert tiled is not None, "offer() has seen it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    biases = _both_biases(inputs)
    settings = (inputs.scale, tiled.parameter, tiled.kernel == "sigmoid", mechanism.mask.is_causal)
    return pointwise(inputs.q, inputs.k, padded_v, *biases, *settings)[..., :width]


def _both_biases(inputs: DotInputs) -> tuple[Tensor | None, Tensor | None]:
    """Both or none."""
    if inputs.query_bias is None and inputs.key_bias is None:
        return None, None
    query_zeros, key_zeros = (x.new_zeros(x.shape[:3]).float() for x in (inputs.q, inputs.k))
    return (
        query_zeros if inputs.query_bias is None else inputs.query_bias,
        key_zeros if inputs.key_bias is None else inputs.key_bias,
    )


def _run_entmax(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.entmax import entmax

    inputs, tiled = dot_inputs(mechanism, q, k), mechanism.normaliser.gpu_kernel
    assert tiled is not None, "offer() has seen it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    return entmax(
        inputs.q, inputs.k, padded_v, inputs.key_bias, inputs.scale, tiled.parameter, mechanism.mask.is_causal
    )[0][..., :width]


def _run_sinkhorn(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.sinkhorn import sinkhorn

    inputs, tiled = dot_inputs(mechanism, q, k), mechanism.normaliser.gpu_kernel
    assert tiled is not None, "offer() has seen it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    return sinkhorn(inputs.q, inputs.k, padded_v, inputs.scale, int(tiled.parameter))[0][..., :width]


def _run_linear(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.linear import linear

    padded_v, width = padded_values(mechanism, v, q.shape[1])
    use_elu = (
        mechanism.score.elementwise_name == "elu_plus_one"
        and mechanism.position.is_trivial
        and _needs_no_padding(q.shape[-1])
    )
    if use_elu:
        queries, keys = pad_to_power_of_two(q), pad_to_power_of_two(repeat_kv_heads(k, q.shape[1]))
    else:
        inputs = dot_inputs(mechanism, q, k)
        queries, keys = inputs.q * inputs.scale, inputs.k
    return linear(queries, keys, padded_v, use_elu, mechanism.mask.is_causal)[0][..., :width]


def _needs_no_padding(width: int) -> bool:
    """Whether rows need no filling: phi(0) is 1, so zeros would be seen."""
    return width >= 16 and width & (width - 1) == 0


def _run_additive(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.additive import additive, to_hidden_layout

    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    apply_position, keys = mechanism.position.encode, repeat_kv_heads(k, q.shape[1])
    hidden_form = mechanism.score.tanh_form(apply_position(q.float(), i), apply_position(keys.float(), j))
    assert hidden_form is not None, "offer() has seen it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    query_hidden, key_hidden = (to_hidden_layout(pad_to_power_of_two(x)) for x in hidden_form[:2])
    unit_weights = pad_to_power_of_two(hidden_form[2].float()).expand(q.shape[1], -1).contiguous()
    return additive(query_hidden, key_hidden, unit_weights, padded_v, q.shape[-2], mechanism.mask.is_causal)[0][
        ..., :width
    ]


def _run_laplace(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.laplace import laplace

    keys, (i, j) = repeat_kv_heads(k, q.shape[1]), query_key_positions(q.shape[-2], k.shape[-2], q.device)
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    positioned_rows = [
        x if mechanism.position.is_trivial else mechanism.position.encode(x.float(), token_positions).to(x.dtype)
        for x, token_positions in ((q, i), (keys, j))
    ]
    return laplace(
        *map(pad_to_power_of_two, positioned_rows), padded_v, mechanism.score.distance_slope, mechanism.mask.is_causal
    )[0][..., :width]


def _bias_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Scores that are the product and nothing beside it."""
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    if dot_form is not None and (dot_form.key_bias is not None or dot_form.query_bias is not None):
        return "its kernel reads bare inner products, and the score adds a bias to every key"
    return dot_refusal(mechanism, q, k)


def _linear_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.is_causal and q.shape[-2] != k.shape[-2]:
        return "sums run over all keys or over the past of the same tokens; there are more keys than queries"
    return _bias_refusal(mechanism, q, k)


def _position_bias_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    i, _ = query_key_positions(1, k.shape[-2], q.device)
    return "" if mechanism.position.bias(i, i) is None else "the position adds a bias of its own to every pair"


def _laplace_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    return _width_refusal(q.shape[-1]) or _position_bias_refusal(mechanism, q, k)


def _additive_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if refusal := _position_bias_refusal(mechanism, q, k):
        return refusal
    hidden_form = _single_pair_units(mechanism, q, k)
    n_units = 0 if hidden_form is None else hidden_form[0].shape[-1]
    return (
        ""
        if n_units <= MAX_UNITS
        else f"the kernel of additive scores holds up to {MAX_UNITS} hidden units, it has {n_units}"
    )


LAPLACE_KERNEL = KernelSpec(
    "the score is a distance, computed from squares and a product", _run_laplace, _laplace_refusal
)
ADDITIVE_KERNEL = KernelSpec("the score is a sum over hidden units", _run_additive, _additive_refusal)
NORMALISER_KERNELS = {
    "sigmoid": KernelSpec("every weight is the sigmoid of its own score", _run_pointwise, dot_refusal),
    "relu": KernelSpec("every weight is the positive part of its own score", _run_pointwise, dot_refusal),
    "entmax": KernelSpec("a row's threshold is found by passes over its keys", _run_entmax, dot_refusal),
    "sinkhorn": KernelSpec(
        "potentials of rows and columns are found by passes over tiles", _run_sinkhorn, _bias_refusal
    ),
    "linear": KernelSpec(
        "weights are inner products of features, so sums over keys replace them", _run_linear, _linear_refusal
    ),
}
"""By the name that a normaliser gives."""


def statistics_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why there is no kernel for the statistics of these weights."""
    fused = mechanism.normaliser.fused_softmax
    if fused is None or fused.dropout:
        return f"the kernel of statistics knows softmax, the normaliser is {type(mechanism.normaliser).__name__}"
    refusal = tensor_refusal(q, k) or mask_refusal(mechanism, q, k) or dot_refusal(mechanism, q, k)
    refusal = refusal or _row_constant_refusal(mechanism, q, k)
    return refusal if refusal or HAS_TRITON else NO_TRITON_MESSAGE


def kernel_statistics(mechanism: Definition, q: Tensor, k: Tensor, lengths: Tensor | None) -> dict[str, Tensor]:
    """Entropy, first, top, distance and received of softmax weights in two passes."""
    from rheoscope.attention.lower.kernels.weights import softmax_statistics

    fused, sink = mechanism.normaliser.fused_softmax, None
    assert fused is not None, "refuse_statistics() has seen a softmax"
    if fused.sink is not None:
        sink = q.new_zeros(q.shape[1]).float() + fused.sink
    return softmax_statistics(dot_inputs(mechanism, q, k), mechanism.mask.is_causal, sink, lengths)._asdict()


def _row_constant_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    matters = dot_form is not None and dot_form.query_bias is not None and not mechanism.normaliser.is_shift_invariant
    return "a sink feels the score's row constant, which the kernel leaves out" if matters else ""
