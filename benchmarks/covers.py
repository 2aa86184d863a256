"""The cost of the covers on a random model of GPT-2-small's shape: time over a bare forward, memory over all N² maps.

    python benchmarks/covers.py [--quick | --smallest]

Times are medians of interleaved rounds on the same machine; nulls are left out. Below 1 is cheaper than the forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from timing import arguments, interleaved, keep, peak_bytes

MAKE = """
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
    """GPT-2-small, tokens where times are compared, tokens where memory is, rounds, and whether memory is a fresh process's."""

    shape: str = ""
    heads: int = 144
    tokens: int = 256
    long: int = 1024
    rounds: int = 9
    fresh: bool = True

    def make(self, tokens: int) -> str:
        return MAKE.format(shape=self.shape, tokens=tokens)

    @property
    def maps(self) -> int:
        """Bytes of all weights of all heads on the long text."""
        return 4 * self.heads * self.long**2


SMALLEST = Size(
    "n_layer=2, n_head=4, n_embd=8, vocab_size=50, bos_token_id=0, eos_token_id=0", 8, 24, 40, 2, fresh=False
)


def dense_pair(view: object) -> float:
    """Seconds of the three compositions of one pair of heads as (d, d) products, the operators given."""
    F1, M2, F2 = view.head(0, 0).F.dense(), view.head(1, 0).M.dense(), view.head(1, 0).F.dense()

    def pair() -> None:
        for A, B in ((F1, M2), (F1, M2.mT), (F1, F2)):
            (A @ B).norm()

    return sorted(interleaved({"pair": pair}, rounds=9)["pair"])[4]


@torch.enable_grad()
def backward(network: object, ids: torch.Tensor) -> None:
    """A bare training pass of one answer: the gradient of every weight."""
    network.zero_grad()
    torch.nn.functional.cross_entropy(network(input_ids=ids[None]).logits[0, -1:], torch.tensor([7])).backward()


@torch.no_grad()
def times(size: Size) -> list[dict[str, object]]:
    made: dict[str, object] = {}
    exec(size.make(size.tokens), made)
    rs, model, trace, network, ids = (made[name] for name in ("rs", "model", "trace", "network", "ids"))
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
    """Peaks over a table of all weights of all heads."""
    rows: list[dict[str, object]] = []
    for name, code in MEASURED:
        warm = f"long, trace = trace, model.trace(ids[:32])\n{code}\ntrace = long\n"
        peak = peak_bytes(size.make(size.long) + f"{warm}# measured\n{code}", size.fresh)
        rows.append({"what": name, "tokens": size.long, "peak MB": peak / 2**20, "of all maps": peak / size.maps})
    return rows


def main(words: Sequence[str] | None = None) -> None:
    asked = arguments(__doc__).parse_args(words)
    size = SMALLEST if asked.smallest else Size(rounds=3 if asked.quick else 9)
    rows = times(size) + memory(size)
    for row in rows:
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}, flush=True)
    keep("covers", rows, asked.smallest)


if __name__ == "__main__":
    main()
