"""The mechanisms that run on Triton kernels, and the function that calls the kernel of each.

Triton comes with torch's builds for CUDA and is imported when a kernel first runs. A normaliser names its kernel
(`gpu_kernel`). A score offers the forms that kernels read (`dot_form`, `tanh_form`, `elementwise_name`, `distance_slope`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.lower.cudnn import dtype_name
from rheoscope.attention.lower.kernels.dots import (
    MAX_WIDTH,
    DotInputs,
    dot_inputs,
    dot_refusal,
    mask_refusal,
    pad_to_power_of_two,
    padded_values,
    pair_bias_refusal,
    tensor_refusal,
    width_refusal,
)
from rheoscope.attention.lower.lowering import AttentionFunction, LoweredCall, unless_compiling
from rheoscope.attention.lower.sdpa import not_softmax
from rheoscope.messages.message import Message

HAS_TRITON = find_spec("triton") is not None
MAX_UNITS = 128
"""The maximum number of hidden units of an additive score."""


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: its description, the function that runs it, and its own reasons to refuse a call."""

    description: Message
    run: AttentionFunction
    refusal: Callable[[Definition, Tensor, Tensor], str]


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    refusal = tensor_refusal(q, k)
    kernel = None if refusal else kernel_for(mechanism, q, k)
    if kernel is None:
        return refusal or unless_compiling(
            lambda: Message(
                "no Triton kernel computes {normaliser} of {score}",
                normaliser=type(mechanism.normaliser).__name__,
                score=type(mechanism.score).__name__,
            )
        )
    refusal = mask_refusal(mechanism, q, k) or _value_refusal(mechanism, q, v) or kernel.refusal(mechanism, q, k)
    if refusal or not HAS_TRITON:
        return refusal or unless_compiling(_no_triton)
    reason = unless_compiling(
        lambda: Message(
            "{kernel}; the GPU computes tiles and recomputes them in the backward pass, in O(N) memory",
            kernel=kernel.description,
        )
    )
    return LoweredCall(reason, kernel.run)


def _no_triton() -> Message:
    return Message("Triton is not installed; it comes with torch's builds for CUDA")


def kernel_for(mechanism: Definition, q: Tensor, k: Tensor) -> KernelSpec | None:
    """The kernel that the normaliser names, or the softmax kernel of additive scores or of distances."""
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
        return unless_compiling(
            lambda: Message(
                "kernels need values and queries of one dtype, got {values} and {queries}",
                values=dtype_name(v.dtype),
                queries=dtype_name(q.dtype),
            )
        )
    if not mechanism.value.is_identity or v.shape[-1] > MAX_WIDTH:
        return width_refusal(mechanism.value(repeat_kv_heads(v[:1, :, :1], q.shape[1]).float()).shape[-1])
    return ""


