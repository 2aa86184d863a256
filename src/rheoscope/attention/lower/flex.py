"""Softmax attention with a pointwise function of a dot product, on torch's flex_attention on a GPU.

    score      soft cap, polynomial and Laplace kernels: the kernel applies the function to every score
    position   pair biases (T5's buckets, ALiBi in both directions): the kernel adds them to every score
    mask       any mask with a pairwise form: blocks without an allowed pair are skipped
    sink       after the kernel, from its log-sum-exp

Squared distances become columns (`kernel_rows.py`), so the kernel computes their gradients without atomic additions.
The gradient of a learned bias uses atomic additions, which are correct but slow. Each plan is compiled once, which takes
seconds, so short texts use other lowerings. On a CPU flex_attention has no backward pass.
"""

from functools import cache, cached_property, partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.functional import pad

from rheoscope.attention import gpu_math
from rheoscope.attention.definition import Definition, query_key_positions, repeat_kv_heads
from rheoscope.attention.dot_form import PointwiseForm
from rheoscope.attention.lower import cudnn
from rheoscope.attention.lower.block_size import block_numel, unblocked_numel
from rheoscope.attention.lower.cudnn import HALF_DTYPES, dtype_name, position_and_map, rounding_refusal, sink_score
from rheoscope.attention.lower.kernel_rows import pack_rows, pad_columns
from rheoscope.attention.lower.lowering import LoweredCall, unless_compiling
from rheoscope.attention.lower.merged_softmax import join_near_and_far
from rheoscope.attention.lower.row_layout import RowLayout
from rheoscope.attention.lower.sdpa import not_softmax
from rheoscope.attention.mask import Causal, Mask, Window
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.attention.position import PairBias
from rheoscope.messages.message import Message

TILE_OPTIONS: tuple[Any, ...] = (None, {"num_stages": 2}, {"num_stages": 1, "BLOCK_M": 64, "BLOCK_N": 64})
"""Tile options of flex_attention: its default, fewer pipeline stages (with a bias table), and small tiles."""
MIN_REACH_MULTIPLE = 8
"""The length of a text, in multiples of the bias's reach, above which two kernels are faster than one."""
MASK_BLOCK = 128
"""Queries and keys in a block of a block mask."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    refusal = input_refusal(q) or mechanism_refusal(mechanism, q, k)
    if refusal:
        return refusal
    n_scores = q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2]
    is_small = n_scores <= unblocked_numel(q.device)
    drawback = unless_compiling(
        lambda: Message("all scores take {size:.3g} MiB, which is faster than compiling", size=n_scores * 4 / 2**20)
    )
    run_compiled = partial(run, kernel=CompiledKernel(flex_outputs))
    return LoweredCall(explain_lowering(mechanism), run_compiled, drawback if is_small else "")


def input_refusal(q: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF_DTYPES:
        return unless_compiling(
            lambda: Message(
                "flex_attention needs half precision on a GPU, got {dtype} on {device}",
                dtype=dtype_name(q.dtype),
                device=q.device.type,
            )
        )
    if torch.compiler.is_compiling():
        return "flex_attention cannot be compiled inside another graph"
    return ""


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the mechanism has no pairwise form, on any device."""
    if mechanism.normaliser.fused_softmax is None or mechanism.normaliser.fused_softmax.dropout:
        return unless_compiling(lambda: not_softmax(mechanism))
    pointwise = mechanism.score.pointwise_form(k.shape[-1])
    if pointwise is None or pointwise.dot_maps.scale <= 0:
        return unless_compiling(
            lambda: Message(
                "the score {score} is not a function of a dot product with a positive scale",
                score=type(mechanism.score).__name__,
            )
        )
    if pointwise.dot_maps.norm_coefficient and not (
        pointwise.dot_maps.phi.is_linear and pointwise.dot_maps.psi.is_linear
    ):
        return unless_compiling(rounding_refusal)
    i, _ = query_key_positions(1, k.shape[-2], q.device)  # the last token, since a table of m < n rows lacks the first
    has_bias = mechanism.position.bias(i, i) is not None
    if has_bias and mechanism.position.pair_bias(q.shape[-2], k.shape[-2]) is None:
        return unless_compiling(
            lambda: Message("the position {position} has no pairwise bias", position=type(mechanism.position).__name__)
        )
    if mechanism.mask.pair_mask is None:
        return unless_compiling(
            lambda: Message("the mask {mask} has no pairwise form", mask=type(mechanism.mask).__name__)
        )
    return ""


