"""The cost of the covers on a random model of GPT-2-small's shape: time over a bare forward, memory over all N² maps.

    python benchmarks/covers.py [--quick]

Times are medians of interleaved rounds on the same machine; nulls are left out. Below 1 is cheaper than the forward.
"""

import sys

import torch
from timing import interleaved, keep, peak_bytes

MAKE = """
import torch
import rheoscope as rs
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
network = GPT2LMHeadModel(GPT2Config()).eval()
model = rs.load(network)
ids = torch.randint(0, 50257, ({tokens},))
trace = model.trace(ids)
"""


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
def main() -> None:
    made: dict[str, object] = {}
    exec(MAKE.format(tokens=256), made)
    rs, model, trace, network, ids = (made[name] for name in ("rs", "model", "trace", "network", "ids"))
    methods = {
        "forward": lambda: network(input_ids=ids[None]),
        "agreement": lambda: rs.agreement(model.view, trace, draws=0),
        "distortion": lambda: rs.distortion(model.view, trace, draws=1),
        "stack": lambda: rs.stack(model.view, trace, draws=1),
        "composition": lambda: rs.composition(model.view),
        "head_types": lambda: rs.head_types(model, trace),
        "forward and backward": lambda: backward(network, ids),
        "reversed_attention": lambda: rs.reversed_attention(model, trace, target=7),
    }
    seconds = interleaved(methods, rounds=3 if "--quick" in sys.argv else 9, warm=1)
    rows: list[dict[str, object]] = []
    for name in methods:
        ratios = sorted(ours / bare for ours, bare in zip(seconds[name], seconds["forward"], strict=True))
        middle = len(ratios) // 2
        rows.append(
            {"what": name, "tokens": 256, "ms": 1000 * sorted(seconds[name])[middle], "of forward": ratios[middle]}
        )
    dense = dense_pair(model.view) * 144 * 132 / 2
    rows[list(methods).index("composition")]["of dense"] = sorted(seconds["composition"])[middle] / dense
    bare = sorted(a / b for a, b in zip(seconds["reversed_attention"], seconds["forward and backward"], strict=True))
    rows[-1]["of forward and backward"] = bare[middle]
    for name, code in (
        ("agreement", "rs.agreement(model.view, trace, draws=0)"),
        ("reversed_attention", "rs.reversed_attention(model, trace, target=7)"),
    ):
        warm = f"long, trace = trace, model.trace(ids[:32])\n{code}\ntrace = long\n"
        peak = peak_bytes(MAKE.format(tokens=1024) + f"{warm}# measured\n{code}")
        rows.append({"what": name, "tokens": 1024, "peak MB": peak / 2**20, "of all maps": peak / (144 * 1024**2 * 4)})
    for row in rows:
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}, flush=True)
    print("stored", keep("covers", rows))


if __name__ == "__main__":
    main()
