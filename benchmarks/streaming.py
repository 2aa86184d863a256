"""Streamed models: equality with the resident model, peak memory, and speed relative to reading the same files.

    python benchmarks/streaming.py MODEL_DIRECTORY           a checkpoint on the CPU, about two minutes for 135M parameters
    python benchmarks/streaming.py --make 8b FOLDER --cuda   make an 8B shape with random bfloat16 weights and trace it on a GPU
    python benchmarks/streaming.py --smallest                a tiny checkpoint, seconds, nothing is stored

Bars: all numbers equal those of the resident model (to the last bit on the CPU); the peak memory of loading and tracing is at
most 1.5 times the largest block (the embedding counts as one) plus the points; on a GPU an 8B shape is traced within 4 GiB, at .7
or more of the speed at which the same files are read in the same run. A speed ratio is interleaved with reading, by medians.
"""

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from timing import interleaved, make_parser, peak_bytes, ratio, store_rows

import rheoscope as rs
from rheoscope.running.read_buffers import CHUNK_BYTES
from rheoscope.running.streamed_weights import READERS, StreamedWeights, weights_of
from rheoscope.running.tensor_files import TensorFile

LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
TINY = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
SHAPES = {"8b": LLAMA_8B, "tiny": TINY}
MEMORY_BAR, SPEED_BAR, GPU_BYTES = 1.5, 0.7, 2**32
SHARD_BYTES, POOL_NUMBERS, SCALE = 2 * 2**30, 2**24, 0.02
TOKENS = 64


# Checkpoints with random weights


def make_checkpoint(folder: Path, shape: dict[str, int]) -> Path:
    """A Llama with random bfloat16 weights in shards. Weights are stretches of one table of normal numbers, so it takes seconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**shape, max_position_embeddings=8192, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    n_numbers = min(POOL_NUMBERS, max(x.numel() for x in network.parameters()))
    pool = (torch.randn(n_numbers, generator=torch.Generator().manual_seed(0)) * SCALE).bfloat16()
    weight_map = {}
    for number, shard in enumerate(shards({name: x.shape for name, x in network.named_parameters()})):
        name = f"model-{number:05}.safetensors"
        write_shard(folder / name, shard, pool)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder)
    return folder


def shards(shapes: dict[str, torch.Size]) -> Iterator[dict[str, torch.Size]]:
    shard: dict[str, torch.Size] = {}
    for name, shape in shapes.items():
        if sum(2 * size.numel() for size in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
        shard[name] = shape
    yield shard


def write_shard(path: Path, shapes: dict[str, torch.Size], pool: torch.Tensor) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + 2 * shape.numel()]}
        offset += 2 * shape.numel()
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for number, (name, shape) in enumerate(shapes.items()):
            numbers = torch.ones_like(pool) if "norm" in name else pool.roll(7919 * number)
            data, left = memoryview(numbers.view(torch.uint8).numpy()), 2 * shape.numel()
            while left:
                left -= file.write(data[:left])


# What is measured


def read_files(paths: Sequence[Path]) -> int:
    """Read all files into buffers as a streamed model does, in several threads, and return the number of bytes."""
    files = [TensorFile(path) for path in paths]
    jobs = [(file, start) for file in files for start in range(0, file.signature[1], CHUNK_BYTES)]

    buffers = threading.local()

    def allocate() -> None:
        buffers.bytes = memoryview(bytearray(CHUNK_BYTES))

    def read(job: tuple[TensorFile, int]) -> int:
        file, start = job
        buffer = buffers.bytes[: file.signature[1] - start]
        file.read_into(buffer, start)
        return len(buffer)

    with ThreadPoolExecutor(READERS, initializer=allocate) as pool:
        return sum(pool.map(read, jobs))


def drop_from_cache(paths: Sequence[Path]) -> None:
    """Ask the system to read these files from the disk the next time."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def row(name: str, value: Any, bar: str = "", passes: bool | None = None) -> dict[str, object]:
    verdict = "" if passes is None else "   passes" if passes else "   FAILS"
    print(f"{name:64s} {value!s:>22s}   {bar}{verdict}", flush=True)
    return {"name": name, "value": value, "bar": bar, "passes": passes}


def equality(directory: Path, ids: Sequence[torch.Tensor]) -> list[dict[str, object]]:
    """Whether points, logits, digest and operators equal those of the resident model, bit for bit."""
    resident, streamed = (rs.load(directory, device="cpu", stream=stream) for stream in (False, True))
    traces = [model.trace(ids, logits=True) for model in (resident, streamed)]
    same = {
        "points": torch.equal(traces[0].points, traces[1].points),
        "logits": torch.equal(traces[0].logits, traces[1].logits),
        "weights digest": resident.view.facts["weights"] == streamed.view.facts["weights"],
        "certificate": resident.view.facts["certificate"] == streamed.view.facts["certificate"],
        "operators": rs.operators(resident.view).equals(rs.operators(streamed.view)),
        "agreement": rs.agreement(traces[0][0], draws=2).equals(rs.agreement(traces[1][0], draws=2)),
    }
    return [row(f"{name} of the streamed model", value, "bit-equal", value) for name, value in same.items()]