def explain_lowering(mechanism: Definition) -> str:
    return unless_compiling(
        lambda: Message(
            "the score {score}, the bias and the mask are pairwise functions, which flex_attention computes in its kernel",
            score=type(mechanism.score).__name__,
        )
    )


class CompiledKernel:
    """flex_attention compiled for one plan at its first call.

    torch limits recompilations per function, so each plan has its own copy of the function.
    """

    def __init__(self, function: Any) -> None:
        self.function, self.tile_options = function, list(TILE_OPTIONS)

    @cached_property
    def compiled_function(self) -> Any:
        gpu_math.register_lowerings()
        return torch.compile(FunctionType(self.function.__code__.replace(), self.function.__globals__), dynamic=False)

    def run_with_fitting_tiles(self, *inputs: Any) -> Any:
        """Call the function with the first tiles that fit the machine."""
        while True:
            try:
                return self.compiled_function(*inputs, self.tile_options[0])
            except RuntimeError as error:
                if "out of resource" not in str(error) or len(self.tile_options) == 1:
                    raise
                del self.tile_options[0], self.compiled_function

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        """Always compile with the backward pass, so that one graph serves calls with and without gradients."""
        with torch.enable_grad():
            inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
            out, lse = self.run_with_fitting_tiles(*inputs, *settings)
        needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        return (out, lse) if needs_grad else (out.detach(), lse.detach())


def flex_outputs(
    q: Tensor, k: Tensor, v: Tensor, scale: float, score_mod: Any, allowed_blocks: Any, options: Any = None
) -> Any:
    """Outputs and log-sum-exp over the keys of the allowed blocks."""
    out, aux = flex_attention(
        q, k, v, score_mod, allowed_blocks, scale, kernel_options=options, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse


def bias_ends_early(mechanism: Definition, pointwise: PointwiseForm, q: Tensor, k: Tensor) -> bool:
    """Whether the bias is constant for most keys. These far keys are plain dot products and run on cuDNN's kernel."""
    reach, (m, n) = mechanism.position.bias_horizon, (q.shape[-2], k.shape[-2])
    is_long = reach is not None and mechanism.mask.is_causal and m == n > MIN_REACH_MULTIPLE * reach
    fused = mechanism.normaliser.fused_softmax
    return (
        is_long
        and pointwise.function is None
        and fused is not None
        and fused.is_plain
        and not cudnn.input_refusal(q, k)
    )


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, kernel: Any) -> Tensor:
    pointwise, fused = mechanism.score.pointwise_form(k.shape[-1]), mechanism.normaliser.fused_softmax
    assert pointwise is not None, "try_lower has checked the form"
    assert fused is not None, "try_lower has checked the softmax"
    k, v = repeat_kv_heads(k, q.shape[1]), repeat_kv_heads(v, q.shape[1])
    queries, keys = folded_rows(mechanism, pointwise, q, k)
    values = mechanism.value.map_in_float32(v)
    width, values = values.shape[-1], pad_columns(values, 16)
    if bias_ends_early(mechanism, pointwise, q, k):
        out, lse = near_and_far_outputs(mechanism, pointwise, queries, keys, values, kernel)
    else:
        mask, bias = mechanism.mask, pair_bias(mechanism, q, k)
        allowed_blocks = None if mask.allows_all else block_mask(mask, q, k)
        score_mod = score_modifier(pointwise, bias, k.shape[-2] - q.shape[-2])
        out, lse = kernel(queries, keys, values, pointwise.dot_maps.scale, score_mod, allowed_blocks)
    out = out[..., :width]
    if fused.sink is None:
        return out
    return (out * (lse - sink_score(fused.sink, q.device).reshape(-1, 1)).sigmoid()[..., None]).to(q.dtype)


def near_and_far_outputs(
    mechanism: Definition, pointwise: PointwiseForm, q: Tensor, k: Tensor, v: Tensor, kernel: Any
) -> tuple[Tensor, Tensor]:
    """Attention to near keys with pairwise biases and to far keys with the constant last bias."""
    reach = mechanism.position.bias_horizon
    assert reach is not None, "bias_ends_early has checked it"
    near_blocks, bias = block_mask(near_mask(reach), q, k), pair_bias(mechanism, q, k)
    assert bias is not None, "a bias with a horizon exists"
    out, lse = kernel(q, k, v, pointwise.dot_maps.scale, score_modifier(pointwise, bias, 0), near_blocks)
    far_bias = bias(0, torch.arange(q.shape[1], device=q.device), reach, 0)
    return join_near_and_far(out, lse, q, k, v, far_bias, pointwise.dot_maps.scale, reach)


