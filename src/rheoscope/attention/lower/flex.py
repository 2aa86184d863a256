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
from rheoscope.attention.definition import Definition, for_every_head, positions
from rheoscope.attention.dot_form import Pointwise
from rheoscope.attention.lower import cudnn
from rheoscope.attention.lower.block_size import numbers_at_once, numbers_in_one_piece
from rheoscope.attention.lower.cudnn import HALF, height, placed
from rheoscope.attention.lower.kernel_rows import Made, rows, widened
from rheoscope.attention.lower.lowering import Offer
from rheoscope.attention.lower.merged_softmax import joined
from rheoscope.attention.mask import Causal, Mask, Window
from rheoscope.attention.parameters import tensors
from rheoscope.attention.position import PairBias

TILES: tuple[Any, ...] = (None, {"num_stages": 2}, {"num_stages": 1, "BLOCK_M": 64, "BLOCK_N": 64})
"""How flex_attention tiles: as it likes, with fewer tiles loaded ahead (beside a table of biases), or with small ones."""
LONG = 8
"""How many times its reach a bias may be from its end for it to be worth two kernels."""
BLOCK = 128
"""Queries and keys of a block that a mask leaves out as a whole."""


def offer(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> Offer | str:
    refusal = refuse_inputs(q) or refuse(mechanism, q, k)
    if refusal:
        return refusal
    scores = q.shape[0] * q.shape[1] * q.shape[-2] * k.shape[-2]
    small = scores <= numbers_in_one_piece(q.device)
    reluctant = f"all scores together are {scores * 4 / 2**20:.3g} MiB, sooner done than compiled for" if small else ""
    return Offer(explain(mechanism), partial(run, kernel=Kernel(at_once)), reluctant)


def refuse_inputs(q: Tensor) -> str:
    if q.device.type != "cuda" or q.dtype not in HALF:
        return f"flex_attention is for half precision on a GPU, these are {str(q.dtype).removeprefix('torch.')} on {q.device.type}"
    if torch.compiler.is_compiling():
        return "flex_attention is compiled by itself, not inside another graph"
    return ""


def refuse(mechanism: Definition, q: Tensor, k: Tensor) -> str:
    """Why the mechanism has no form for one pair, wherever the tensors are."""
    if mechanism.normaliser.fused is None or mechanism.normaliser.fused.dropped:
        return f"its normaliser is {type(mechanism.normaliser).__name__}, not softmax"
    form = mechanism.score.pointwise(k.shape[-1])
    if form is None or form.fold.scale <= 0:
        return f"the score {type(mechanism.score).__name__} is no function of a dot product with a positive scale"
    if form.fold.square and not (form.fold.phi.linear and form.fold.psi.linear):
        return "tokens that are mapped and rounded would move large distances by more than the kernel's own error"
    i, _ = positions(1, k.shape[-2], q.device)  # the last token: a table of m < n rows has no row for the first
    biased = mechanism.position.bias(i, i) is not None
    if biased and mechanism.position.pair_bias(q.shape[-2], k.shape[-2]) is None:
        return f"the position {type(mechanism.position).__name__} has no bias pair by pair"
    if mechanism.mask.pair is None:
        return f"the mask {type(mechanism.mask).__name__} does not answer pair by pair"
    return ""


def explain(mechanism: Definition) -> str:
    name = type(mechanism.score).__name__
    return (
        f"the score {name}, bias and mask are functions of one pair, so flex_attention computes them inside its kernel"
    )


class Kernel:
    """flex_attention compiled for one plan, at the first call; torch counts what it compiles by function, so each has its own."""

    def __init__(self, how: Any) -> None:
        self.how, self.tiles = how, list(TILES)

    @cached_property
    def compiled(self) -> Any:
        gpu_math.tell_compiler()
        return torch.compile(FunctionType(self.how.__code__.replace(), self.how.__globals__), dynamic=False)

    def fitting(self, *inputs: Any) -> Any:
        """With the first tiles that fit the machine."""
        while True:
            try:
                return self.compiled(*inputs, self.tiles[0])
            except RuntimeError as error:
                if "out of resource" not in str(error) or len(self.tiles) == 1:
                    raise
                del self.tiles[0], self.compiled

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        """One graph, compiled with its backward pass: without gradients another one would have to be."""
        with torch.enable_grad():
            rows = [x if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v)]
            out, lse = self.fitting(*rows, *how)
        graded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        return (out, lse) if graded else (out.detach(), lse.detach())


def at_once(q: Tensor, k: Tensor, v: Tensor, scale: float, modify: Any, blocks: Any, options: Any = None) -> Any:
    """Outputs and log-sum-exp of all keys that blocks permit."""
    out, aux = flex_attention(q, k, v, modify, blocks, scale, kernel_options=options, return_aux=AuxRequest(lse=True))
    return out, aux.lse


def ends(mechanism: Definition, form: Pointwise, q: Tensor, k: Tensor) -> bool:
    """Whether a bias ends long before the text does: far keys are then plain dot products, and run on cuDNN's kernel."""
    reach, (m, n) = mechanism.position.reach, (q.shape[-2], k.shape[-2])
    far = reach is not None and mechanism.mask.is_causal and m == n > LONG * reach
    fused = mechanism.normaliser.fused
    return far and form.of is None and fused is not None and fused.bare and not cudnn.refuse_inputs(q, k)


