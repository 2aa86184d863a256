"""A corpus run beside the bare forward of the same texts: tokens a second, memory, and twice the texts.

    python benchmarks/corpus.py                   GPT-2-medium shape, bfloat16, 1024 tokens a text on a GPU; GPT-2-small, float32, 256 else
    python benchmarks/corpus.py --quick           fewer texts
    python benchmarks/corpus.py --smallest        a tiny model on any machine, nothing is stored

Random weights, random words; 64 texts at once on a GPU, 2 else. After every shard (read, tokenised, computed, summarised, committed to
disk) the bare sdpa forward of Hugging Face reads as many tokens. On a CPU seconds are those of the processor, so that others on the
machine do not count. The standard set is trajectory, readout of the last token, statistics of
all weights, mean cosine and participation ratio. `memory` is the peak of the process (of the GPU where there is one) after all shards
over that after the first two; `busy` the share of time in which the GPU computes.
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
from timing import arguments, keep

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import CorpusProgress, open_model, run_job
from rheoscope.corpus.input_texts import plan_shards
from rheoscope.corpus.shard_worker import Worker

SMALL = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
STANDARD: dict[str, dict[str, Any]] = {"trajectory": {}, "readout": {}, "head_statistics": {}, "clusters": {}}
SETS = {
    "standard set": STANDARD,
    "with agreement on 64 queries": STANDARD | {"agreement": {"draws": 0, "max_queries": 64}},
}
BARS = {"cuda": {"standard set": 0.45, "with agreement on 64 queries": 0.25}, "cpu": {"standard set": 0.5}}


def made(folder: Path, shape: dict[str, Any], dtype: torch.dtype, texts: int, tokens: int) -> tuple[Any, Path]:
    """A model with a tokenizer of words in a folder, and a file of random texts, a line each; the bare network."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    bare = GPT2LMHeadModel(GPT2Config(**shape)).to(dtype).eval()
    count = bare.config.vocab_size
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(count)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bare.save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "model")
    ids = torch.randint(0, count, (texts, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    (folder / "texts.txt").write_text("".join(" ".join(f"w{one}" for one in text) + "\n" for text in ids))
    return bare, folder / "texts.txt"


def clock(device: str) -> float:
    """Seconds: of the wall where a GPU computes, of the processor else."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def peak(device: str) -> int:
    """Bytes at most held so far."""
    return (
        torch.cuda.max_memory_allocated()
        if device == "cuda"
        else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    )


class Beside:
    """Hears of every shard, and lets the bare network read as many tokens."""

    def __init__(self, bare: Any, device: str, tokens: int, batch: int) -> None:
        self.bare, self.device, self.ids = (
            bare,
            device,
            torch.randint(0, bare.config.vocab_size, (batch, tokens), device=device),
        )
        self.own: list[float] = []
        self.other: list[float] = []
        self.peaks: list[int] = []
        self.tokens: list[int] = []
        self.forward()
        self.began = clock(device)

    @torch.no_grad()
    def forward(self) -> None:
        self.bare(input_ids=self.ids, use_cache=False)

    def __call__(self, progress: CorpusProgress) -> None:
        ended = clock(self.device)
        self.own.append(ended - self.began)
        self.tokens.append(progress.tokens - sum(self.tokens))
        self.peaks.append(peak(self.device))
        for _ in range(max(1, self.tokens[-1] // self.ids.numel())):
            self.forward()
        self.began = clock(self.device)
        self.other.append(self.began - ended)


def measured(folder: Path, name: str, bare: Any, job: Job, device: str, batch: int) -> dict[str, object]:
    """One set of analyses over all texts.

    A shard is told once the next one is computed. So the first time is that of opening and of two shards, and is thrown away; those
    after it are of one shard each, and the last one of writing alone.
    """
    beside = Beside(bare, device, job.length, batch)
    run_job(job, folder / name.replace(" ", "_"), on_progress=beside)
    own, tokens, at_once = beside.own[1:], beside.tokens[2:], beside.ids.numel()
    bares = [max(1, t // at_once) * at_once / s for t, s in zip(beside.tokens, beside.other, strict=True)]
    rate, bar, half = sum(tokens) / sum(own), BARS[device].get(name, 0.0), (len(own) - 1) // 2
    row: dict[str, object] = {
        "name": name, "tokens": sum(beside.tokens), "tokens a second": rate, "bare": median(bares), "ratio": rate / median(bares),
        "bar": bar, "memory": beside.peaks[-1] / beside.peaks[1], "twice the texts": sum(own[: 2 * half]) / sum(own[:half]),
    }  # fmt: skip
    row |= {"busy": busy(folder, job)} if device == "cuda" else {}
    print(
        f"{name:30s} {rate:9,.0f} tokens/s, bare {row['bare']:9,.0f}: {row['ratio']:.2f}, bar {bar} "
        f"{'met' if rate / median(bares) >= bar else 'MISSED'}; memory x {row['memory']:.2f}, twice the texts x "
        f"{row['twice the texts']:.2f}{'; GPU busy ' + format(row['busy'], '.0%') if 'busy' in row else ''}",
        flush=True,
    )
    return row


def busy(folder: Path, job: Job) -> float:
    """The share of time in which kernels run while a shard is computed, the next one read and the one before written.

    Their time is that of one shard under a profiler, the whole time that of another one of the same size without: a profiler takes its own.
    """
    from torch.profiler import ProfilerActivity, profile

    inputs, shards = plan_shards(list(job.texts), job.column, job.shard)
    worker = Worker(job, folder / "busy", open_model(job))
    worker.work(inputs, *shards[:2])
    began = clock("cuda")
    worker.work(inputs, *shards[1:3])
    whole = clock("cuda") - began
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        worker.work(inputs, *shards[2:4])
        torch.cuda.synchronize()
    worker.close()
    ranges = [one.time_range for one in seen.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    return covered([(one.start, one.end) for one in ranges]) * 1e-6 / whole


def covered(ranges: Sequence[tuple[float, float]]) -> float:
    """How long at least one of some kernels ran: two at a time on two streams count once.

    >>> covered([(0, 2), (5, 6), (1, 3)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(ranges):
        total, until = total + max(0.0, end - max(start, until)), max(until, end)
    return total


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--at-once", type=int, default=64, help="texts computed at once on a GPU, by the bare network too (64)"
    )
    asked = parser.parse_args(words)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape, dtype = (MEDIUM, torch.bfloat16) if device == "cuda" else (SMALL, torch.float32)
    tokens, batch, shards, each = (
        (1024, asked.at_once, 7 if asked.quick else 12, 256) if device == "cuda" else (256, 2, 6, 4)
    )
    if asked.smallest:
        shape, dtype, tokens, batch, shards, each = TINY, torch.float32, 24, 4, 4, 4
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        bare, texts = made(folder, shape, dtype, shards * each, tokens)
        size = texts.stat().st_size // shards
        job = Job(
            (str(texts),), str(folder / "model"), length=tokens, batch=batch * tokens, shard=size, device=device,
            dtype=str(dtype).removeprefix("torch."),
        )  # fmt: skip
        chosen = dict(list(SETS.items())[: 1 if device == "cpu" and not asked.smallest else 2])
        rows = [
            measured(folder, name, bare.to(device), Job(**vars(job) | {"analyses": which}), device, batch)
            for name, which in chosen.items()
        ]
    keep("corpus", rows, smallest=asked.smallest)


if __name__ == "__main__":
    main()