def pair_bias(mechanism: Definition, q: Tensor, k: Tensor) -> PairBias | None:
    return None if mechanism.position.is_trivial else mechanism.position.pair_bias(q.shape[-2], k.shape[-2])


@cache
def near_mask(reach: int) -> Mask:
    """The past tokens nearer than `reach`."""
    return Causal() & Window(reach)


def folded_rows(mechanism: Definition, pointwise: PointwiseForm, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of queries and keys. The row constant is omitted only if softmax ignores it."""
    fold, (i, j) = pointwise.dot_maps, query_key_positions(q.shape[-2], k.shape[-2], q.device)
    bias_groups = (
        0
        if not fold.norm_coefficient
        else 1
        if pointwise.function is None and mechanism.normaliser.is_shift_invariant
        else 2
    )
    layouts = [
        RowLayout(phi.is_unit_norm, bias_groups, is_key, fold.norm_coefficient, fold.scale)
        for phi, is_key in ((fold.phi, False), (fold.psi, True))
    ]
    query_rows, key_rows = (
        position_and_map(mechanism.position, fold.phi, q, i),
        position_and_map(mechanism.position, fold.psi, k, j),
    )
    query_rows, key_rows = (
        pack_rows(query_rows, None, layouts[0], q.dtype),
        pack_rows(key_rows, None, layouts[1], k.dtype),
    )
    return pad_columns(query_rows, 16), pad_columns(key_rows, 16)


def score_modifier(pointwise: PointwiseForm, bias: PairBias | None, query_offset: int) -> Any:
    """The function applied to each score before softmax, or None. Query i has the position i + query_offset."""
    score_function = pointwise.function
    if score_function is None and bias is None:
        return None

    def modify(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if score_function is None else score_function(s)
        return s if bias is None else s + bias(b, h, i + query_offset, j)

    return modify


MAX_BLOCK_MASKS = 16
BLOCK_MASK_CACHE: WeakKeyDictionary[Mask, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()
"""The block masks of each mask in use, created once for each shape of a call."""


def block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    """The blocks that a mask allows in part and in full, in the format of flex_attention."""
    cache = BLOCK_MASK_CACHE.setdefault(mask, {})
    key = q.shape[:3], k.shape[2], q.device
    if key not in cache:
        if len(cache) >= MAX_BLOCK_MASKS:
            cache.clear()
        cache[key] = _make_block_mask(mask, q, k)
    return cache[key]


def _make_block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    m, n, pair = q.shape[-2], k.shape[-2], mask.pair_mask
    assert pair is not None, "try_lower has checked it"
    any_allowed, all_allowed = block_coverage(
        mask, m, n, q.device, (q.shape[0], q.shape[1]) if tensors_by_path(mask) else (1, 1)
    )
    if not mask.is_per_head:
        any_allowed, all_allowed = any_allowed[:, :1], all_allowed[:, :1]
    block_lists = _block_counts_and_order(any_allowed & ~all_allowed), _block_counts_and_order(all_allowed)
    return BlockMask.from_kv_blocks(
        *block_lists[0],
        *block_lists[1],
        BLOCK_SIZE=MASK_BLOCK,
        mask_mod=lambda b, h, i, j: pair(b, h, i + (n - m), j),
        seq_lengths=(m, n),
    )


def block_coverage(
    mask: Mask, m: int, n: int, device: torch.device, batch_and_heads: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """For every block, whether any pair is allowed and whether all are, with shape (b, h, rows, columns)."""
    i, j = query_key_positions(m, n, device)
    rows_per_chunk = (
        max(1, block_numel(device) // (batch_and_heads[0] * batch_and_heads[1] * n * MASK_BLOCK)) * MASK_BLOCK
    )
    any_allowed, all_allowed = [], []
    for start in range(0, m, rows_per_chunk):
        allowed = mask(i[start : start + rows_per_chunk], j)
        allowed = allowed.expand(*batch_and_heads, *allowed.shape[-2:])
        allowed = pad(allowed, (0, -n % MASK_BLOCK, 0, -allowed.shape[-2] % MASK_BLOCK))
        allowed = allowed.unflatten(-1, (-1, MASK_BLOCK)).unflatten(-3, (-1, MASK_BLOCK))
        any_allowed.append(allowed.any(-1).any(-2))
        all_allowed.append(allowed.all(-1).all(-2))
    return torch.cat(any_allowed, -2), torch.cat(all_allowed, -2)


def _block_counts_and_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of selected blocks in each row, and the block indices with the selected ones first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()