def run(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor, kernel: Any) -> Tensor:
    form, fused = mechanism.score.pointwise(k.shape[-1]), mechanism.normaliser.fused
    assert form is not None, "offer() has seen a form"
    assert fused is not None, "offer() has seen a softmax"
    k, v = for_every_head(k, q.shape[1]), for_every_head(v, q.shape[1])
    queries, keys = sides(mechanism, form, q, k)
    values = mechanism.value.rounded(v)
    width, values = values.shape[-1], widened(values, 16)
    if ends(mechanism, form, q, k):
        out, lse = in_two(mechanism, form, queries, keys, values, kernel)
    else:
        mask, bias = mechanism.mask, pair_bias(mechanism, q, k)
        blocks = None if mask.forbids_nothing else block_mask(mask, q, k)
        modify = modification(form, bias, k.shape[-2] - q.shape[-2])
        out, lse = kernel(queries, keys, values, form.fold.scale, modify, blocks)
    out = out[..., :width]
    if fused.sink is None:
        return out
    return (out * (lse - height(fused.sink, q.device).reshape(-1, 1)).sigmoid()[..., None]).to(q.dtype)


def in_two(
    mechanism: Definition, form: Pointwise, q: Tensor, k: Tensor, v: Tensor, kernel: Any
) -> tuple[Tensor, Tensor]:
    """Near keys with their biases, looked up one by one, and far ones, to all of which the last bias is added."""
    reach = mechanism.position.reach
    assert reach is not None, "ends() has seen it"
    near, bias = block_mask(nearby(reach), q, k), pair_bias(mechanism, q, k)
    assert bias is not None, "it has a reach"
    out, lse = kernel(q, k, v, form.fold.scale, modification(form, bias, 0), near)
    shift = bias(0, torch.arange(q.shape[1], device=q.device), reach, 0)
    return joined(out, lse, q, k, v, shift, form.fold.scale, reach)


def pair_bias(mechanism: Definition, q: Tensor, k: Tensor) -> PairBias | None:
    return None if mechanism.position.nowhere else mechanism.position.pair_bias(q.shape[-2], k.shape[-2])


@cache
def nearby(reach: int) -> Mask:
    """The past that is nearer than `reach`."""
    return Causal() & Window(reach)


def sides(mechanism: Definition, form: Pointwise, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of queries and keys; a constant of the row is left out only where softmax is blind to it."""
    fold, (i, j) = form.fold, positions(q.shape[-2], k.shape[-2], q.device)
    columns = 0 if not fold.square else 1 if form.of is None and mechanism.normaliser.shift_invariant else 2
    made = [
        Made(phi.unit, columns, keys, fold.square, fold.scale) for phi, keys in ((fold.phi, False), (fold.psi, True))
    ]
    a, b = placed(mechanism.position, fold.phi, q, i), placed(mechanism.position, fold.psi, k, j)
    a, b = rows(a, None, made[0], q.dtype), rows(b, None, made[1], k.dtype)
    return widened(a, 16), widened(b, 16)


def modification(form: Pointwise, bias: PairBias | None, ahead: int) -> Any:
    """What happens to a score before softmax, of the query that stands `ahead` of its number; None where nothing does."""
    of = form.of
    if of is None and bias is None:
        return None

    def modify(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if of is None else of(s)
        return s if bias is None else s + bias(b, h, i + ahead, j)

    return modify


MOST = 16
MASKS: WeakKeyDictionary[Mask, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()
"""Blocks of the masks that are in use: made once for each shape of a call."""


def block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    """Which blocks a mask permits in part and which as a whole, as flex_attention reads them."""
    made = MASKS.setdefault(mask, {})
    key = q.shape[:3], k.shape[2], q.device
    if key not in made:
        if len(made) >= MOST:
            made.clear()
        made[key] = _block_mask(mask, q, k)
    return made[key]


def _block_mask(mask: Mask, q: Tensor, k: Tensor) -> Any:
    m, n, pair = q.shape[-2], k.shape[-2], mask.pair
    assert pair is not None, "offer() has seen it"
    some, every = block_table(mask, m, n, q.device, (q.shape[0], q.shape[1]) if tensors(mask) else (1, 1))
    if not mask.by_head:
        some, every = some[:, :1], every[:, :1]
    partly = _listed(some & ~every), _listed(every)
    return BlockMask.from_kv_blocks(
        *partly[0],
        *partly[1],
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, i, j: pair(b, h, i + (n - m), j),
        seq_lengths=(m, n),
    )


def block_table(mask: Mask, m: int, n: int, device: torch.device, lead: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """For every block whether some pair of it is permitted, and whether every one is, (b, h, rows, columns)."""
    i, j = positions(m, n, device)
    at_once = max(1, numbers_at_once(device) // (lead[0] * lead[1] * n * BLOCK)) * BLOCK
    some, every = [], []
    for low in range(0, m, at_once):
        part = mask(i[low : low + at_once], j)
        part = part.expand(*lead, *part.shape[-2:])
        part = pad(part, (0, -n % BLOCK, 0, -part.shape[-2] % BLOCK))
        part = part.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
        some.append(part.any(-1).any(-2))
        every.append(part.all(-1).all(-2))
    return torch.cat(some, -2), torch.cat(every, -2)


def _listed(table: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are in the table, and which, those first."""
    return table.sum(-1, dtype=torch.int32), table.int().argsort(dim=-1, descending=True, stable=True).int()
