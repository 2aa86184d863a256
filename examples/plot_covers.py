"""Does attention read similarity? All heads of a model on several texts, with random heads and an untrained model.

    python examples/plot_covers.py [MODEL] [TEXT_FILE] [--texts 8] [--tokens 128] [--draws 200] [--out figures]

Without arguments, it uses the default model and four paragraphs.
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


def sample_texts(model: Any, file: Path | None, texts: int, tokens: int) -> list[torch.Tensor]:
    """Texts of `tokens` tokens, which start at lines spread evenly over a file."""
    if file is None:
        return [model.ids(paragraph)[:tokens] for paragraph in PARAGRAPHS]
    text = file.read_text()
    starts = [text.index("\n", len(text) * index // texts) for index in range(texts)]
    return [model.ids(text[start : start + 12 * tokens])[:tokens] for start in starts]


def print_measure(name: str, result: Any) -> None:
    """Print a measure over all heads and texts, with its interval and its split-half correlation over texts."""
    measure = result.sel(measure=name)
    mean, low, high, halves = (
        float(measure[part]) for part in ("overall", "overall_low", "overall_high", "split_half")
    )
    print(f"{name:24s} {mean:6.3f}  95 % interval {low:6.3f} to {high:6.3f}  split-half r {halves:.3f}")


def count_significant(z: Any, q_value: Any) -> str:
    """The number of heads significantly above and below their null."""
    is_significant, z = q_value.values <= 0.05, z.values
    return f"{int((is_significant & (z > 0)).sum())} above, {int((is_significant & (z < 0)).sum())} below, of {z.size} heads"


def stability(model: Any, texts: list[torch.Tensor], length: int = 32) -> Any:
    """`prefix_stability` of every text after the beginnings of the next two texts, along the axis `prefix`."""
    import xarray as xr

    results = []
    for index, text in enumerate(texts):
        prefixes = [texts[(index + offset) % len(texts)][:length] for offset in (1, 2)]
        results.append(rs.prefix_stability(model, text, prefixes))
    return xr.concat(
        results, "prefix", combine_attrs="override", data_vars="minimal", coords="minimal", compat="override"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model, control = rs.load(options.model), rs.load(options.model, untrained=True)
    texts = sample_texts(model, options.file, options.texts, options.tokens)

    def agreement_with_control(trace: Any) -> Any:
        agreement = rs.agreement(trace, draws=options.draws, control=control.trace(trace.ids))
        print(f"{''.join(trace.tokens[:10])!r} …: {count_significant(agreement.z, agreement.q_value)}", flush=True)
        return agreement

    result = rs.over_texts(agreement_with_control, [model.trace(ids) for ids in texts])
    rs.plot(result).savefig(options.out / "agreement.png", dpi=80)
    for name in result.measure.values:
        print_measure(name, result)
    print(f"null {float(result.null_mean.mean()):.3f} ± {float(result.null_sd.mean()):.3f}")
    untrained = rs.agreement(control.trace(texts[0]), draws=options.draws)
    print(f"significant: {count_significant(result.agreement_z, result.agreement_q_value)}")
    print(f"untrained, on the first text: {count_significant(untrained.z, untrained.q_value)}")
    width = (result.agreement_high - result.agreement_low).median()
    print(f"median width of a head's interval {float(width):.3f}")
    symmetry = rs.operators(model.view).symmetry.values.ravel()
    ranks = [x.argsort().argsort() for x in (symmetry, result.agreement.values.ravel())]
    print(f"Spearman correlation with s(M): {float(np.corrcoef(*ranks)[0, 1]):.3f}")
    prefix_result = stability(model, texts)
    rs.plot(prefix_result).savefig(options.out / "prefix-stability.png", dpi=80)
    for name in ("stability", "stability_null"):
        medians = prefix_result[name].mean("prefix").median("head").values.round(2)
        print(f"{name:24s} {float(prefix_result[name].mean()):6.3f}  median head of every layer {medians.tolist()}")
    trace = model.trace(texts[0])
    distortion = rs.distortion(trace)
    for name, image in (("rsa", "image"), ("rsa_raw", "raw_image")):
        print(
            name,
            {
                str(image_name): round(float(distortion[name].sel({image: image_name}).median()), 3)
                for image_name in distortion[image].values
            },
        )
    print(
        "rsa_null", distortion.rsa_null.mean("layer").values.round(3), "mismatch", float(distortion.mismatch.median())
    )
    stack(model, trace, options.out)


def stack(model, trace, out: Path) -> None:
    """The geometry that 1, 2, … heads of a layer recover together: best first, in random order, and for random projections."""
    result = rs.stack(trace)
    rs.plot(result).savefig(out / "stack.png", dpi=80)
    for used in sorted(
        {1, 2, 3, (result.sizes["head"] + 1) // 2, result.sizes["head"]} & set(result.heads_used.values.tolist())
    ):
        row = result.sel(heads_used=used).mean("layer")
        curves = {name: round(float(row[name]), 3) for name in ("recovered", "recovered_random", "recovered_null")}
        print(
            used, "heads:", curves, "CKA", round(float(row.recovered_cka), 3), round(float(row.recovered_cka_null), 3)
        )
    last = result.sel(heads_used=result.sizes["head"]).recovered
    print(f"all heads, over layers: {float(last.min()):.3f} to {float(last.max()):.3f}")
    print(f"layers where the best head alone recovers more than all: {int((result.recovered[:, 0] > last).sum())}")
    pairs = ~np.eye(result.sizes["head"], dtype=bool)
    print(f"overlap {result.overlap.values[:, pairs].mean():.3f}, random {float(result.overlap_null.mean()):.3f}")
    print(f"Σ rank / rank of the sum {float(result.rank_ratio.mean()):.3f}")
    print(
        f"all layers together, of the geometry of the embedding: {float(result.recovered_layers[-1]):.3f}, "
        f"clouds alone {float(result.recovered_layers_null[-1]):.3f}"
    )


if __name__ == "__main__":
    main()
