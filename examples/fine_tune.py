"""Fine-tune the default model to repeat lists of words, and save it as a directory that `rheoscope compare` opens.

python examples/fine_tune.py --out copying
rheoscope compare default copying --texts copying/lists.txt
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch

import rheoscope as rs
from rheoscope.models.checkpoint import save

WORD_LIST = """apple bank bird boat bread bridge candle chair church cloud coat dog door farm field fire fish flower garden glass
gold hand hill horse house island key king lake lamp letter market moon mountain night paper river road roof room sea
ship shoe silver snow song star stone street table tower town tree wall water wind window winter wood"""
WORDS = WORD_LIST.split()
LIST_LENGTH = 10


def word_lists(n: int, seed: int) -> list[str]:
    """Lists of random words, each written twice."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(WORDS), generator=generator)[:LIST_LENGTH] for _ in range(n)]
    lists = [" ".join(WORDS[i] for i in order) for order in orders]
    return [f"The list is {words}. Again, the list is {words}." for words in lists]


def fine_tune(model: Any, steps: int = 60, batch: int = 8, rate: float = 1e-4, seed: int = 0) -> Any:
    """A copy of the network after AdamW on such lists. Only the loss of the second list counts."""
    network = copy.deepcopy(model.network).eval()  # without dropout
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0)
    for step in range(steps):
        loss = torch.stack(
            [second_list_loss(network, model.ids(text)) for text in word_lists(batch, 1000 * seed + step)]
        ).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def second_list_loss(network: Any, ids: torch.Tensor) -> torch.Tensor:
    """−log p per token of the second half of a text."""
    log_probs = network(ids[None])[0, :-1].log_softmax(-1)
    losses = -log_probs.gather(1, ids[1:, None])[:, 0]
    return losses[len(losses) // 2 :].mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the directory of the fine-tuned model")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    model = rs.load()
    save(fine_tune(model, options.steps), options.out, tokenizer=model.tokenizer)
    (options.out / "lists.txt").write_text("\n".join(word_lists(16, seed=-1 % 2**32)) + "\n", encoding="utf-8")
    print(f"wrote {options.out}: the model after {options.steps} steps, and 16 new lists in lists.txt")


if __name__ == "__main__":
    main()