def memory(
    directory: Path, weights: StreamedWeights, points: int, logit_bytes: int, fresh: bool
) -> list[dict[str, object]]:
    """Peak memory above that of a process that has imported the code of the network (118 MB for Llama)."""
    largest = max([*weights.block_bytes, *(table.n_bytes for table in weights.tables)])
    start = (
        "import torch, transformers, rheoscope as rs\nfrom transformers import AutoTokenizer, AutoModelForCausalLM\n"
        "from rheoscope.pretrained import build_view, certificate, checkpoint, streaming\n"
        f"checkpoint.model_class(checkpoint.read_config({str(directory)!r}, None))\n"  # imports the code of the network
        "rs.load().trace('warm up')\n"
        f"ids = list(range(5, {5 + TOKENS}))\n# measured\n"
    )
    load = f"model = rs.load({str(directory)!r}, device='cpu', stream={{stream}})\n"
    bar = MEMORY_BAR * largest + points
    trace = load + "trace = model.trace(ids, logits={logits})\n"
    cases = {
        "loading and a trace, streamed": (True, False),
        "the same with logits, streamed": (True, True),
        "loading and a trace, resident": (False, False),
    }
    sizes = {"largest block": largest, "points": points, "logits": logit_bytes}
    rows = [row(f"bytes of the {name}", n_bytes) for name, n_bytes in sizes.items()]
    for name, (stream, logits) in cases.items():
        used = peak_bytes(start + trace.format(stream=stream, logits=logits), fresh, returns_memory=False)
        has_bar = stream and not logits
        limit = f"<= {bar:,.0f} (1.5 largest blocks + points)" if has_bar else ""
        rows.append(row(f"peak bytes of {name}", used, limit, used <= bar if has_bar else None))
    return rows


def speed(
    model: Any, ids: Sequence[torch.Tensor], paths: Sequence[Path], rounds: int, bar: bool
) -> list[dict[str, object]]:
    """The bytes per second of a trace, relative to reading the same files, from the cache of the system and from the disk."""
    weights = weights_of(model.network)
    assert weights is not None
    read_bytes = sum(path.stat().st_size for path in paths)
    block_bytes = sum(tensor_bytes(weight) for block in weights.blocks for weight in block)

    def trace() -> None:
        weights.drop_all()
        model.trace(ids)
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    def cold(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            drop_from_cache(paths)
            run()

        return call

    rows = []
    for place, change in (("the system's cache", lambda run: run), ("the disk", cold)):
        seconds = interleaved({"read": change(lambda: read_files(paths)), "trace": change(trace)}, rounds, warm=1)
        value, noise = ratio(seconds, "trace", "read")
        value, noise = value * block_bytes / read_bytes, noise * block_bytes / read_bytes
        fastest = read_bytes / min(seconds["read"])
        rows.append(row(f"bytes/s of reading the files from {place}", f"{fastest:.3g}"))
        rows.append(
            row(
                f"speed of a trace of {TOKENS} tokens / reading from {place} (+- {noise:.2f})",
                round(value, 3),
                f">= {SPEED_BAR}" if bar else "",
                value >= SPEED_BAR if bar else None,
            )
        )
    return rows


def tensor_bytes(weight: Any) -> int:
    """The bytes of a weight in its file."""
    source = weight.source
    return weight.n_bytes * source.file_dtype.itemsize // source.dtype.itemsize


def on_cpu(directory: Path, rounds: int, fresh: bool) -> list[dict[str, object]]:
    model = rs.load(directory, device="cpu", stream=True)
    weights, paths = weights_of(model.network), sorted(directory.glob("*.safetensors"))
    assert weights is not None
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(5, len(model.view.embed), (n,), generator=generator) for n in (TOKENS, TOKENS // 2)]
    trace = model.trace(ids[0], logits=True)
    return [
        *equality(directory, ids),
        *memory(directory, weights, trace.points.nbytes, trace.logits.nbytes, fresh),
        *speed(model, ids[:1], paths, rounds, bar=False),
    ]


def on_gpu(directory: Path, rounds: int, compare: bool) -> list[dict[str, object]]:
    """The bars of a GPU: memory within 4 GiB, which torch is not allowed to exceed, and the speed of reading."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(GPU_BYTES / total)
    torch.cuda.reset_peak_memory_stats()
    model = rs.load(directory, device="cuda", dtype="bfloat16", stream=True)
    ids = [torch.randint(5, len(model.view.embed), (TOKENS,), generator=torch.Generator().manual_seed(0))]
    trace = model.trace(ids)
    used = torch.cuda.max_memory_reserved()
    limit = f"<= {GPU_BYTES:,} (4 GiB)"
    rows = [row("GPU bytes that torch reserved for loading and a trace", used, limit, used <= GPU_BYTES)]
    rows.append(row("certificate", str(model.view.facts["certificate"])))
    rows += speed(model, ids, sorted(directory.glob("*.safetensors")), rounds, bar=True)
    if compare:
        torch.cuda.set_per_process_memory_fraction(1.0)
        resident = rs.load(directory, device="cuda", dtype="bfloat16", stream=False).trace(ids)
        error = float((trace.points - resident.points).norm() / resident.points.norm())
        rows.append(row("relative difference of the points from the resident model", error, "<= 1e-3", error <= 1e-3))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("directory", nargs="?", type=Path, metavar="MODEL_DIRECTORY")
    parser.add_argument("--make", choices=SHAPES, help="first make a checkpoint of this shape in MODEL_DIRECTORY")
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    options = parser.parse_args(argv)
    rounds = 2 if options.smallest else 3 if options.quick else 5
    if options.smallest:
        with tempfile.TemporaryDirectory() as folder:
            directory = make_checkpoint(Path(folder), TINY)
            rows = on_gpu(directory, rounds, compare=True) if options.cuda else on_cpu(directory, rounds, fresh=False)
    elif options.directory is None:
        parser.error("MODEL_DIRECTORY is required; or type --smallest")
    else:
        directory = options.directory
        if options.make:
            make_checkpoint(directory, SHAPES[options.make])
        rows = on_gpu(directory, rounds, compare=True) if options.cuda else on_cpu(directory, rounds, fresh=True)
    store_rows("streaming_cuda" if options.cuda else "streaming", rows, options.smallest)


if __name__ == "__main__":
    main()