def _run_pointwise(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.pointwise import pointwise

    inputs, tiled = dot_inputs(mechanism, q, k), mechanism.normaliser.gpu_kernel
    assert tiled is not None, "try_lower has checked it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    biases = _both_biases(inputs)
    settings = (inputs.scale, tiled.parameter, tiled.kernel == "sigmoid", mechanism.mask.is_causal)
    return pointwise(inputs.q, inputs.k, padded_v, *biases, *settings)[..., :width]


def _both_biases(inputs: DotInputs) -> tuple[Tensor | None, Tensor | None]:
    """Both biases, with zeros for a missing one, or neither."""
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
    assert tiled is not None, "try_lower has checked it"
    padded_v, width = padded_values(mechanism, v, q.shape[1])
    return entmax(
        inputs.q, inputs.k, padded_v, inputs.key_bias, inputs.scale, tiled.parameter, mechanism.mask.is_causal
    )[0][..., :width]


def _run_sinkhorn(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.sinkhorn import sinkhorn

    inputs, tiled = dot_inputs(mechanism, q, k), mechanism.normaliser.gpu_kernel
    assert tiled is not None, "try_lower has checked it"
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
    """Whether rows of this width need no padding; phi(0) is 1, so zero columns would change the result."""
    return width >= 16 and width & (width - 1) == 0


def _run_additive(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from rheoscope.attention.lower.kernels.additive import additive, to_hidden_layout

    i, j = query_key_positions(q.shape[-2], k.shape[-2], q.device)
    apply_position, keys = mechanism.position.encode, repeat_kv_heads(k, q.shape[1])
    hidden_form = mechanism.score.tanh_form(apply_position(q.float(), i), apply_position(keys.float(), j))
    assert hidden_form is not None, "try_lower has checked it"
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
    """Why the scores are not plain inner products, or \"\" if they are."""
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    if dot_form is not None and (dot_form.key_bias is not None or dot_form.query_bias is not None):
        return unless_compiling(
            lambda: Message("the kernel reads plain inner products, but the score adds a bias to every key")
        )
    return dot_refusal(mechanism, q, k)


def _linear_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if mechanism.mask.is_causal and q.shape[-2] != k.shape[-2]:
        return unless_compiling(
            lambda: Message("causal sums need as many queries as keys, got {m} and {n}", m=q.shape[-2], n=k.shape[-2])
        )
    return _bias_refusal(mechanism, q, k)


def _position_bias_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    i, _ = query_key_positions(1, k.shape[-2], q.device)
    return "" if mechanism.position.bias(i, i) is None else pair_bias_refusal()


def _laplace_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    return width_refusal(q.shape[-1]) or _position_bias_refusal(mechanism, q, k)


def _additive_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    if refusal := _position_bias_refusal(mechanism, q, k):
        return refusal
    hidden_form = _single_pair_units(mechanism, q, k)
    n_units = 0 if hidden_form is None else hidden_form[0].shape[-1]
    if n_units <= MAX_UNITS:
        return ""
    return unless_compiling(
        lambda: Message(
            "the kernel of additive scores reads at most {most} hidden units, got {units}",
            most=MAX_UNITS,
            units=n_units,
        )
    )


LAPLACE_KERNEL = KernelSpec(
    Message("the score is a distance, computed from squared norms and an inner product"), _run_laplace, _laplace_refusal
)
ADDITIVE_KERNEL = KernelSpec(Message("the score is a sum over hidden units"), _run_additive, _additive_refusal)
NORMALISER_KERNELS = {
    "sigmoid": KernelSpec(Message("every weight is the sigmoid of its score"), _run_pointwise, dot_refusal),
    "relu": KernelSpec(Message("every weight is the positive part of its score"), _run_pointwise, dot_refusal),
    "entmax": KernelSpec(Message("passes over the keys find the threshold of every row"), _run_entmax, dot_refusal),
    "sinkhorn": KernelSpec(
        Message("passes over tiles find the potentials of rows and columns"), _run_sinkhorn, _bias_refusal
    ),
    "linear": KernelSpec(
        Message("weights are inner products of features, so sums over keys replace them"), _run_linear, _linear_refusal
    ),
}
"""Kernels by the name in `normaliser.gpu_kernel`."""


def statistics_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why no kernel computes the statistics of these weights, or \"\" if one does."""
    fused = mechanism.normaliser.fused_softmax
    if fused is None or fused.dropout:
        return unless_compiling(lambda: not_softmax(mechanism))
    refusal = tensor_refusal(q, k) or mask_refusal(mechanism, q, k) or dot_refusal(mechanism, q, k)
    refusal = refusal or _row_constant_refusal(mechanism, q, k)
    return refusal if refusal or HAS_TRITON else unless_compiling(_no_triton)


def kernel_statistics(mechanism: Definition, q: Tensor, k: Tensor, lengths: Tensor | None) -> dict[str, Tensor]:
    """The statistics of softmax weights, in two passes of a kernel."""
    from rheoscope.attention.lower.kernels.weights import softmax_statistics

    fused, sink = mechanism.normaliser.fused_softmax, None
    assert fused is not None, "statistics_refusal has checked the softmax"
    if fused.sink is not None:
        sink = q.new_zeros(q.shape[1]).float() + fused.sink
    return softmax_statistics(dot_inputs(mechanism, q, k), mechanism.mask.is_causal, sink, lengths)._asdict()


def _row_constant_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    dot_form = mechanism.score.dot_form(q[:1, :, :1], repeat_kv_heads(k[:1, :, :1], q.shape[1]))
    matters = dot_form is not None and dot_form.query_bias is not None and not mechanism.normaliser.is_shift_invariant
    if not matters:
        return ""
    return unless_compiling(lambda: Message("a sink depends on the row constant of the score, which the kernel omits"))
