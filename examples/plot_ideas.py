"""Does the geometry follow meaning? Word senses and word groups by layer, from results of benchmarks/ideas.py, and the cloud.

python examples/plot_ideas.py [benchmarks/results/ideas_default.json …] [--out figures]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import rheoscope as rs
from rheoscope.report.style import ACCENT, INK, MUTED, figure_style, new_figure

RESULTS_FOLDER = Path(__file__).parents[1] / "benchmarks" / "results"
SAMPLE = (
    "The king kept his gold in the bank, and the children played on the bank of the river. The river went to the sea, and the sea "
    "was great and deep. One day the king took the gold from the bank, put it in a ship and sent the ship down the"
)


def plot_senses(axes: Any, results: dict[str, Any], colour: str, name: str) -> None:
    """The share of nearest occurrences with the same sense by depth. The untrained model is dashed."""
    depth = np.linspace(0, 1, len(results["point"]))
    axes.plot(depth, results["nearest_same_sense"], color=colour, label=name)
    axes.plot(depth, results["nearest_same_sense_untrained"], color=colour, ls="--", lw=1, label=f"{name}, untrained")
    axes.axhline(results["nearest_same_sense_null"][0], color=MUTED, lw=0.8)


def plot_groups(axes: Any, results: dict[str, Any], colour: str, name: str) -> None:
    depth = np.linspace(0, 1, len(results["point"]))
    axes.fill_between(
        depth, results["same_group_nearer_low"], results["same_group_nearer_high"], color=colour, alpha=0.15, lw=0
    )
    axes.plot(depth, results["same_group_nearer"], color=colour, label=name)
    axes.plot(depth, results["same_group_nearer_untrained"], color=colour, ls="--", lw=1, label=f"{name}, untrained")
    axes.axhline(0.5, color=MUTED, lw=0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stored", nargs="*", type=Path, default=sorted(RESULTS_FOLDER.glob("ideas_*.json")))
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    figure = new_figure(8, 3)
    with figure_style():
        left, right = figure.subplots(1, 2)
        for path, colour in zip(options.stored, (ACCENT, INK, "#27508f"), strict=False):
            results, name = json.loads(path.read_text()), path.stem.removeprefix("ideas_")
            if "senses" in results:
                plot_senses(left, results["senses"], colour, name)
                plot_groups(right, results["relatedness"], colour, name)
        left.set(
            title="nearest occurrence has the same sense", xlabel="depth", ylabel="share (line: chance)", ylim=(0.2, 1)
        )
        right.set(
            title="words of the same group are nearer", xlabel="depth", ylabel="share (line: chance)", ylim=(0.3, 1)
        )
        right.legend(frameon=False, fontsize=7, loc="lower right")
        figure.savefig(options.out / "ideas-meaning.png", dpi=150)
        model = rs.load()
        rs.plot(rs.frames(model.trace(SAMPLE)), token_strings=model.token_strings).savefig(
            options.out / "ideas-frames.png", dpi=110
        )
    print(f"wrote {options.out}/ideas-meaning.png and {options.out}/ideas-frames.png")


if __name__ == "__main__":
    main()
