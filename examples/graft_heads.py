"""Copy the heads of a fine-tuned model into the default model, one at a time, and measure how much of the change each one makes.

python examples/fine_tune.py --out copying
python examples/graft_heads.py copying
"""

import argparse
import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from fine_tune import second_list_loss

import rheoscope as rs

MATRICES = ("W_Q", "W_K", "W_V", "W_O")
LISTS = "lists.txt"


@torch.no_grad()
def graft(base: Any, donor: Any, heads: Iterable[tuple[int, int]]) -> Any:
    """A copy of the base network whose heads (layer, head) have the weights of the donor."""
    network = copy.deepcopy(base.network).eval()
    view = rs.load(network, tokenizer=base.tokenizer).view
    for layer, head in heads:
        for name in MATRICES:
            getattr(view.layer_heads[layer], name)[head] = getattr(donor.view.layer_heads[layer], name)[head]
    return network


@torch.no_grad()
def mean_loss(network: Any, texts: Sequence[torch.Tensor]) -> float:
    """The loss per token of the second list, in nats."""
    return sum(float(second_list_loss(network, ids)) for ids in texts) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tuned", type=Path, help="the directory of the fine-tuned model")
    options = parser.parse_args()
    base, tuned = rs.load(), rs.load(options.tuned)
    texts = [base.ids(text) for text in (options.tuned / LISTS).read_text(encoding="utf-8").splitlines()]
    heads = [(layer, head) for layer in range(base.view.layers) for head in range(base.view.heads)]
    print(f"before {mean_loss(base.network.eval(), texts):.3f}, after {mean_loss(tuned.network.eval(), texts):.3f}")
    print("head   its new weights in the old model   its old weights in the new model")
    for layer, head in heads:
        new, old = (graft(*models, [(layer, head)]) for models in ((base, tuned), (tuned, base)))
        print(f"L{layer}.H{head}  {mean_loss(new, texts):.3f}   {mean_loss(old, texts):.4f}", flush=True)
    new, old = graft(base, tuned, heads), graft(tuned, base, heads)
    print(f"all new heads in the old model {mean_loss(new, texts):.3f}")
    print(f"all other new weights in the old model {mean_loss(old, texts):.3f}")


if __name__ == "__main__":
    main()
