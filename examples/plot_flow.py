"""The flow of tokens through a model: numbers averaged over excerpts of a text, and figures of the first excerpt.

    python examples/plot_flow.py [MODEL] [TEXT_FILE] [--tokens 256] [--texts 8] [--prompt TEXT] [--out figures]

Without arguments, it uses the default model and one paragraph, so that it runs anywhere. Figures and `flow.json` are written to --out.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import rheoscope as rs

PARAGRAPH = (
    "The river rises in the hills north of the town and flows south through the old mill district. In the nineteenth century "
    "the mills along the river made cotton and wool. The mills closed after the war, and the buildings were turned into "
    "houses and shops. The river is now known for its walks, its birds and its bridges. The oldest bridge was built by the "
    "monks of the abbey, who held the fishing rights until the abbey was closed, and the newest by the railway. "
)


def excerpts(model: Any, text: str, tokens: int, texts: int) -> list[Any]:
    """Traces of consecutive excerpts of equal length."""
    ids = model.ids(text[: 12 * tokens * texts])
    pieces = [ids[index : index + tokens] for index in range(0, len(ids) - tokens + 1, tokens)][:texts]
    return [model.trace(piece) for piece in pieces or [ids]]


def numbers(trace: Any, transport: Any) -> dict[str, float]:
    """The numbers of one excerpt."""
    clusters, energy, massive_tokens = rs.clusters(trace), rs.energy(trace), rs.massive_tokens(trace)
    last = transport.sizes["step"] - 1
    values = {
        "massive tokens": massive_tokens.sizes["token"],
        "largest": float(massive_tokens.max_relative_norm.max()) if massive_tokens.token.size else 0.0,
    }
    for stride in transport.stride.values:
        for name in ("kappa", "identity_share"):
            means = {part: transport[f"{name}{part}_strided"].sel(stride=stride).mean() for part in ("", "_null")}
            values |= {f"{name}{part} at stride {stride}": float(value) for part, value in means.items()}
    for index, name in ((1, "first"), (last // 2 + 1, "middle"), (last + 1, "last")):
        values[f"effective rank, {name} layer"] = float(clusters.effective_rank[index])
        values[f"effective rank null, {name} layer"] = float(clusters.effective_rank_null[index])
        values[f"intrinsic dimension, {name} layer"] = float(clusters.intrinsic_dimension[index])
    values["gradient-like heads"] = float(energy.gradient_like.sum())
    values["heads"] = float(energy.gradient_like.size)
    values["median cosine with the gradient"] = float(energy.cosine.median())
    return values | {"geodesic straightness": float(transport.geodesic_straightness)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    options = parser.parse_args()
    model = rs.load(options.model)
    traces = excerpts(model, options.file.read_text() if options.file else PARAGRAPH, options.tokens, options.texts)
    options.out.mkdir(parents=True, exist_ok=True)
    first_trace = traces[0]
    transports = [rs.transport(trace) for trace in traces]
    lens = rs.readout(model.trace(options.prompt))
    figures = {
        "transport": rs.plot(transports[0]),
        "clusters": rs.plot(rs.clusters(first_trace)),
        "massive": rs.plot(rs.massive_tokens(first_trace)),
    }
    figures |= {"energy": rs.plot(rs.energy(first_trace)), "readout": rs.plot(lens, token_strings=model.token_strings)}
    for name, figure in figures.items():
        figure.savefig(options.out / f"{name}.png", dpi=80)
    rows = [numbers(trace, transport) for trace, transport in zip(traces, transports, strict=True)]
    spread = {
        key: [mean(row[key] for row in rows), stdev([row[key] for row in rows]) if len(rows) > 1 else 0.0]
        for key in rows[0]
    }
    for key, (middle, width) in spread.items():
        print(f"{key:40s} {middle:8.3f} ± {width:.3f}")
    ranks = dict(zip(map(str, lens.point.values), map(int, lens["rank"].values), strict=True))
    print(options.prompt, "→", model.token_strings([lens.attrs["target"]])[0], ranks)
    values = {
        "model": str(model.view.facts["model"]),
        "texts": len(rows),
        "tokens": len(first_trace),
        "numbers": spread,
        "ranks": ranks,
    }
    (options.out / "flow.json").write_text(json.dumps(values, indent=1))


if __name__ == "__main__":
    main()
