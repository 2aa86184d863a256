"""Softmax attention of a score that is a function of a dot product, by torch's flex_attention on a GPU.

    score      soft-cap, polynomial and Laplace kernels: the function is applied to every score inside the kernel
    position   biases of a pair (T5's buckets, ALiBi both ways): the same
    mask       any that answers pair by pair: blocks of which no pair is permitted are left out
    sink       afterwards, by the log-sum-exp

Squared distances become columns (`rows`), so their gradients are the kernel's own and nothing is added up by atomics.
A learned bias is: its gradient is right, and slow. Every plan is compiled once, in seconds, so short texts are left to
others. On a CPU flex_attention has no backward pass.
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
from rheoscope.attention.lower.cudnn import HALF_DTYPES, position_and_map, sink_score
from rheoscope.attention.lower.kernel_rows import RowLayout, pack_rows, pad_columns
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.lower.merged_softmax import join_near_and_far
from rheoscope.attention.mask import Causal, Mask, Window
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.attention.position import PairBias

TILE_OPTIONS: tuple[Any, ...] = (None, {"num_stages": 2}, {"num_stages": 1, "BLOCK_M": 64, "BLOCK_N": 64})
"""How flex_attention tiles: as it likes, with fewer tiles loaded ahead (beside a table of biases), or with small ones."""
MIN_REACH_MULTIPLE = 8
"""How many times its reach a bias may be from its end for it to be worth two kernels."""
MASK_BLOCK = 128
"""Queries and keys of a block that a mask leaves out as a whole."""


def try_lower(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> LoweredCall | str:
    refusal = input_refusal(q) or mechanism_refusal(mechanism, q, k)
    if refusal:
        return refusal
    n_scores = q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2]
    is_small = n_scores <= unblocked_numel(q.device)
    drawback = (
        f"all scores together are {n_scores * 4 / 2**20:.3g} MiB, sooner done than compiled for" if is_small else ""
    )
    return LoweredCall(explain_lowering(mechanism), partial(run, kernel=CompiledKernel(flex_outputs)), drawback)


def input_refusal(q: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF_DTYPES:
        return f"flex_attention is for half precision on a GPU, these are {str(q.dtype).removeprefix('torch.')} on {q.device.type}"
    if torch.compiler.is_compiling():
        return "flex_attention is compiled by itself, not inside another graph"
    return ""


def mechanism_refusal(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the mechanism has no form for one pair, wherever the tensors are."""
    if mechanism.normaliser.fused_softmax is None or mechanism.normaliser.fused_softmax.dropout:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not softmax"
    pointwise = mechanism.score.pointwise_form(k.shape[-1])
    if pointwise is None or pointwise.dot_maps.scale <= 0:
        return f"the score {type(mechanism.score).__name__} is no function of a dot product with a positive scale"
    if pointwise.dot_maps.norm_coefficient and not (
        pointwise.dot_maps.phi.is_linear and pointwise.dot_maps.psi.is_linear
    ):
        return "tokens that are mapped and rounded would move large distances by more than the kernel's own error"
    i, _ = query_key_positions(
        1, k.shape[-2], q.device
    )  # the last token: a table of m < n rows has no row for the first
    has_bias = mechanism.position.bias(i, i) is not None
    if has_bias and mechanism.position.pair_bias(q.shape[-2], k.shape[-2]) is None:
        return f"the position {type(mechanism.position).__name__} has no bias pair by pair"
    if mechanism.mask.pair_mask is None:
        return f"the mask {type(mechanism.mask).__name__} does not answer pair by pair"
    return ""


def explain_lowering(mechanism: Definition) -> str:
    name = type(mechanism.score).__name__
    return (
        f"the score {name}, bias and mask are functions of one pair, so flex_attention computes them inside its kernel"
    )


