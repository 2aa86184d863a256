"""Does attention read similarity? Every head of a model on several texts, beside random heads and an untrained model.

    python examples/plot_covers.py [MODEL] [TEXT_FILE] [--texts 8] [--tokens 128] [--draws 200] [--out figures]

Without a model and a file it takes the model that ships and four paragraphs of its own.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rheoscope as rs

PARAGRAPHS = [
    "The river rises in the hills north of the town and flows south through the old mill district. In the nineteenth century "
    "the mills along the river made cotton and wool.",
    "The mills closed after the war, and the buildings were turned into houses and shops. The river is now known for its walks, "
    "its birds and its bridges.",
    "A new bridge was opened in the spring. It carries the road to the station, and it is the longest bridge of the county that "
    "was built without a pier.",
    "In winter the birds of the north come to the river. They stay near the warm water below the mills until the ice on the lakes "
    "of the hills has gone.",
]


def pieces(model: Any, file: Path | None, texts: int, tokens: int) -> list[torch.Tensor]:
    """Texts of so many tokens each, from lines spread evenly over a file."""
    if file is None:
        return [model.ids(paragraph)[:tokens] for paragraph in PARAGRAPHS]
    whole = file.read_text()
    starts = [whole.index("\n", len(whole) * at // texts) for at in range(texts)]
    return [model.ids(whole[start : start + 12 * tokens])[:tokens] for start in starts]


def told(name: str, found: Any) -> None:
    """One measure over all heads and texts, with its interval and how well halves of the texts agree on heads."""
    at = found.sel(measure=name)
    mean, low, high, halves = (float(at[part]) for part in ("overall", "overall_low", "overall_high", "split_half"))
    print(f"{name:24s} {mean:6.3f}  95 % interval {low:6.3f} to {high:6.3f}  split-half r {halves:.3f}")


def beyond(z: Any, q_value: Any) -> str:
    """How many heads lie beyond their null, on either side."""
    sure, z = q_value.values <= 0.05, z.values
    return f"{int((sure & (z > 0)).sum())} alike, {int((sure & (z < 0)).sum())} unlike, of {z.size} heads"


def stability(model: Any, texts: list[torch.Tensor], length: int = 32) -> Any:
    """Every text after the beginnings of the next two, one row a text and prefix."""
    import xarray as xr

    every = []
    for at, text in enumerate(texts):
        before = [texts[(at + next_) % len(texts)][:length] for next_ in (1, 2)]
        every.append(rs.prefix_stability(model, text, before))
    return xr.concat(
        every, "prefix", combine_attrs="override", data_vars="minimal", coords="minimal", compat="override"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    model, control = rs.load(asked.model), rs.load(asked.model, untrained=True)
    texts = pieces(model, asked.file, asked.texts, asked.tokens)

    def beside_untrained(trace: Any) -> Any:
        one = rs.agreement(trace, draws=asked.draws, control=control.trace(trace.ids))
        print(f"{''.join(trace.tokens[:10])!r} …: {beyond(one.z, one.q_value)}", flush=True)
        return one

    found = rs.over_texts(beside_untrained, [model.trace(ids) for ids in texts])
    rs.plot(found).savefig(asked.out / "agreement.png", dpi=80)
    for name in found.measure.values:
        told(name, found)
    print(f"null {float(found.null_mean.mean()):.3f} ± {float(found.null_sd.mean()):.3f}")
    untrained = rs.agreement(control.trace(texts[0]), draws=asked.draws)
    print(f"beyond the null: {beyond(found.agreement_z, found.agreement_q_value)}")
    print(f"untrained, on the first text: {beyond(untrained.z, untrained.q_value)}")
    width = (found.agreement_high - found.agreement_low).median()
    print(f"median width of a head's interval {float(width):.3f}")
    symmetry = rs.operators(model.view).symmetry.values.ravel()
    ranks = [x.argsort().argsort() for x in (symmetry, found.agreement.values.ravel())]
    print(f"Spearman correlation with s(M): {float(np.corrcoef(*ranks)[0, 1]):.3f}")
    outlast = stability(model, texts)
    rs.plot(outlast).savefig(asked.out / "prefix-stability.png", dpi=80)
    for name in ("stability", "stability_null"):
        medians = outlast[name].mean("prefix").median("head").values.round(2)
        print(f"{name:24s} {float(outlast[name].mean()):6.3f}  median head of every layer {medians.tolist()}")
    trace = model.trace(texts[0])
    kept = rs.distortion(trace)
    for name, image in (("rsa", "image"), ("rsa_raw", "raw_image")):
        print(name, {str(one): round(float(kept[name].sel({image: one}).median()), 3) for one in kept[image].values})
    print("rsa_null", kept.rsa_null.mean("layer").values.round(3), "mismatch", float(kept.mismatch.median()))
    stack(model, trace, asked.out)


def stack(model, trace, out: Path) -> None:
    """How much of the geometry 1, 2, … heads of a layer recover together: best first, in random order, and random projections."""
    found = rs.stack(trace)
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
