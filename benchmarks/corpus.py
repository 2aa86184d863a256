"""Throughput and memory of a corpus run, compared with a bare forward pass over as many tokens.

    python benchmarks/corpus.py                   all texts
    python benchmarks/corpus.py --quick           fewer texts
    python benchmarks/corpus.py --smallest        a tiny model on any machine, nothing is stored

On a GPU, the model has GPT-2-medium's shape in bfloat16 with 1024 tokens per text. On a CPU, it has GPT-2-small's shape in
float32 with 256 tokens. Weights and words are random. A batch has 64 texts on a GPU and 2 on a CPU. After every shard (read,
tokenised, computed, summarised, committed to disk), Hugging Face's sdpa forward pass runs on as many tokens. On a CPU,
processor time is measured, so that other processes do not count. The standard set is trajectory, readout of the last token,
statistics of all weights, mean cosine and participation ratio. `memory` is the peak after all shards divided by the peak
after the first two, of the GPU if there is one. `busy` is the fraction of time in which the GPU computes.
"""

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu import MEDIUM, TINY
from timing import make_parser, store_rows

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import CorpusProgress, open_model, run_job
from rheoscope.corpus.input_texts import plan_shards
from rheoscope.corpus.shard_worker import Worker

SMALL_SHAPE = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
STANDARD: dict[str, dict[str, Any]] = {"trajectory": {}, "readout": {}, "head_statistics": {}, "clusters": {}}
SETS = {
    "standard set": STANDARD,
    "with agreement on 64 queries": STANDARD | {"agreement": {"draws": 0, "max_queries": 64}},
}
MIN_RATIOS = {"cuda": {"standard set": 0.45, "with agreement on 64 queries": 0.25}, "cpu": {"standard set": 0.5}}


def write_inputs(folder: Path, shape: dict[str, Any], dtype: torch.dtype, texts: int, tokens: int) -> tuple[Any, Path]:
    """Write a model with a word tokenizer and a file of random texts. Returns the bare network and the file."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    bare = GPT2LMHeadModel(GPT2Config(**shape)).to(dtype).eval()
    count = bare.config.vocab_size
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(count)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "model")
    ids = torch.randint(0, count, (texts, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    (folder / "texts.txt").write_text("".join(" ".join(f"w{token}" for token in text) + "\n" for text in ids))
    return bare, folder / "texts.txt"


def clock(device: str) -> float:
    """Seconds of wall time on a GPU, of processor time on a CPU."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> int:
    """Peak memory so far, in bytes."""
    return (
        torch.cuda.max_memory_allocated()
        if device == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )


