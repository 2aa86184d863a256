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
    stack(model, trace, asked.out)


def stack(model, trace, out: Path) -> None:
    """How much of the geometry 1, 2, … heads of a layer recover together: best first, in random order, and random projections."""
    found = rs.stack(model.view, trace)
    rs.plot(found).savefig(out / "stack.png", dpi=80)
    for used in sorted(
        {1, 2, 3, (found.sizes["head"] + 1) // 2, found.sizes["head"]} & set(found.heads_used.values.tolist())
    ):
        row = found.sel(heads_used=used).mean("layer")
        curves = {name: round(float(row[name]), 3) for name in ("recovered", "recovered_random", "recovered_null")}
        print(
            used, "heads:", curves, "CKA", round(float(row.recovered_cka), 3), round(float(row.recovered_cka_null), 3)
        )
    last = found.sel(heads_used=found.sizes["head"]).recovered
    print(f"all heads, over layers: {float(last.min()):.3f} to {float(last.max()):.3f}")
    print(f"layers where the best head alone recovers more than all: {int((found.recovered[:, 0] > last).sum())}")
    pairs = ~np.eye(found.sizes["head"], dtype=bool)
    print(f"overlap {found.overlap.values[:, pairs].mean():.3f}, random {float(found.overlap_null.mean()):.3f}")
    print(f"Σ rank / rank of the sum {float(found.rank_ratio.mean()):.3f}")
    print(
        f"of the embedding, all layers {float(found.recovered_layers[-1]):.3f}, clouds {float(found.recovered_layers_null[-1]):.3f}"
    )


if __name__ == "__main__":
    main()
