"""Speed, numerical error and memory of every mechanism, compared with torch's fused dot-product attention.

Times are medians over rounds in which the mechanism and the baseline alternate, so that a slow machine slows both.
Errors are measured against the float64 reference and reported as a multiple of the baseline's error on the same tokens.
The baseline's scores are scaled to the standard deviation of the mechanism's scores, because every kernel's gradient
loses digits as scores spread. A call that would take too long is skipped, and its row contains a note.
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

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mask import Causal, NoMask, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.position_bias import ALiBi, Buckets, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.attention.zoo import ZOO
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
FUSED_BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Torch's dot-product kernels, fastest on a Hopper GPU first."""

QUEUED_SECONDS = 0.006
"""Seconds of calls that a round queues on a GPU, so that launch overhead overlaps as it does in a model."""


@dataclass(frozen=True)
class BenchmarkSetting:
    """Device, dtype, sizes and time limits of a benchmark."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    heads: int = 8
    width: int = 64
    rounds: int = 7
    seconds: float = 1.0
    """Time limit of a row; a mechanism with a slower call is skipped at longer lengths."""
    exact: int = 256
    """Length of the text on which errors are measured."""
    limit: float = 200.0
    """Time limit of the whole benchmark in seconds; later rows are skipped."""

    def n_texts(self, n: int) -> int:
        """Batch size: about 16 thousand tokens in total on a GPU, one text on a CPU."""
        return 1 if self.device == "cpu" else max(1, 16384 // n)

    def random_qkv(self, b: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = Generator(self.device).manual_seed(0)
        shape = b, self.heads, n, self.width
        q, k, v = (torch.randn(shape, generator=generator, device=self.device).to(self.dtype) for _ in range(3))
        return q, k, v


CPU_SETTING = BenchmarkSetting()
GPU_SETTING = BenchmarkSetting("cuda", torch.bfloat16, heads=16, rounds=15, seconds=0.15, exact=512, limit=150.0)


@dataclass(frozen=True)
class SpeedRatio:
    """Speed relative to the baseline: median over rounds, half the interquartile range, number of rounds."""

    value: float
    noise: float
    rounds: int


@dataclass(frozen=True, eq=False)
class BenchmarkRow:
    """One mechanism at one length. A value is None if it does not exist or was not measured; `note` explains why."""

    name: str
    tokens: int
    lowering: str
    why: str
    forward: SpeedRatio | None = None
    both: SpeedRatio | None = None
    error: float | None = None
    gradient_error: float | None = None
    peak_bytes: int | None = None
    first_call: float | None = None
    note: str = ""


def benchmark_mechanisms(heads: int, width: int) -> dict[str, Mechanism]:
    """Every mechanism of the zoo plus common model variants, with the causal mask if masks are allowed.

    >>> "soft-cap" in benchmark_mechanisms(8, 64), "metric" in benchmark_mechanisms(8, 64)
    (True, True)
    """
    mechanisms = {name: entry(**({"dim": width} if entry.needs_dim else {})) for name, entry in ZOO.items()}
    mechanisms |= {"sinkhorn, 3 rounds": ZOO["sinkhorn"](rounds=3)}
    mechanisms = {
        name: instance.with_mask("causal") if instance.domain.allows_masks else instance
        for name, instance in mechanisms.items()
    }
    bias_table = torch.randn(32, heads, generator=Generator().manual_seed(0))
    return mechanisms | {
        "soft-cap": Mechanism(SoftCap(Gram(), 20.0), mask=Causal()),
        "T5 bias": Mechanism(position=Buckets(bias_table, bidirectional=False), mask=Causal()),
        "ALiBi": Mechanism(position=ALiBi(alibi_slopes(heads)), mask=Causal()),
        "window of 1024": Mechanism(mask=Causal() & Window(1024)),
    }


def run_benchmark(
    setting: BenchmarkSetting, lengths: Sequence[int], mechanisms: Mapping[str, Mechanism] | None = None
) -> Iterator[BenchmarkRow]:
    """Yield a row per length and mechanism as soon as it is measured, all mechanisms of the first length first."""
    deadline, seconds_per_pair = time.perf_counter() + setting.limit, dict[str, float]()
    device_mechanisms = {
        name: _to_device(instance, setting)
        for name, instance in (mechanisms or benchmark_mechanisms(setting.heads, setting.width)).items()
    }
    cached_errors = cache(lambda name, lowering: relative_errors(device_mechanisms[name], lowering, setting))
    for length in lengths:
        for name, mechanism in device_mechanisms.items():
            row, pairs = _unmeasured_row(name, mechanism, length, setting), setting.n_texts(length) * length**2
            is_late, call_seconds = time.perf_counter() > deadline, seconds_per_pair.get(name, 0.0) * pairs
            if is_late or call_seconds > 4 * setting.seconds:
                note = (
                    Message("skipped: the time limit of {limit:.0f} s was reached", limit=setting.limit)
                    if is_late
                    else Message("skipped: about {seconds:.2g} s per call", seconds=call_seconds)
                )
                yield replace(row, note=note)
                continue
            try:
                row, call_seconds = measure_row(row, mechanism, setting)
                seconds_per_pair[name] = call_seconds / pairs
                output_error, gradient_error = cached_errors(name, row.lowering)
                yield replace(row, error=output_error, gradient_error=gradient_error)
            except (RuntimeError, RheoscopeError) as error:  # out of memory, or torch cannot compile the kernel here
                yield replace(row, note=Message("failed: {error}", error=str(error).splitlines()[0]))


def _to_device(mechanism: Mechanism, setting: BenchmarkSetting) -> Mechanism:
    return with_tensors(mechanism, {path: x.to(setting.device) for path, x in tensors_by_path(mechanism).items()})


def measure_row(row: BenchmarkRow, mechanism: Mechanism, setting: BenchmarkSetting) -> tuple[BenchmarkRow, float]:
    """The row with times and memory, and the seconds per call; a slow call is timed only once."""
    inputs = setting.random_qkv(setting.n_texts(row.tokens), row.tokens)
    baseline, attend, has_gradient = (
        fused_baseline(mechanism, setting),
        mechanism.attend,
        mechanism.domain.is_differentiable,
    )
    start = time.perf_counter()
    call_seconds = _warm_call_seconds(attend, inputs, setting)
    row = replace(row, first_call=time.perf_counter() - start)
    if call_seconds > 4 * setting.seconds:
        return replace(row, note=Message("timed once: {seconds:.2g} s per call", seconds=call_seconds)), call_seconds
    forward = speed_ratio(baseline, attend, inputs, False, setting)
    forward_backward = speed_ratio(baseline, attend, inputs, True, setting) if has_gradient else None
    peak_bytes = _peak_bytes(attend, inputs, has_gradient) if setting.device == "cuda" else None
    return replace(row, forward=forward, both=forward_backward, peak_bytes=peak_bytes), call_seconds


def _unmeasured_row(name: str, mechanism: Mechanism, n_tokens: int, setting: BenchmarkSetting) -> BenchmarkRow:
    q = torch.empty(
        setting.n_texts(n_tokens), setting.heads, n_tokens, setting.width, dtype=setting.dtype, device=setting.device
    )
    with torch.no_grad():
        choice = mechanism.explain(q, q, q)
    return BenchmarkRow(name, n_tokens, choice.name, choice.reason)


def fused_baseline(mechanism: Mechanism, setting: BenchmarkSetting, scale: float | None = None) -> AttentionFunction:
    """Torch's fused dot-product attention, causal if the mechanism allows masks; `scale` defaults to 1/√d."""
    causal, on_gpu = mechanism.domain.allows_masks, setting.device == "cuda"

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(FUSED_BACKENDS, set_priority=True) if on_gpu else nullcontext():
            return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    return attend


