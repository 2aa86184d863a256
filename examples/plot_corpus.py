"""Do the heads of a model do the same in two corpora? A table of means, and every head of one beside the other.

rheoscope corpus run --model M --texts one.jsonl --analyses agreement,head_types,head_statistics --out one
rheoscope corpus run --model M --texts two.jsonl --analyses agreement,head_types,head_statistics --out two
python examples/plot_corpus.py one two --out figures
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import rheoscope as rs

FIELDS = {
    "agreement": ["agreement", "agreement_raw", "agreement_uncentred", "agreement_embedding", "position_baseline"],
    "head_statistics": ["first_token_weight", "entropy", "attention_distance"],
    "head_types": ["previous_token", "induction", "duplicate_token", "local"],
}
DRAWN = {
    "agreement": "agreement with similarity\n(distance and length taken out)",
    "first_token_weight": "weight on the first token",
    "induction": "induction",
}


def by_documents(run: Any, analysis: str, field: str) -> tuple[float, float]:
    """The mean over heads and texts, and half the width of its 95 % interval over documents (the pieces of one lie together)."""
    rows = run.sql(
        f"""select avg(value) as value, count(*) as pieces from (
              select text, avg({field}) as value from {analysis}.layer_head group by text
            ) join texts using (text) group by file, line"""
    ).fetchnumpy()
    mean, count = np.average(rows["value"], weights=rows["pieces"]), len(rows["value"])
    off = rows["pieces"] * (rows["value"] - mean)
    return float(mean), 1.96 * float(np.sqrt((off**2).sum() * count / (count - 1)) / rows["pieces"].sum())


def tell(one: Any, other: Any) -> None:
    for analysis, fields in FIELDS.items():
        for field in fields:
            told = "   ".join(
                f"{mean:8.4f} ± {half:.4f}"
                for mean, half in (by_documents(run, analysis, field) for run in (one, other))
            )
            a, b = (run[analysis][field].values.ravel() for run in (one, other))
            print(
                f"{field:22s} {told}   heads: r {np.corrcoef(a, b)[0, 1]:.3f}, largest change {np.abs(b - a).max():.3f}"
            )
    for run in (one, other):
        found = run["agreement"]
        low, high, mean = (found[name].values for name in ("agreement_low", "agreement_high", "agreement"))
        top = [
            f"L{at // mean.shape[1]}.H{at % mean.shape[1]} {mean.ravel()[at]:.3f}"
            for at in np.argsort(-mean.ravel())[:5]
        ]
        print(
            f"{run.folder.name}: {(low > 0).sum()} heads above 0, {(high < 0).sum()} below, of {mean.size}; first {', '.join(top)}"
        )
        print(f"  median head by layer: {np.round(np.median(mean, 1), 2).tolist()}")
        n_sinks = (run["head_statistics"]["first_token_weight"].values > 0.5).sum()
        print(f"  heads with more than half of their weight on the first token: {n_sinks}")


def draw(one: Any, other: Any, out: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(DRAWN), figsize=(4.2 * len(DRAWN), 4.4), layout="constrained")
    home = {field: analysis for analysis, fields in FIELDS.items() for field in fields}
    for ax, (field, title) in zip(axes, DRAWN.items(), strict=True):
        a, b = one[home[field]], other[home[field]]
        layer = np.broadcast_to(a.layer.values[:, None], a[field].shape)
        shown = ax.scatter(a[field], b[field], c=layer, s=14, cmap="viridis", zorder=2)
        ends = [min(float(a[field].min()), float(b[field].min())), max(float(a[field].max()), float(b[field].max()))]
        ax.plot(ends, ends, color="#999", lw=0.8, zorder=1)
        ax.set(title=title, xlabel=one.folder.name, ylabel=other.folder.name, aspect="equal")
        ax.spines[["top", "right"]].set_visible(False)
    figure.colorbar(shown, ax=axes, label="layer", shrink=0.7)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "corpus-heads.png", dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    asked = parser.parse_args()
    one, other = rs.open_corpus(asked.select_head), rs.open_corpus(asked.other)
    tell(one, other)
    draw(one, other, asked.out)


if __name__ == "__main__":
    main()
