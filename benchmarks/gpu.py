"""Time and memory of analyses on a GPU, relative to a bare forward pass (GPT-2-medium shape, 16 x 1024 tokens, bfloat16).

    python benchmarks/gpu.py                         all rows, about three minutes on an H200
    python benchmarks/gpu.py trajectory readout      rows whose name starts with one of these
    python benchmarks/gpu.py --smallest              a tiny model on any machine, nothing is stored

Weights are random. Each row is compared with Hugging Face's sdpa forward pass over the same batch, or over one text where the row says
so. Values are medians of interleaved rounds, and noise is half the interquartile range. Some limits are in seconds. Memory is the peak
above the weights and the inputs, divided by the bytes of the points. `busy` is the fraction of time in which the GPU computes while a
set of analyses runs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any

import torch
from timing import make_parser, store_rows

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
class Inputs:
    """The inputs of all rows: a bare network, its Rheoscope model, and a batch of texts of equal length."""

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
        """The same Traces without anything that was computed from them."""
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
    """A measurement and its limit `bar`, in forward passes of `texts`, in forward and backward passes (`both`) or in `seconds`."""

    run: Callable[[Inputs], object]
    bar: float
    of: str = "forward"
    texts: int = 16


def batch_run(name: str, **settings: Any) -> Callable[[Inputs], object]:
    """A run over all texts at once. It raises for an analysis without a batch function."""

    def run(inputs: Inputs) -> object:
        ask = analysis_by_name(name).batch
        if ask is None:
            raise RheoscopeError(f"{name} has no batch function")
        return ask(inputs.fresh(), **settings)

    return run


def single_text(name: str, **settings: Any) -> Callable[[Inputs], object]:
    """A run on the first text only, through the public function."""
    return lambda inputs: analysis_by_name(name).ask(inputs.traces[:1][0], **settings)


def statistics(inputs: Inputs) -> object:
    """Statistics of the attention weights of all heads, layer by layer."""
    traces = inputs.fresh()
    return [traces.statistics(layer) for layer in range(traces.view.layers)]


def effective_ranks(inputs: Inputs) -> object:
    """Rank measures of every cloud of one text, in float64."""
    clouds = (centre_cloud(x.double()) for x in inputs.traces[:1][0].points)
    return [rank_measures(x, x @ x.mT) for x in clouds]


ROWS: dict[str, Row] = {
    "trace": Row(lambda inputs: inputs.model.trace(inputs.batch), 1.05),
    "trace with logits": Row(lambda inputs: inputs.model.trace(inputs.batch, logits=True), 1.05),
    "trajectory, paths alone": Row(lambda inputs: path_statistics(inputs.fresh()), 0.3),
    "trajectory": Row(batch_run("trajectory"), 0.3),
    "clusters: mean cosine, participation ratio": Row(batch_run("clusters", grain="half"), 0.3),
    "readout of the last token": Row(batch_run("readout"), 0.2),
    "readout of all tokens, every layer": Row(batch_run("readout", tokens_before=1023), 2),
    "energy": Row(batch_run("energy"), 1.5),
    "geometry_kept, 1e5 pairs": Row(batch_run("geometry_kept", max_pairs=100_000), 1),
    "geometry_kept": Row(batch_run("geometry_kept"), 12),
    "massive_tokens": Row(batch_run("massive_tokens"), 1),
    "statistics of all weights": Row(statistics, 0.6),
    "agreement, 64 queries a text": Row(batch_run("agreement", draws=0, max_queries=64), 3),
    "agreement": Row(batch_run("agreement", draws=0), 6),
    "distortion": Row(batch_run("distortion"), 20),
    "reversed_attention": Row(batch_run("reversed_attention", target=7), 1.5, of="both"),
    "scores": Row(batch_run("scores"), 5),
    "head_types": Row(batch_run("head_types"), 20),
    "operators of all heads": Row(lambda inputs: analysis_by_name("operators").ask(inputs.model.view), 1, of="seconds"),
    "one text: trajectory": Row(single_text("trajectory"), 3, texts=1),
    "one text: readout": Row(single_text("readout"), 3, texts=1),
    "one text: energy": Row(single_text("energy"), 20, texts=1),
    "one text: geometry_kept": Row(single_text("geometry_kept"), 20, texts=1),
    "one text: effective rank, every step": Row(effective_ranks, 1, of="seconds", texts=1),
    "one text: clusters": Row(single_text("clusters", draws=0), 0.3, of="seconds", texts=1),
    "one text: transport, all strides, no null": Row(single_text("transport", draws=0), 0.25, of="seconds", texts=1),
}
"""Every row by name."""
STANDARD = (
    "trajectory",
    "clusters: mean cosine, participation ratio",
    "readout of the last token",
    "statistics of all weights",
)
"""The default analyses of a corpus run."""
SETS = {
    "standard set": STANDARD,
    "with energy, 1e5 distances and agreement": (
        *STANDARD,
        "energy",
        "geometry_kept, 1e5 pairs",
        "agreement, 64 queries a text",
    ),
}


def make_inputs(shape: dict[str, Any], texts: int, tokens: int, device: str, dtype: torch.dtype) -> Inputs:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    with torch.device(device):
        bare = GPT2LMHeadModel(GPT2Config(**shape)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    batch = list(torch.randint(0, bare.config.vocab_size, (texts, tokens), generator=generator))
    return Inputs(bare, rs.load(bare), batch)


def synchronise(inputs: Inputs) -> None:
    if inputs.cuda:
        torch.cuda.synchronize()


def seconds_of(inputs: Inputs, run: Callable[[], object]) -> float:
    synchronise(inputs)
    start = time.perf_counter()
    run()
    synchronise(inputs)
    return time.perf_counter() - start


def peer(inputs: Inputs, row: Row) -> Callable[[], object]:
    texts = min(row.texts, len(inputs.batch))
    return (lambda: inputs.forward_and_backward(texts)) if row.of == "both" else (lambda: inputs.forward(texts))


def measure(inputs: Inputs, name: str, row: Row, max_seconds: float) -> dict[str, object]:
    """Medians of 3 to 15 rounds, as many as fit into `max_seconds` seconds, after a discarded first round. At 0, 2 rounds."""
    row_seconds, peer_seconds = [seconds_of(inputs, lambda: row.run(inputs))], [seconds_of(inputs, peer(inputs, row))]
    peak = memory(inputs, row) if inputs.cuda else float("nan")
    first = row_seconds.pop(), peer_seconds.pop()
    while len(row_seconds) < (3 if max_seconds else 2) or (len(row_seconds) < 15 and sum(row_seconds) < max_seconds):
        row_seconds.append(seconds_of(inputs, lambda: row.run(inputs)))
        peer_seconds.append(seconds_of(inputs, peer(inputs, row)))
    ratios = row_seconds if row.of == "seconds" else [a / b for a, b in zip(row_seconds, peer_seconds, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    print(
        f"{name:46s} {1000 * median(row_seconds):9.1f} ms  {middle:8.3f} +- {(high - low) / 2:6.3f} of {row.of:8s} "
        f"bar {row.bar:5g} {'met   ' if middle <= row.bar else 'MISSED'} memory {peak:5.2f} of the points "
        f"(first {first[0]:.2f} s)",
        flush=True,
    )
    return {
        "name": name,
        "milliseconds": 1000 * median(row_seconds),
        "of": row.of,
        "multiple": middle,
        "noise": (high - low) / 2,
        "bar": row.bar,
        "memory of points": peak,
    }


def memory(inputs: Inputs, row: Row) -> float:
    """Peak memory of a row above the memory in use before it, divided by the bytes of the points."""
    points = inputs.traces.points.nbytes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    row.run(inputs)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / points


def busy(inputs: Inputs, set_name: str) -> dict[str, object]:
    """The fraction of time in which kernels run while a set of analyses runs.

    Kernel time comes from torch's profiler. Total time is measured without it, because the profiler slows the host.
    """
    from torch.profiler import ProfilerActivity, profile

    def run_set() -> list[object]:
        return [ROWS[name].run(inputs) for name in SETS[set_name]]

    total_seconds = median(seconds_of(inputs, run_set) for _ in range(5))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds_of(inputs, run_set)
    kernels = sum(event.self_device_time_total for event in profiler.key_averages()) * 1e-6
    print(f"{set_name}: {1000 * total_seconds:.1f} ms, GPU busy {kernels / total_seconds:.0%}", flush=True)
    return {"name": set_name, "milliseconds": 1000 * total_seconds, "busy": kernels / total_seconds}


def rows_of(inputs: Inputs, prefixes: Sequence[str], max_seconds: float) -> list[dict[str, object]]:
    """The measurements of the selected rows. The error of a row is printed and the other rows run."""
    rows: list[dict[str, object]] = []
    for name, row in ROWS.items():
        if prefixes and not name.startswith(tuple(prefixes)):
            continue
        try:
            rows.append(measure(inputs, name, row, max_seconds))
        except (RheoscopeError, RuntimeError) as error:  # RuntimeError: torch's errors about devices, dtypes and memory
            print(f"{name:46s} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("rows", nargs="*", help="beginnings of names of rows (default: all rows)")
    options = parser.parse_args(argv)
    if options.smallest:
        inputs = make_inputs(TINY, 2, 12, "cuda" if torch.cuda.is_available() else "cpu", torch.float32)
        store_rows("gpu", rows_of(inputs, options.rows, 0), smallest=True)
        return
    if not torch.cuda.is_available():
        parser.error("no GPU is available; type --smallest to run all code on a CPU")
    inputs = make_inputs(MEDIUM, 16, 1024, "cuda", torch.bfloat16)
    points = inputs.traces.points
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: points {points.nbytes / 2**30:.2f} GiB", flush=True
    )
    rows = rows_of(inputs, options.rows, 0.5 if options.quick else 2.0)
    rows += [] if options.rows else [busy(inputs, name) for name in SETS]
    store_rows("gpu", rows, smallest=bool(options.rows))


if __name__ == "__main__":
    main()
