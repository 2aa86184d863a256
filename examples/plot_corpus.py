"""Compare the heads of a model on two corpora: a table of means, and a scatter plot of all heads.

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
PLOTTED_FIELDS = {
    "agreement": "agreement with similarity\n(given distance and length)",
    "first_token_weight": "weight on the first token",
    "induction": "induction",
}


def by_documents(run: Any, analysis: str, field: str) -> tuple[float, float]:
    """The mean over heads and texts, and half its 95 % interval over documents. Segments of a document are not independent."""
    rows = run.sql(
        f"""select avg(value) as value, count(*) as pieces from (
              select text, avg({field}) as value from {analysis}.layer_head group by text
            ) join texts using (text) group by file, line"""
    ).fetchnumpy()
    mean, count = np.average(rows["value"], weights=rows["pieces"]), len(rows["value"])
    deviations = rows["pieces"] * (rows["value"] - mean)
    return float(mean), 1.96 * float(np.sqrt((deviations**2).sum() * count / (count - 1)) / rows["pieces"].sum())


def print_comparison(first: Any, second: Any) -> None:
    for analysis, fields in FIELDS.items():
        for field in fields:
            means = "   ".join(
                f"{mean:8.4f} ± {half_width:.4f}"
                for mean, half_width in (by_documents(run, analysis, field) for run in (first, second))
            )
            a, b = (run[analysis][field].values.ravel() for run in (first, second))
            print(
                f"{field:22s} {means}   heads: r {np.corrcoef(a, b)[0, 1]:.3f}, largest change {np.abs(b - a).max():.3f}"
            )
    for run in (first, second):
        agreement = run["agreement"]
        low, high, mean = (agreement[name].values for name in ("agreement_low", "agreement_high", "agreement"))
        strongest = [
            f"L{index // mean.shape[1]}.H{index % mean.shape[1]} {mean.ravel()[index]:.3f}"
            for index in np.argsort(-mean.ravel())[:5]
        ]
        print(
            f"{run.folder.name}: {(low > 0).sum()} heads above 0 and {(high < 0).sum()} below, of {mean.size}; "
            f"strongest {', '.join(strongest)}"
        )
        print(f"  median head by layer: {np.round(np.median(mean, 1), 2).tolist()}")
        n_sinks = (run["head_statistics"]["first_token_weight"].values > 0.5).sum()
        print(f"  heads with more than half of their weight on the first token: {n_sinks}")


def draw(first: Any, second: Any, out: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(PLOTTED_FIELDS), figsize=(4.2 * len(PLOTTED_FIELDS), 4.4), layout="constrained")
    analysis_of_field = {field: analysis for analysis, fields in FIELDS.items() for field in fields}
    for ax, (field, title) in zip(axes, PLOTTED_FIELDS.items(), strict=True):
        a, b = first[analysis_of_field[field]], second[analysis_of_field[field]]
        layer = np.broadcast_to(a.layer.values[:, None], a[field].shape)
        points = ax.scatter(a[field], b[field], c=layer, s=14, cmap="viridis", zorder=2)
        limits = [min(float(a[field].min()), float(b[field].min())), max(float(a[field].max()), float(b[field].max()))]
        ax.plot(limits, limits, color="#999", lw=0.8, zorder=1)
        ax.set(title=title, xlabel=first.folder.name, ylabel=second.folder.name, aspect="equal")
        ax.spines[["top", "right"]].set_visible(False)
    figure.colorbar(points, ax=axes, label="layer", shrink=0.7)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "corpus-heads.png", dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    first, second = rs.open_corpus(options.first), rs.open_corpus(options.second)
    print_comparison(first, second)
    draw(first, second, options.out)


if __name__ == "__main__":
    main()
