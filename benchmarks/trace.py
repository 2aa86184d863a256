"""What it costs to see: a trace beside the bare forward, statistics of all weights, operators beside dense SVDs, memory.

    python benchmarks/trace.py             GPT-2-small shape on the CPU, about five minutes
    python benchmarks/trace.py --quick     64 and 256 tokens, few rounds
    python benchmarks/trace.py --cuda      GPT-2-medium shape, 16 x 1024 tokens, bfloat16
    make peers                             the same on the CPU, with TransformerLens and nnsight beside it

Random weights of the right shape. Ratios are time of ours over time of the peer, interleaved, medians: below 1 is faster.
"""

import sys
from collections.abc import Callable

import torch
from peers import INSTALLED, SEERS
from timing import interleaved, keep, peak_bytes, ratio

import rheoscope as rs

QUICK = "--quick" in sys.argv
SMALL = "dict(n_layer=12, n_head=12, n_embd=768)"


def network(shape: str, context: int = 1024) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**eval(shape), n_positions=context)).eval()


def row(name: str, tokens: int, peer: str, value: float, noise: float) -> dict[str, object]:
    print(f"{name:44s} {tokens:6d} tokens   {value:6.3f} +- {noise:.3f} of {peer}", flush=True)
    return {"name": name, "tokens": tokens, "peer": peer, "time ratio": value, "noise": noise}


def against(methods: dict[str, Callable[[], object]], peer: str, tokens: int, rounds: int) -> list[dict[str, object]]:
    seconds = interleaved(methods, rounds, warm=1)
    print(f"  {peer}: {1000 * sorted(seconds[peer])[len(seconds[peer]) // 2]:.0f} ms")
    rows = []
    for name in methods:
        if name != peer:
            speed, noise = ratio(seconds, name, peer)
            rows.append(row(name, tokens, peer, 1 / speed, noise / speed**2))
    return rows


def cpu() -> list[dict[str, object]]:
    bare = network(SMALL)
    model, seers = rs.load(bare), {name: make(bare) for name, make in SEERS.items()}
    rows = []
    for n, rounds in ((64, 15), (256, 9), (1024, 5))[: 2 if QUICK else 3]:
        ids = torch.randint(0, 50257, (n,))
        trace = model.trace(ids)

        def forward(ids: torch.Tensor = ids) -> None:
            with torch.no_grad():
                bare(input_ids=ids[None], use_cache=False)

        methods = {
            "bare forward": forward,
            "trace": lambda ids=ids: model.trace(ids),
            "trace with logits": lambda ids=ids: model.trace(ids, logits=True),
            "statistics of all weights": lambda trace=trace: [trace.statistics(layer) for layer in range(12)],
            **{name: lambda see=see, ids=ids: see(ids[None]) for name, see in seers.items()},
        }
        rows += against(methods, "bare forward", n, rounds)
    return rows + operators(model)


def operators(model: object) -> list[dict[str, object]]:
    """All 144 heads from r x r matrices, beside the singular values of the dense matrices of one layer (times twelve)."""
    heads = model.view.blocks[0]
    methods = {
        "dense SVDs, one layer": lambda: torch.linalg.svdvals(torch.stack([heads.M().dense(), heads.F().dense()])),
        "operators of 144 heads": lambda: rs.operators(model.view),
    }
    seconds = interleaved(methods, 3, warm=1)
    speed, noise = ratio(seconds, "operators of 144 heads", "dense SVDs, one layer")
    return [
        row(
            "operators of 144 heads",
            0,
            "dense SVDs of 144 heads (12 x one layer)",
            1 / speed / 12,
            noise / speed**2 / 12,
        )
    ]


def memory() -> list[dict[str, object]]:
    """Peak memory above the weights: a trace, beside tools that keep all states and weights."""
    start = (
        "import torch, rheoscope as rs\nfrom transformers import GPT2Config, GPT2LMHeadModel\nfrom peers import SEERS\n"
        f"net = GPT2LMHeadModel(GPT2Config(**{SMALL}, n_positions={{context}})).eval()\n"
        "ids = torch.randint(0, 50257, ({n},))\n"
    )
    ours = start + "model = rs.load(net)\n# measured\ntrace = model.trace(ids)\n"
    theirs = {name: start + f"see = SEERS['{name}'](net)\n# measured\nseen = see(ids[None])\n" for name in SEERS}
    cases = [("trace", ours, 1024), *((name, script, 1024) for name, script in theirs.items()), ("trace", ours, 16384)]
    rows = []
    for name, script, n in cases[: len(cases) - QUICK]:
        used = peak_bytes(script.format(n=n, context=max(n, 1024)))
        print(f"{name:44s} {n:6d} tokens   {used / 2**20:8.0f} MiB above the weights", flush=True)
        rows.append({"name": name, "tokens": n, "bytes above the weights": used})
    return rows


def cuda() -> list[dict[str, object]]:
    """GPT-2-medium shape, 16 x 1024 tokens, bfloat16: absolute times, on the GPU alone."""
    bare = network("dict(n_layer=24, n_head=16, n_embd=1024)").to("cuda", torch.bfloat16)
    model = rs.load(bare)
    batch = list(torch.randint(0, 50257, (16, 1024)))
    stacked = torch.stack(batch).cuda()

    def timed(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            run()
            torch.cuda.synchronize()

        return call

    def forward() -> None:
        with torch.no_grad():
            bare(input_ids=stacked, use_cache=False)

    methods = {
        "bare forward": timed(forward),
        "trace": timed(lambda: model.trace(batch)),
        "trace with logits": timed(lambda: model.trace(batch, logits=True)),
    }
    rows = against(methods, "bare forward", 16384, 21)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.trace(batch)
    print(f"trace: {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB above the weights")
    return rows


if __name__ == "__main__":
    if "--cuda" in sys.argv:
        print("stored", keep("trace_cuda", cuda()))
    else:
        print("stored", keep("trace_and_peers" if INSTALLED else "trace", cpu() + memory()))
