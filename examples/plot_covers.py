"""Does attention read similarity? Agreement of every head of a model on a text, its null, and its relation to symmetry.

    python examples/plot_covers.py [MODEL] [TEXT_FILE] [--tokens 128] [--draws 100] [--out figures]

Without a model and a file it takes the model that ships and a paragraph of its own.
"""

import argparse
from pathlib import Path

import numpy as np

import rheoscope as rs

PARAGRAPH = (
    "The river rises in the hills north of the town and flows south through the old mill district. In the nineteenth century "
    "the mills along the river made cotton and wool. The mills closed after the war, and the buildings were turned into "
    "houses and shops. The river is now known for its walks, its birds and its bridges. "
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    asked = parser.parse_args()
    model = rs.load(asked.model)
    text = asked.file.read_text() if asked.file else PARAGRAPH
    trace = model.trace(model.ids(text[: 12 * asked.tokens])[: asked.tokens])
    asked.out.mkdir(parents=True, exist_ok=True)
    found = rs.agreement(model.view, trace, draws=asked.draws)
    rs.plot(found).savefig(asked.out / "agreement.png", dpi=80)
    for name in ("agreement", "agreement_raw", "agreement_embedding", "position_baseline", "null_mean", "null_sd"):
        print(f"{name:22s} {float(found[name].mean()):.3f}")
    sure, z = found.q_value.values <= 0.05, found.z.values
    print(f"beyond the null: {int((sure & (z > 0)).sum())} alike, {int((sure & (z < 0)).sum())} unlike, of {z.size}")
    symmetry = rs.operators(model.view).symmetry.values.ravel()
    ranks = [x.argsort().argsort() for x in (symmetry, found.agreement.values.ravel())]
    print(f"Spearman correlation with s(M): {float(np.corrcoef(*ranks)[0, 1]):.3f}")
    stacked = rs.stack(model.view, trace)
    print(
        {name: round(float(stacked[name].mean()), 3) for name in stacked.data_vars if stacked[name].dtype.kind == "f"}
    )


if __name__ == "__main__":
    main()
