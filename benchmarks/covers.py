"""Time and memory of analyses of heads on a random model of GPT-2-small's shape.

    python benchmarks/covers.py [--quick | --smallest]

Times are medians of interleaved rounds, without nulls, divided by the time of a bare forward pass. Below 1, an analysis is cheaper
than the forward pass. Memory is divided by the size of all N × N attention maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from timing import interleaved, make_parser, peak_bytes, store_rows

SETUP = """
import torch
import rheoscope as rs
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
network = GPT2LMHeadModel(GPT2Config({shape})).eval()
model = rs.load(network)
ids = torch.randint(0, network.config.vocab_size, ({tokens},))
trace = model.trace(ids)
"""
MEASURED = [
    ("agreement", "rs.agreement(trace, draws=0)"),
    ("reversed_attention", "rs.reversed_attention(model, trace, target=7)"),
]


@dataclass(frozen=True)
class Size:
    """The shape of the model, tokens for timing and for memory (`long`), rounds, and whether memory is that of a fresh process."""

    shape: str = ""
    heads: int = 144
    tokens: int = 256
    long: int = 1024
    rounds: int = 9
    fresh: bool = True

    def make(self, tokens: int) -> str:
        return SETUP.format(shape=self.shape, tokens=tokens)

    @property
    def maps(self) -> int:
        """Bytes of the attention maps of all heads on the long text."""
        return 4 * self.heads * self.long**2


SMALLEST = Size(
    "n_layer=2, n_head=4, n_embd=8, vocab_size=50, bos_token_id=0, eos_token_id=0", 8, 24, 40, 2, fresh=False
)


def dense_pair(view: object) -> float:
    """Seconds of the three compositions of one pair of heads as products of dense (d, d) matrices."""
    F1, M2, F2 = view.head(0, 0).F.dense(), view.head(1, 0).M.dense(), view.head(1, 0).F.dense()

    def pair() -> None:
        for A, B in ((F1, M2), (F1, M2.mT), (F1, F2)):
            (A @ B).norm()

    return sorted(interleaved({"pair": pair}, rounds=9)["pair"])[4]


@torch.enable_grad()
def backward(network: object, ids: torch.Tensor) -> None:
    """A forward and backward pass of the loss of one token, for all weights."""
    network.zero_grad()
    torch.nn.functional.cross_entropy(network(input_ids=ids[None]).logits[0, -1:], torch.tensor([7])).backward()


@torch.no_grad()
def times(size: Size) -> list[dict[str, object]]:
    namespace: dict[str, object] = {}
    exec(size.make(size.tokens), namespace)
    rs, model, trace, network, ids = (namespace[name] for name in ("rs", "model", "trace", "network", "ids"))
    methods = {
        "forward": lambda: network(input_ids=ids[None]),
        "agreement": lambda: rs.agreement(trace, draws=0),
        "distortion": lambda: rs.distortion(trace, draws=2),
        "stack": lambda: rs.stack(trace, draws=1),
        "composition": lambda: rs.composition(model.view),
        "head_types": lambda: rs.head_types(model, trace),
        "forward and backward": lambda: backward(network, ids),
        "reversed_attention": lambda: rs.reversed_attention(model, trace, target=7),
    }
    seconds = interleaved(methods, size.rounds, warm=1)
    rows: list[dict[str, object]] = []
    for name in methods:
        ratios = sorted(ours / bare for ours, bare in zip(seconds[name], seconds["forward"], strict=True))
        middle = len(ratios) // 2
        rows.append(
            {
                "what": name,
                "tokens": size.tokens,
                "ms": 1000 * sorted(seconds[name])[middle],
                "of forward": ratios[middle],
            }
        )
    heads = model.view.layers * model.view.heads
    dense = dense_pair(model.view) * heads * (heads - model.view.heads) / 2
    rows[list(methods).index("composition")]["of dense"] = sorted(seconds["composition"])[middle] / dense
    bare = sorted(a / b for a, b in zip(seconds["reversed_attention"], seconds["forward and backward"], strict=True))
    rows[-1]["of forward and backward"] = bare[middle]
    return rows


def memory(size: Size) -> list[dict[str, object]]:
    """Peak memory, divided by the size of the attention maps of all heads."""
    rows: list[dict[str, object]] = []
    for name, code in MEASURED:
        warm_up = f"long, trace = trace, model.trace(ids[:32])\n{code}\ntrace = long\n"
        peak = peak_bytes(size.make(size.long) + f"{warm_up}# measured\n{code}", size.fresh)
        rows.append({"what": name, "tokens": size.long, "peak MB": peak / 2**20, "of all maps": peak / size.maps})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser(__doc__).parse_args(argv)
    size = SMALLEST if options.smallest else Size(rounds=3 if options.quick else 9)
    rows = times(size) + memory(size)
    for row in rows:
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}, flush=True)
    store_rows("covers", rows, options.smallest)


if __name__ == "__main__":
    main()