def _warm_call_seconds(run: AttentionFunction, inputs: tuple[Tensor, ...], setting: BenchmarkSetting) -> float:
    """Seconds of the second call without gradients; the first may compile."""
    with torch.no_grad():
        run(*inputs)
        _synchronize(setting.device)
        start = time.perf_counter()
        run(*inputs)
        _synchronize(setting.device)
    return time.perf_counter() - start


def speed_ratio(
    baseline: AttentionFunction,
    attend: AttentionFunction,
    inputs: tuple[Tensor, ...],
    backward: bool,
    setting: BenchmarkSetting,
) -> SpeedRatio:
    """Speed of `attend` relative to the baseline, both timed in every round; slow calls get fewer rounds."""
    leaves = [x.detach().requires_grad_(backward) for x in inputs]
    grad_output = torch.ones_like(inputs[2])

    def make_call(run: AttentionFunction) -> Callable[[], object]:
        if backward:
            return lambda: torch.autograd.grad(run(*leaves), leaves, grad_output, allow_unused=True)
        return lambda: run(*leaves)

    with nullcontext() if backward else torch.no_grad():
        for run in (baseline, attend):
            make_call(run)()  # compiles
        call_seconds = sum(_elapsed_seconds(make_call(run), 1, setting.device) for run in (baseline, attend))
        n_calls = 1 if setting.device == "cpu" else max(1, int(QUEUED_SECONDS / call_seconds))
        rounds = max(1, min(setting.rounds, int(setting.seconds / call_seconds / n_calls)))
        round_seconds = [
            [_elapsed_seconds(make_call(run), n_calls, setting.device) for run in (baseline, attend)]
            for _ in range(rounds)
        ]
    ratios = [baseline_seconds / attend_seconds for baseline_seconds, attend_seconds in round_seconds]
    low, median, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    return SpeedRatio(median, (high - low) / 2, rounds)


