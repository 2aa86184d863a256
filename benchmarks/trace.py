"""Time and memory of traces, weight statistics and operators, compared with a bare forward pass and with other tools.

    python benchmarks/trace.py             GPT-2-small shape on the CPU, about five minutes
    python benchmarks/trace.py --quick     64 and 256 tokens, fewer rounds (--smallest: seconds, nothing is stored)
    python benchmarks/trace.py --cuda      GPT-2-medium shape, 16 x 1024 tokens, bfloat16
    make peers                             the same on the CPU, with TransformerLens and nnsight

Weights are random. A ratio is our time divided by the peer's, as the median of interleaved rounds: below 1, we are faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from peers import INSTALLED, TRACERS
from timing import interleaved, make_parser, peak_bytes, ratio, store_rows

import rheoscope as rs

SMALL = "dict(n_layer=12, n_head=12, n_embd=768, n_positions=1024)"
TINY = "dict(n_layer=2, n_head=2, n_embd=8, n_positions=32, vocab_size=50, bos_token_id=0, eos_token_id=0)"
MEDIUM = "dict(n_layer=24, n_head=16, n_embd=1024, n_positions=1024)"


@dataclass(frozen=True)
class Size:
    """The shape of the model, (tokens, rounds) for timing, tokens for memory, and the length of one long trace."""

    shape: str = SMALL
    timed: Sequence[tuple[int, int]] = ((64, 15), (256, 9), (1024, 5))
    measured: int = 1024
    long: int | None = 16384
    fresh: bool = True


FULL = Size()
QUICK = replace(FULL, timed=FULL.timed[:2], long=None)
SMALLEST = Size(TINY, timed=((8, 2),), measured=16, long=None, fresh=False)


def network(shape: str) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**eval(shape))).eval()


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


def cpu(size: Size) -> list[dict[str, object]]:
    bare = network(size.shape)
    model, tracers = rs.load(bare), {name: make(bare) for name, make in TRACERS.items()}
    rows = []
    for n, rounds in size.timed:
        ids = torch.randint(0, bare.config.vocab_size, (n,))
        trace = model.trace(ids)

        def forward(ids: torch.Tensor = ids) -> None:
            with torch.no_grad():
                bare(input_ids=ids[None], use_cache=False)

        methods = {
            "bare forward": forward,
            "trace": lambda ids=ids: model.trace(ids),
            "trace with logits": lambda ids=ids: model.trace(ids, logits=True),
            "statistics of all weights": lambda trace=trace: [
                trace.statistics(layer) for layer in range(model.view.layers)
            ],
            **{name: lambda run=run, ids=ids: run(ids[None]) for name, run in tracers.items()},
        }
        rows += against(methods, "bare forward", n, rounds)
    return rows + operators(model)


def operators(model: object) -> list[dict[str, object]]:
    """`rs.operators`, compared with singular values of the dense matrices of one layer times the number of layers."""
    heads, layers = model.view.layer_heads[0], model.view.layers
    ours = f"operators of {layers * heads.n_heads} heads"
    methods = {
        "dense SVDs, one layer": lambda: torch.linalg.svdvals(torch.stack([heads.M().dense(), heads.F().dense()])),
        ours: lambda: rs.operators(model.view),
    }
    seconds = interleaved(methods, 3, warm=1)
    speed, noise = ratio(seconds, ours, "dense SVDs, one layer")
    return [
        row(
            ours,
            0,
            f"dense SVDs of {layers * heads.n_heads} heads ({layers} x one layer)",
            1 / speed / layers,
            noise / speed**2 / layers,
        )
    ]


def memory(size: Size) -> list[dict[str, object]]:
    """Peak memory above the weights of a trace and of tools that store all states and attention weights."""
    start = (
        "import torch, rheoscope as rs\nfrom transformers import GPT2Config, GPT2LMHeadModel\nfrom peers import TRACERS\n"
        f"net = GPT2LMHeadModel(GPT2Config(**{size.shape} | dict(n_positions={{n}}))).eval()\n"
        "ids = torch.randint(0, net.config.vocab_size, ({n},))\n"
    )
    ours = start + "model = rs.load(net)\n# measured\ntrace = model.trace(ids)\n"
    theirs = {name: start + f"run = TRACERS['{name}'](net)\n# measured\noutputs = run(ids[None])\n" for name in TRACERS}
    cases = [(name, script, size.measured) for name, script in ({"trace": ours} | theirs).items()]
    rows = []
    for name, script, n in cases + ([] if size.long is None else [("trace", ours, size.long)]):
        used = peak_bytes(script.format(n=n), size.fresh)
        print(f"{name:44s} {n:6d} tokens   {used / 2**20:8.0f} MiB above the weights", flush=True)
        rows.append({"name": name, "tokens": n, "bytes above the weights": used})
    return rows


def cuda() -> list[dict[str, object]]:
    """Times and memory on a GPU, with GPT-2-medium's shape and 16 x 1024 tokens in bfloat16."""
    bare = network(MEDIUM).to("cuda", torch.bfloat16)
    model = rs.load(bare)
    batch = list(torch.randint(0, 50257, (16, 1024)))
    stacked = torch.stack(batch).cuda()

    def synchronised(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> None:
            run()
            torch.cuda.synchronize()

        return call

    def forward() -> None:
        with torch.no_grad():
            bare(input_ids=stacked, use_cache=False)

    methods = {
        "bare forward": synchronised(forward),
        "trace": synchronised(lambda: model.trace(batch)),
        "trace with logits": synchronised(lambda: model.trace(batch, logits=True)),
    }
    rows = against(methods, "bare forward", 16384, 21)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.trace(batch)
    print(f"trace: {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB above the weights")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    options = parser.parse_args(argv)
    if options.cuda:
        store_rows("trace_cuda", cuda(), options.smallest)
    else:
        size = SMALLEST if options.smallest else QUICK if options.quick else FULL
        store_rows("trace_and_peers" if INSTALLED else "trace", cpu(size) + memory(size), options.smallest)


if __name__ == "__main__":
    main()