class CompiledKernel:
    """flex_attention compiled for one plan, at the first call; torch counts what it compiles by function, so each has its own."""

    def __init__(self, function: Any) -> None:
        self.function, self.tile_options = function, list(TILE_OPTIONS)

    @cached_property
    def compiled_function(self) -> Any:
        gpu_math.register_lowerings()
        return torch.compile(FunctionType(self.function.__code__.replace(), self.function.__globals__), dynamic=False)

    def run_with_fitting_tiles(self, *inputs: Any) -> Any:
        """With the first tiles that fit the machine."""
        while True:
            try:
                return self.compiled_function(*inputs, self.tile_options[0])
            except RuntimeError as error:
                if "out of resource" not in str(error) or len(self.tile_options) == 1:
                    raise
                del self.tile_options[0], self.compiled_function

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        """One graph, compiled with its backward pass: without gradients another one would have to be."""
        with torch.enable_grad():
            inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
            out, lse = self.run_with_fitting_tiles(*inputs, *settings)
        needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        return (out, lse) if needs_grad else (out.detach(), lse.detach())


def flex_outputs(
    q: Tensor, k: Tensor, v: Tensor, scale: float, score_mod: Any, allowed_blocks: Any, options: Any = None
) -> Any:
    """Outputs and log-sum-exp of all keys that blocks permit."""
    out, aux = flex_attention(
        q, k, v, score_mod, allowed_blocks, scale, kernel_options=options, return_aux=AuxRequest(lse=True)
    )
    return out, aux.lse


def bias_ends_early(mechanism: Definition, pointwise: PointwiseForm, q: Tensor, k: Tensor) -> bool:
    """Whether a bias ends long before the text does: far keys are then plain dot products, and run on cuDNN's kernel."""
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
    assert pointwise is not None, "offer() has seen a form"
    assert fused is not None, "offer() has seen a softmax"
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
    """Near keys with their biases, looked up one by one, and far ones, to all of which the last bias is added."""
    reach = mechanism.position.bias_horizon
    assert reach is not None, "ends() has seen it"
    near_blocks, bias = block_mask(near_mask(reach), q, k), pair_bias(mechanism, q, k)
    assert bias is not None, "it has a reach"
    out, lse = kernel(q, k, v, pointwise.dot_maps.scale, score_modifier(pointwise, bias, 0), near_blocks)
    far_bias = bias(0, torch.arange(q.shape[1], device=q.device), reach, 0)
    return join_near_and_far(out, lse, q, k, v, far_bias, pointwise.dot_maps.scale, reach)


def pair_bias(mechanism: Definition, q: Tensor, k: Tensor) -> PairBias | None:
    return None if mechanism.position.is_trivial else mechanism.position.pair_bias(q.shape[-2], k.shape[-2])


@cache
def near_mask(reach: int) -> Mask:
    """The past that is nearer than `reach`."""
    return Causal() & Window(reach)


def folded_rows(mechanism: Definition, pointwise: PointwiseForm, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of queries and keys; a constant of the row is left out only where softmax is blind to it."""
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
    """What happens to a score before softmax, of the query that stands `ahead` of its number; None where nothing does."""
    score_function = pointwise.function
    if score_function is None and bias is None:
        return None

    def modify(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if score_function is None else score_function(s)
        return s if bias is None else s + bias(b, h, i + query_offset, j)

    return modify


MAX_BLOCK_MASKS = 16
BLOCK_MASK_CACHE: WeakKeyDictionary[Mask, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()
"""Blocks of the masks that are in use: made once for each shape of a call."""


def block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    """Which blocks a mask permits in part and which as a whole, as flex_attention reads them."""
    cache = BLOCK_MASK_CACHE.setdefault(mask, {})
    key = q.shape[:3], k.shape[2], q.device
    if key not in cache:
        if len(cache) >= MAX_BLOCK_MASKS:
            cache.clear()
        cache[key] = _make_block_mask(mask, q, k)
    return cache[key]


def _make_block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    m, n, pair = q.shape[-2], k.shape[-2], mask.pair_mask
    assert pair is not None, "offer() has seen it"
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
    """For every block whether some pair of it is permitted, and whether every one is, (b, h, rows, columns)."""
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
    """How many blocks of each row are in the table, and which, those first."""
    return blocks.sum(-1, dtype=torch.int32), blocks.int().argsort(dim=-1, descending=True, stable=True).int()
