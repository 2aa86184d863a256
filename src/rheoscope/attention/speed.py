"""How fast every mechanism runs on this machine, how exactly, and in how much memory, beside torch's fused dot-product attention.

Times are medians of rounds in which the mechanism and its peer take turns, so what slows the machine slows both. Errors are
against the reference in float64, as a multiple of the peer's own error on the same tokens, its scores as spread along a row as
those of the mechanism: the further scores lie apart, the more digits every kernel's gradient loses. A call that would take
too long is left out, and said to be.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from rheoscope.attention.definition import reference
from rheoscope.attention.mask import Causal, NoMask, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.attention.position import ALiBi, Buckets, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.attention.zoo import ZOO
from rheoscope.shapes import RheoscopeError

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Torch's kernels for dot products, the fastest of a Hopper GPU first."""

QUEUED = 0.006
"""Seconds of calls that a round queues on a GPU: launches of small ones hide behind each other, as they do in a model."""


@dataclass(frozen=True)
class Setting:
    """Where and on what tokens mechanisms are compared."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    heads: int = 8
    width: int = 64
    rounds: int = 7
    seconds: float = 1.0
    """What one row may take; a single call that takes longer is left out at greater lengths."""
    exact: int = 256
    """Tokens of the texts on which errors are measured."""
    limit: float = 200.0
    """Seconds for all rows together; those that come later are left out."""

    def texts(self, n: int) -> int:
        """As many as make 16 thousand tokens on a GPU; one on a CPU."""
        return 1 if self.device == "cpu" else max(1, 16384 // n)

    def tokens(self, b: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
        source = Generator(self.device).manual_seed(0)
        shape = b, self.heads, n, self.width
        q, k, v = (torch.randn(shape, generator=source, device=self.device).to(self.dtype) for _ in range(3))
        return q, k, v


CPU = Setting()
GPU = Setting("cuda", torch.bfloat16, heads=16, rounds=15, seconds=0.15, exact=512, limit=150.0)


@dataclass(frozen=True)
class Ratio:
    """Speed relative to the peer: the median over rounds, half the distance between the quartiles, the number of rounds."""

    value: float
    noise: float
    rounds: int


@dataclass(frozen=True, eq=False)
class Measured:
    """One mechanism at one length; None stands for what it does not have or what was left out, and `note` says why."""

    name: str
    tokens: int
    lowering: str
    why: str
    forward: Ratio | None = None
    both: Ratio | None = None
    error: float | None = None
    gradient_error: float | None = None
    peak_bytes: int | None = None
    first_call: float | None = None
    note: str = ""


def compared(heads: int, width: int) -> dict[str, Mechanism]:
    """Every mechanism of the zoo and what models put around scores, each under the causal mask where masks are allowed.

    >>> "soft-cap" in compared(8, 64), "metric" in compared(8, 64)
    (True, True)
    """
    every = {name: row(**({"dim": width} if row.needs_dim else {})) for name, row in ZOO.items()}
    every |= {"sinkhorn, 3 rounds": ZOO["sinkhorn"](rounds=3)}
    every = {name: m.under("causal") if m.domain.masked else m for name, m in every.items()}
    table = torch.randn(32, heads, generator=Generator().manual_seed(0))
    return every | {
        "soft-cap": Mechanism(SoftCap(Gram(), 20.0), mask=Causal()),
        "T5 bias": Mechanism(position=Buckets(table, bidirectional=False), mask=Causal()),
        "ALiBi": Mechanism(position=ALiBi(alibi_slopes(heads)), mask=Causal()),
        "window of 1024": Mechanism(mask=Causal() & Window(1024)),
    }


def measure(
    setting: Setting, lengths: Sequence[int], mechanisms: Mapping[str, Mechanism] | None = None
) -> Iterator[Measured]:
    """A row for every length and mechanism, as soon as it is measured: all mechanisms of the first length come first."""
    end, calls = time.perf_counter() + setting.limit, dict[str, float]()
    every = {name: _moved(f, setting) for name, f in (mechanisms or compared(setting.heads, setting.width)).items()}
    exactness = cache(lambda name, lowering: errors(every[name], lowering, setting))
    for n in lengths:
        for name, mechanism in every.items():
            row, pairs = _told(name, mechanism, n, setting), setting.texts(n) * n**2
            late, call = time.perf_counter() > end, calls.get(name, 0.0) * pairs
            if late or call > 4 * setting.seconds:
                note = f"the {setting.limit:.0f} s for all are over" if late else f"about {call:.2g} s a call"
                yield replace(row, note=f"left out: {note}")
                continue
            try:
                row, call = one(row, mechanism, setting)
                calls[name] = call / pairs
                error, gradient_error = exactness(name, row.lowering)
                yield replace(row, error=error, gradient_error=gradient_error)
            except (
                RuntimeError,
                RheoscopeError,
            ) as failure:  # no memory, or a kernel that torch cannot compile for this machine
                yield replace(row, note=f"failed: {str(failure).splitlines()[0]}")


def _moved(mechanism: Mechanism, setting: Setting) -> Mechanism:
    return with_tensors(mechanism, {at: x.to(setting.device) for at, x in tensors(mechanism).items()})


def one(row: Measured, mechanism: Mechanism, setting: Setting) -> tuple[Measured, float]:
    """The row with its times and memory, and the seconds of a call; of one that is long no more than those."""
    inputs = setting.tokens(setting.texts(row.tokens), row.tokens)
    fused, ours, graded = peer(mechanism, setting), mechanism.attend, mechanism.domain.differentiable
    start = time.perf_counter()
    call = _warm(ours, inputs, setting)
    row = replace(row, first_call=time.perf_counter() - start)
    if call > 4 * setting.seconds:
        return replace(row, note=f"no rounds: {call:.2g} s a call"), call
    forward = beside(fused, ours, inputs, False, setting)
    both = beside(fused, ours, inputs, True, setting) if graded else None
    peak = _peak(ours, inputs, graded) if setting.device == "cuda" else None
    return replace(row, forward=forward, both=both, peak_bytes=peak), call


def _told(name: str, mechanism: Mechanism, n: int, setting: Setting) -> Measured:
    q = torch.empty(setting.texts(n), setting.heads, n, setting.width, dtype=setting.dtype, device=setting.device)
    with torch.no_grad():
        choice = mechanism.explain(q, q, q)
    return Measured(name, n, choice.name, choice.why)


def peer(mechanism: Mechanism, setting: Setting, scale: float | None = None) -> Run:
    """Torch's fused dot-product attention, causal where the mechanism takes a mask; scores divided by √d unless said."""
    causal, gpu = mechanism.domain.masked, setting.device == "cuda"

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(FUSED, set_priority=True) if gpu else nullcontext():
            return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    return fused