class ShardTimer:
    """A progress callback that times every shard, and then the bare network on as many tokens."""

    def __init__(self, bare: Any, device: str, tokens: int, batch: int) -> None:
        self.bare, self.device, self.ids = (
            bare,
            device,
            torch.randint(0, bare.config.vocab_size, (batch, tokens), device=device),
        )
        self.shard_seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self.peaks: list[int] = []
        self.tokens: list[int] = []
        self.forward()
        self.start = clock(device)

    @torch.no_grad()
    def forward(self) -> None:
        self.bare(input_ids=self.ids, use_cache=False)

    def __call__(self, progress: CorpusProgress) -> None:
        end = clock(self.device)
        self.shard_seconds.append(end - self.start)
        self.tokens.append(progress.tokens - sum(self.tokens))
        self.peaks.append(peak(self.device))
        for _ in range(max(1, self.tokens[-1] // self.ids.numel())):
            self.forward()
        self.start = clock(self.device)
        self.bare_seconds.append(self.start - end)


def measure(folder: Path, name: str, bare: Any, job: Job, device: str, batch: int) -> dict[str, object]:
    """One set of analyses over all texts.

    A shard is reported once the next one is computed. So the first time covers loading and two shards, and it is discarded. The
    last time is that of writing alone, and every other time is that of one shard.
    """
    timer = ShardTimer(bare, device, job.length, batch)
    run_job(job, folder / name.replace(" ", "_"), on_progress=timer)
    shard_seconds, tokens, batch_tokens = timer.shard_seconds[1:], timer.tokens[2:], timer.ids.numel()
    bare_rates = [
        max(1, t // batch_tokens) * batch_tokens / s for t, s in zip(timer.tokens, timer.bare_seconds, strict=True)
    ]
    rate, min_ratio, half = (
        sum(tokens) / sum(shard_seconds),
        MIN_RATIOS[device].get(name, 0.0),
        (len(shard_seconds) - 1) // 2,
    )
    row: dict[str, object] = {
        "name": name, "tokens": sum(timer.tokens), "tokens a second": rate, "bare": median(bare_rates), "ratio": rate / median(bare_rates),
        "bar": min_ratio, "memory": timer.peaks[-1] / timer.peaks[1],
        "twice the texts": sum(shard_seconds[: 2 * half]) / sum(shard_seconds[:half]),
    }  # fmt: skip
    row |= {"busy": busy(folder, job)} if device == "cuda" else {}
    print(
        f"{name:30s} {rate:9,.0f} tokens/s, bare {row['bare']:9,.0f}: {row['ratio']:.2f}, bar {min_ratio} "
        f"{'met' if rate / median(bare_rates) >= min_ratio else 'MISSED'}; memory x {row['memory']:.2f}, twice the texts x "
        f"{row['twice the texts']:.2f}{'; GPU busy ' + format(row['busy'], '.0%') if 'busy' in row else ''}",
        flush=True,
    )
    return row


def busy(folder: Path, job: Job) -> float:
    """The fraction of time in which kernels run while one shard is computed, the next one read and the previous one written.

    Kernel time is measured on one shard under a profiler. Total time is measured on another shard of the same size without it,
    because the profiler slows the host.
    """
    from torch.profiler import ProfilerActivity, profile

    inputs, shards = plan_shards(list(job.texts), job.column, job.shard)
    worker = Worker(job, folder / "busy", open_model(job))
    worker.work(inputs, *shards[:2])
    start = clock("cuda")
    worker.work(inputs, *shards[1:3])
    total_seconds = clock("cuda") - start
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        worker.work(inputs, *shards[2:4])
        torch.cuda.synchronize()
    worker.close()
    ranges = [event.time_range for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return covered([(interval.start, interval.end) for interval in ranges]) * 1e-6 / total_seconds


def covered(ranges: Sequence[tuple[float, float]]) -> float:
    """The time in which at least one kernel ran. Kernels that overlap on two streams count once.

    >>> covered([(0, 2), (5, 6), (1, 3)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(ranges):
        total, until = total + max(0.0, end - max(start, until)), max(until, end)
    return total


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--at-once", type=int, default=64, help="texts per batch on a GPU, also for the bare network (64)"
    )
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, dtype = (MEDIUM, torch.bfloat16) if device == "cuda" else (SMALL_SHAPE, torch.float32)
    tokens, batch, shards, texts_per_shard = (
        (1024, options.at_once, 7 if options.quick else 12, 256) if device == "cuda" else (256, 2, 6, 4)
    )
    if options.smallest:
        shape, dtype, tokens, batch, shards, texts_per_shard = TINY, torch.float32, 24, 4, 4, 4
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        bare, texts = write_inputs(folder, shape, dtype, shards * texts_per_shard, tokens)
        size = texts.stat().st_size // shards
        job = Job(
            (str(texts),), str(folder / "model"), length=tokens, batch=batch * tokens, shard=size, device=device,
            dtype=str(dtype).removeprefix("torch."),
        )  # fmt: skip
        selected_sets = dict(list(SETS.items())[: 1 if device == "cpu" and not options.smallest else 2])
        rows = [
            measure(folder, name, bare.to(device), Job(**vars(job) | {"analyses": analyses}), device, batch)
            for name, analyses in selected_sets.items()
        ]
    store_rows("corpus", rows, smallest=options.smallest)


if __name__ == "__main__":
    main()