def _elapsed_seconds(call: Callable[[], object], n_calls: int, device: str) -> float:
    """Seconds of `n_calls` consecutive calls; on a GPU measured by CUDA events, so queued calls do not wait."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(n_calls):
            call()
        return time.perf_counter() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start_event.record()
    for _ in range(n_calls):
        call()
    end_event.record()
    torch.cuda.synchronize()
    return float(start_event.elapsed_time(end_event)) / 1000


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def relative_errors(mechanism: Mechanism, lowering: str, setting: BenchmarkSetting) -> tuple[float, float | None]:
    """Error against float64 relative to the baseline's error: of the output, and the worst gradient of q, k and v."""
    inputs = setting.random_qkv(1, setting.exact)
    scale = score_sd(mechanism, *inputs[:2]) / score_sd(Mechanism(Gram(scale=1.0)), *inputs[:2])
    dot_product = Mechanism(Gram(scale=scale), mask=Causal() if mechanism.domain.allows_masks else NoMask())
    has_gradient = mechanism.domain.is_differentiable
    mechanism_errors = _errors_vs_float64(
        mechanism, lambda q, k, v: mechanism.attend(q, k, v, lowering=lowering), inputs, has_gradient
    )
    baseline_errors = _errors_vs_float64(dot_product, fused_baseline(mechanism, setting, scale), inputs, has_gradient)
    return mechanism_errors[0] / baseline_errors[0], max(mechanism_errors[1:]) / max(
        baseline_errors[1:]
    ) if has_gradient else None


def score_sd(mechanism: Mechanism, q: Tensor, k: Tensor) -> float:
    """Standard deviation of a query's scores without position: 1 for scaled dot products of standard normal tokens.

    >>> q, k = (torch.randn(1, 1, 200, 64, generator=Generator().manual_seed(seed)) for seed in range(2))
    >>> round(score_sd(Mechanism(), q, k), 1), round(score_sd(ZOO["metric"](), q, k), 1)
    (1.0, 9.8)
    """
    float64_tensors = {path: x.double() for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    s = with_tensors(mechanism, float64_tensors).score(q.double(), k.double())
    return float(s.var(-1).mean().sqrt())


def _errors_vs_float64(
    mechanism: Mechanism, run: AttentionFunction, inputs: tuple[Tensor, ...], has_gradient: bool
) -> list[float]:
    float64_tensors = {path: x.double() for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    float64_mechanism = with_tensors(mechanism, float64_tensors)
    actual = _output_and_gradients(run, inputs, has_gradient)
    expected = _output_and_gradients(
        lambda *x: reference_attention(float64_mechanism, *x)[0], tuple(x.double() for x in inputs), has_gradient
    )
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(actual, expected, strict=True)]


def _output_and_gradients(run: Any, inputs: tuple[Tensor, ...], has_gradient: bool) -> list[Tensor]:
    leaves = [x.detach().requires_grad_(has_gradient) for x in inputs]
    out = run(*leaves)
    grad_output = torch.randn(out.shape, generator=Generator().manual_seed(1)).to(out)
    return [
        out.detach(),
        *(torch.autograd.grad(out, leaves, grad_output, materialize_grads=True) if has_gradient else ()),
    ]


def _peak_bytes(run: AttentionFunction, inputs: tuple[Tensor, ...], has_gradient: bool) -> int:
    """Peak GPU memory in bytes of a call and its backward pass, excluding the inputs."""
    leaves = [x.detach().requires_grad_(has_gradient) for x in inputs]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    bytes_before = torch.cuda.memory_allocated()
    with nullcontext() if has_gradient else torch.no_grad():
        out = run(*leaves)
        if has_gradient:
            torch.autograd.grad(out.sum(), leaves, allow_unused=True)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - bytes_before
