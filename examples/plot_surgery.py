"""What does asymmetry cost, head by head, do later layers heal it, and which heads matter? Tables and figures.

    python examples/plot_surgery.py [MODEL] [TEXT_FILE] [--prompts FILE] [--pieces 100] [--tokens 512] [--device cuda] [--out figures]

Prompts are lines of JSON, `{"prompt": "…", "target": " Mary", "foil": " John"}`, the foil if there is one. Without a model and a
file it takes the model that ships and a paragraph of its own.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import rheoscope as rs

PARAGRAPH = (
    "The river rises in the hills north of the town and flows south through the old mill district. In the nineteenth century "
    "the mills along the river made cotton and wool. The mills closed after the war, and the buildings were turned into houses."
)
PROMPTS = [
    {"prompt": "The keys to the cabinet", "target": " are", "foil": " is"},
    {"prompt": "The key to the cabinets", "target": " is", "foil": " are"},
]


def pieces(model: Any, file: Path | None, count: int, tokens: int) -> list[Any]:
    """The first so many pieces of a text, of the same length."""
    ids = model.ids(PARAGRAPH if file is None else file.read_text()[: 8 * count * tokens])
    size = min(tokens, len(ids) // 5)
    return [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)][:count]


def head_by_head(model: Any, texts: list[Any], out: Path) -> None:
    for M in ("symmetric", "symmetric_naive"):
        found = rs.surgery(
            model, texts, M=M, per_head=True, progress=lambda done, every: print(f"{done} of {every} texts")
        )
        rs.plot(found, types=rs.head_types(model)).savefig(out / f"by-head-{M.replace('_', '-')}.png", dpi=80)
        for change in found.change.values:
            told = [
                float(found[name].sel(change=change)) for name in ("total_cost", "total_cost_low", "total_cost_high")
            ]
            own = found.head_cost.sel(change=change)
            print(M, change, "summed over heads", np.round(told, 4), "median head", round(float(own.median()), 5))
        surely = (
            int((found.head_excess_low.sel(change="cloud") > 0).sum()),
            int((found.head_excess_high.sel(change="cloud") < 0).sum()),
        )
        print(M, "heads that cost surely more than their control, and less:", surely)


def healing(model: Any, texts: list[Any], layer: int, out: Path) -> None:
    found = rs.decay(model, texts, model.view.head_indices(layer), M="symmetric")
    rs.plot(found).savefig(out / f"decay-{layer}.png", dpi=80)
    print(
        "remains at the end:",
        dict(zip(found.change.values.tolist(), found.deviation_ratio.values[:, -1].round(2), strict=True)),
    )


def rankings(model: Any, prompts: list[dict[str, str]], out: Path) -> None:
    foils = [one["foil"] for one in prompts] if all(one.get("foil") for one in prompts) else None
    targets = [one["target"] for one in prompts]
    found = rs.faithfulness(model, [one["prompt"] for one in prompts], targets=targets, foils=foils)
    rs.plot(found).savefig(out / "faithfulness.png", dpi=80)
    print(found[["excess_loss", "excess_loss_low", "excess_loss_high"]].to_pandas().round(3))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--pieces", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    model = rs.load(asked.model, device=asked.device)
    texts = pieces(model, asked.file, asked.pieces, asked.tokens)
    head_by_head(model, texts, asked.out)
    for layer in range(0, model.view.layers, 3):
        healing(model, texts[:20], layer, asked.out)
    prompts = (
        PROMPTS if asked.prompts is None else [json.loads(line) for line in asked.prompts.read_text().splitlines()]
    )
    rankings(model, prompts, asked.out)


if __name__ == "__main__":
    main()
