"""The cost of a symmetric M in every head, its decay in later layers, and rankings of heads by importance.

    python examples/plot_surgery.py [MODEL] [TEXT_FILE] [--prompts FILE] [--pieces 100] [--tokens 512] [--device cuda] [--out figures]

Prompts are lines of JSON, `{"prompt": "…", "target": " Mary", "foil": " John"}`, where the foil is optional. Without arguments, it
uses the default model and one paragraph.
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
    """The first `count` pieces of a text, all of the same length."""
    ids = model.ids(PARAGRAPH if file is None else file.read_text()[: 8 * count * tokens])
    size = min(tokens, len(ids) // 5)
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)][:count]


def head_by_head(model: Any, texts: list[Any], out: Path) -> None:
    for M in ("symmetric", "symmetric_naive"):
        result = rs.surgery(
            model, texts, M=M, per_head=True, progress=lambda done, total: print(f"{done} of {total} texts")
        )
        rs.plot(result, types=rs.head_types(model)).savefig(out / f"by-head-{M.replace('_', '-')}.png", dpi=80)
        for change in result.change.values:
            costs = [
                float(result[name].sel(change=change)) for name in ("total_cost", "total_cost_low", "total_cost_high")
            ]
            head_costs = result.head_cost.sel(change=change)
            print(
                M, change, "summed over heads", np.round(costs, 4), "median head", round(float(head_costs.median()), 5)
            )
        significant = (
            int((result.head_excess_low.sel(change="cloud") > 0).sum()),
            int((result.head_excess_high.sel(change="cloud") < 0).sum()),
        )
        print(M, "heads that cost significantly more than their control, and less:", significant)


def healing(model: Any, texts: list[Any], layer: int, out: Path) -> None:
    result = rs.decay(model, texts, model.view.head_indices(layer), M="symmetric")
    rs.plot(result).savefig(out / f"decay-{layer}.png", dpi=80)
    print(
        "fraction of the deviation left at the end:",
        dict(zip(result.change.values.tolist(), result.deviation_ratio.values[:, -1].round(2), strict=True)),
    )


def rankings(model: Any, prompts: list[dict[str, str]], out: Path) -> None:
    foils = [entry["foil"] for entry in prompts] if all(entry.get("foil") for entry in prompts) else None
    targets = [entry["target"] for entry in prompts]
    result = rs.faithfulness(model, [entry["prompt"] for entry in prompts], targets=targets, foils=foils)
    rs.plot(result).savefig(out / "faithfulness.png", dpi=80)
    print(result[["excess_loss", "excess_loss_low", "excess_loss_high"]].to_pandas().round(3))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--pieces", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = rs.load(options.model, device=options.device)
    texts = pieces(model, options.file, options.pieces, options.tokens)
    head_by_head(model, texts, options.out)
    for layer in range(0, model.view.layers, 3):
        healing(model, texts[:20], layer, options.out)
    prompts = (
        PROMPTS if options.prompts is None else [json.loads(line) for line in options.prompts.read_text().splitlines()]
    )
    rankings(model, prompts, options.out)


if __name__ == "__main__":
    main()
