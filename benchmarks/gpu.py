"""What analyses cost on a GPU, a batch at a time: GPT-2-medium shape, 16 x 1024 tokens, bfloat16, in multiples of a bare forward.

    python benchmarks/gpu.py                         all rows, about three minutes on an H200
    python benchmarks/gpu.py trajectory readout      rows whose name begins so
    python benchmarks/gpu.py --smallest              a tiny model on any machine, nothing is stored

Random weights, made on the device. Each row stands beside the bare sdpa forward of Hugging Face of the same batch (of one text where it
says so), interleaved, medians, noise half the interquartile range; some bars are seconds. Memory is the peak above the weights and
what the row is given, over the bytes of the points. `busy` is the share of time in which the GPU computes while a set of analyses runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any

import torch
from timing import arguments, keep

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.flow.clusters.analysis import centre_cloud, rank_measures
from rheoscope.flow.trajectory.analysis import path_statistics
from rheoscope.shapes import RheoscopeError

MEDIUM = {"n_layer": 24, "n_head": 16, "n_embd": 1024, "n_positions": 1024}
TINY = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 8,
    "n_positions": 32,
    "vocab_size": 50,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@dataclass(frozen=True)
class Given:
    """What rows are asked of: a bare network, the model that Rheoscope makes of it, a batch of texts of one length."""

    bare: Any
    model: Any
    batch: list[torch.Tensor]

    @property
    def cuda(self) -> bool:
        return self.model.device.type == "cuda"

    @cached_property
    def traces(self) -> Any:
        return self.model.trace(self.batch)

    def fresh(self) -> Any:
        """The same Traces, with what the forward pass kept and nothing computed from them yet."""
        return self.traces[:]

    def forward(self, texts: int) -> None:
        with torch.no_grad():
            self.bare(input_ids=torch.stack(self.batch[:texts]).to(self.model.device), use_cache=False)

    def forward_and_backward(self, texts: int) -> None:
        logits = self.bare(input_ids=torch.stack(self.batch[:texts]).to(self.model.device), use_cache=False).logits
        logits.backward(torch.ones_like(logits))
        self.bare.zero_grad()


@dataclass(frozen=True)
class Row:
    """What is run, how much it may cost, of what: `forward` or `both` (with backward) of `texts`, or `seconds`."""

    run: Callable[[Given], object]
    bar: float
    of: str = "forward"
    texts: int = 16


def batched(name: str, **settings: Any) -> Callable[[Given], object]:
    """All texts at once; refused where the analysis cannot yet."""

    def run(given: Given) -> object:
        ask = analysis_by_name(name).batch
        if ask is None:
            raise RheoscopeError(f"{name} asks one text at a time")
        return ask(given.fresh(), **settings)

    return run


def alone(name: str, **settings: Any) -> Callable[[Given], object]:
    """The first text by itself, as a user asks."""
    return lambda given: analysis_by_name(name).ask(given.traces[:1][0], **settings)


def statistics(given: Given) -> object:
    """What the weights of all heads are like, layer by layer."""
    traces = given.fresh()
    return [traces.statistics(layer) for layer in range(traces.view.layers)]


def effective_ranks(given: Given) -> object:
    """Eigenvalues of every cloud of one text, in float64."""
    clouds = (centre_cloud(x.double()) for x in given.traces[:1][0].points)
    return [rank_measures(x, x @ x.mT) for x in clouds]


ROWS: dict[str, Row] = {
    "trace": Row(lambda given: given.model.trace(given.batch), 1.05),
    "trace with logits": Row(lambda given: given.model.trace(given.batch, logits=True), 1.05),
    "trajectory, paths alone": Row(lambda given: path_statistics(given.fresh()), 0.3),
    "trajectory": Row(batched("trajectory"), 0.3),
    "clusters: mean cosine, participation ratio": Row(batched("clusters", grain="half"), 0.3),
    "readout of the last token": Row(batched("readout"), 0.2),
    "readout of all tokens, every layer": Row(batched("readout", tokens_before=1023), 6),
    "energy": Row(batched("energy"), 4),
    "geometry_kept, 1e5 pairs": Row(batched("geometry_kept", max_pairs=100_000), 1),
    "geometry_kept": Row(batched("geometry_kept"), 12),
    "massive_tokens": Row(batched("massive_tokens"), 1),
    "statistics of all weights": Row(statistics, 0.6),
    "agreement, 64 queries a text": Row(batched("agreement", draws=0, max_queries=64), 3),
    "agreement": Row(batched("agreement", draws=0), 60),
    "distortion": Row(batched("distortion"), 100),
    "reversed_attention": Row(batched("reversed_attention", target=7), 2, of="both"),
    "scores": Row(batched("scores"), 20),
    "head_types": Row(batched("head_types"), 20),
    "operators of all heads": Row(lambda given: analysis_by_name("operators").ask(given.model.view), 1, of="seconds"),
    "one text: trajectory": Row(alone("trajectory"), 3, texts=1),
    "one text: readout": Row(alone("readout"), 3, texts=1),
    "one text: energy": Row(alone("energy"), 20, texts=1),
    "one text: geometry_kept": Row(alone("geometry_kept"), 20, texts=1),
    "one text: effective rank, every step": Row(effective_ranks, 1, of="seconds", texts=1),
    "one text: clusters": Row(alone("clusters", draws=0), 1, of="seconds", texts=1),
    "one text: transport, all strides, no null": Row(alone("transport", draws=0), 0.7, of="seconds", texts=1),
}
"""Every row by name."""
STANDARD = (
    "trajectory",
    "clusters: mean cosine, participation ratio",
    "readout of the last token",
    "statistics of all weights",
)
"""What a corpus is asked by default."""
SETS = {
    "standard set": STANDARD,
    "with energy, 1e5 distances and agreement": (
        *STANDARD,
        "energy",
        "geometry_kept, 1e5 pairs",
        "agreement, 64 queries a text",
    ),
}


def given_of(shape: dict[str, Any], texts: int, tokens: int, device: str, dtype: torch.dtype) -> Given:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    with torch.device(device):
        bare = GPT2LMHeadModel(GPT2Config(**shape)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    batch = list(torch.randint(0, bare.config.vocab_size, (texts, tokens), generator=generator))
    return Given(bare, rs.load(bare), batch)


def waited(given: Given) -> None:
    if given.cuda:
        torch.cuda.synchronize()


def seconds_of(given: Given, run: Callable[[], object]) -> float:
    waited(given)
    start = time.perf_counter()
    run()
    waited(given)
    return time.perf_counter() - start


def peer(given: Given, row: Row) -> Callable[[], object]:
    texts = min(row.texts, len(given.batch))
    return (lambda: given.forward_and_backward(texts)) if row.of == "both" else (lambda: given.forward(texts))


def measured(given: Given, name: str, row: Row, most: float) -> dict[str, object]:
    """Medians of at least 3 and at most 15 rounds, as many as `most` seconds allow after a first one that is thrown away."""
    own, other = [seconds_of(given, lambda: row.run(given))], [seconds_of(given, peer(given, row))]
    peak = memory(given, row) if given.cuda else float("nan")
    first = own.pop(), other.pop()
    while len(own) < 3 or (len(own) < 15 and sum(own) < most):
        own.append(seconds_of(given, lambda: row.run(given)))
        other.append(seconds_of(given, peer(given, row)))
    found = own if row.of == "seconds" else [a / b for a, b in zip(own, other, strict=True)]
    low, middle, high = quantiles(found, n=4)
    print(
        f"{name:46s} {1000 * median(own):9.1f} ms  {middle:8.3f} +- {(high - low) / 2:6.3f} of {row.of:8s} "
        f"bar {row.bar:5g} {'met   ' if middle <= row.bar else 'MISSED'} memory {peak:5.2f} of the points "
        f"(first {first[0]:.2f} s)",
        flush=True,
    )
    return {
        "name": name,
        "milliseconds": 1000 * median(own),
        "of": row.of,
        "multiple": middle,
        "noise": (high - low) / 2,
        "bar": row.bar,
        "memory of points": peak,
    }


def memory(given: Given, row: Row) -> float:
    """Peak of a row above what is there before it, over the bytes of the points."""
    points = given.traces.points.nbytes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    row.run(given)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / points


def busy(given: Given, of: str) -> dict[str, object]:
    """The share of time in which kernels run while one of the sets is asked.

    Kernels by torch's profiler, which makes the host slower, so that the time is that of runs without it.
    """
    from torch.profiler import ProfilerActivity, profile

    def together() -> list[object]:
        return [ROWS[name].run(given) for name in SETS[of]]

    whole = median(seconds_of(given, together) for _ in range(5))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        seconds_of(given, together)
    kernels = sum(one.self_device_time_total for one in seen.key_averages()) * 1e-6
    print(f"{of}: {1000 * whole:.1f} ms, GPU busy {kernels / whole:.0%}", flush=True)
    return {"name": of, "milliseconds": 1000 * whole, "busy": kernels / whole}


def rows_of(given: Given, chosen: Sequence[str], most: float) -> list[dict[str, object]]:
    """A row that cannot be asked says so, and the others go on."""
    rows: list[dict[str, object]] = []
    for name, row in ROWS.items():
        if chosen and not name.startswith(tuple(chosen)):
            continue
        try:
            rows.append(measured(given, name, row, most))
        except (RheoscopeError, RuntimeError) as error:  # RuntimeError: torch's own, of devices, dtypes and memory
            print(f"{name:46s} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("rows", nargs="*", help="how names of rows begin; all, unless said")
    asked = parser.parse_args(words)
    if asked.smallest:
        given = given_of(TINY, 2, 12, "cuda" if torch.cuda.is_available() else "cpu", torch.float32)
        keep("gpu", rows_of(given, asked.rows, 0), smallest=True)
        return
    if not torch.cuda.is_available():
        parser.error("there is no GPU here; type --smallest to see that it runs")
    given = given_of(MEDIUM, 16, 1024, "cuda", torch.bfloat16)
    points = given.traces.points
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: points {points.nbytes / 2**30:.2f} GiB", flush=True
    )
    rows = rows_of(given, asked.rows, 0.5 if asked.quick else 2.0)
    rows += [] if asked.rows else [busy(given, name) for name in SETS]
    keep("gpu", rows, smallest=bool(asked.rows))


if __name__ == "__main__":
    main()