def _warm(run: Run, inputs: tuple[Tensor, ...], setting: Setting) -> float:
    """Seconds of the second call without gradients: the first may compile."""
    with torch.no_grad():
        run(*inputs)
        _wait(setting.device)
        start = time.perf_counter()
        run(*inputs)
        _wait(setting.device)
    return time.perf_counter() - start


def beside(fused: Run, ours: Run, inputs: tuple[Tensor, ...], backward: bool, setting: Setting) -> Ratio:
    """Speed of ours relative to the peer, both in every round; fewer rounds where a call is long."""
    leaves = [x.detach().requires_grad_(backward) for x in inputs]
    g = torch.ones_like(inputs[2])

    def call(run: Run) -> Callable[[], object]:
        if backward:
            return lambda: torch.autograd.grad(run(*leaves), leaves, g, allow_unused=True)
        return lambda: run(*leaves)

    with nullcontext() if backward else torch.no_grad():
        for run in (fused, ours):
            call(run)()  # compiles
        cost = sum(_seconds(call(run), 1, setting.device) for run in (fused, ours))
        times = 1 if setting.device == "cpu" else max(1, int(QUEUED / cost))
        rounds = max(1, min(setting.rounds, int(setting.seconds / cost / times)))
        pairs = [[_seconds(call(run), times, setting.device) for run in (fused, ours)] for _ in range(rounds)]
    ratios = [a / b for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    return Ratio(middle, (high - low) / 2, rounds)


def _seconds(call: Callable[[], object], times: int, device: str) -> float:
    """Of `times` calls one after another; on a GPU by its own clock, so that what is queued waits for nothing."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def errors(mechanism: Mechanism, lowering: str, setting: Setting) -> tuple[float, float | None]:
    """Off float64 by how many times the peer's own error: outputs, and the worst gradient of q, k and v."""
    inputs = setting.tokens(1, setting.exact)
    scale = spread(mechanism, *inputs[:2]) / spread(Mechanism(Gram(scale=1.0)), *inputs[:2])
    plain = Mechanism(Gram(scale=scale), mask=Causal() if mechanism.domain.masked else NoMask())
    graded = mechanism.domain.differentiable
    ours = _errors(mechanism, lambda q, k, v: mechanism.attend(q, k, v, lowering=lowering), inputs, graded)
    theirs = _errors(plain, peer(mechanism, setting, scale), inputs, graded)
    return ours[0] / theirs[0], max(ours[1:]) / max(theirs[1:]) if graded else None


def spread(mechanism: Mechanism, q: Tensor, k: Tensor) -> float:
    """Standard deviation of the scores of a query, positions apart: 1 for dot products of normal tokens over √d.

    >>> q, k = (torch.randn(1, 1, 200, 64, generator=Generator().manual_seed(seed)) for seed in range(2))
    >>> round(spread(Mechanism(), q, k), 1), round(spread(ZOO["metric"](), q, k), 1)
    (1.0, 9.8)
    """
    own = {at: x.double() for at, x in tensors(mechanism).items() if x.is_floating_point()}
    s = with_tensors(mechanism, own).score(q.double(), k.double())
    return float(s.var(-1).mean().sqrt())


def _errors(mechanism: Mechanism, run: Run, inputs: tuple[Tensor, ...], graded: bool) -> list[float]:
    own = {at: x.double() for at, x in tensors(mechanism).items() if x.is_floating_point()}
    exact = with_tensors(mechanism, own)
    found = _with_gradients(run, inputs, graded)
    right = _with_gradients(lambda *x: reference(exact, *x)[0], tuple(x.double() for x in inputs), graded)
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, right, strict=True)]


def _with_gradients(run: Any, inputs: tuple[Tensor, ...], graded: bool) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(graded) for x in inputs]
    out = run(*leaves)
    g = torch.randn(out.shape, generator=Generator().manual_seed(1)).to(out)
    return [out.detach(), *(torch.autograd.grad(out, leaves, g, materialize_grads=True) if graded else ())]


def _peak(run: Run, inputs: tuple[Tensor, ...], graded: bool) -> int:
    """Bytes that a call and its backward pass take on the GPU, above the tokens."""
    leaves = [x.detach().requires_grad_(graded) for x in inputs]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    with nullcontext() if graded else torch.no_grad():
        out = run(*leaves)
        if graded:
            torch.autograd.grad(out.sum(), leaves, allow_unused=True)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held
