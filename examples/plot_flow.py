"""A model tells its story: excerpts of a text through it, their numbers averaged, and the pictures of the first one.

    python examples/plot_flow.py [MODEL] [TEXT_FILE] [--tokens 256] [--texts 8] [--prompt TEXT] [--out figures]

Without a model and a file it takes the model that ships and a paragraph of its own, so that it runs anywhere. Figures and
`flow.json` go to --out.
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
    """Equal pieces of a text, one after the other, as Traces."""
    ids = model.ids(text[: 12 * tokens * texts])
    pieces = [ids[at : at + tokens] for at in range(0, len(ids) - tokens + 1, tokens)][:texts]
    return [model.trace(piece) for piece in pieces or [ids]]


def numbers(trace: Any, moved: Any) -> dict[str, float]:
    """What one excerpt says, as plain numbers."""
    gathered, heads, sinks = rs.clusters(trace), rs.energy(trace), rs.massive_tokens(trace)
    last = moved.sizes["step"] - 1
    told = {
        "massive tokens": sinks.sizes["token"],
        "largest": float(sinks.max_relative_norm.max()) if sinks.token.size else 0.0,
    }
    for stride in moved.stride.values:
        for name in ("kappa", "identity_share"):
            both = {part: moved[f"{name}{part}_strided"].sel(stride=stride).mean() for part in ("", "_null")}
            told |= {f"{name}{part} at stride {stride}": float(value) for part, value in both.items()}
    for at, name in ((1, "first"), (last // 2 + 1, "middle"), (last + 1, "last")):
        told[f"effective rank, {name} layer"] = float(gathered.effective_rank[at])
        told[f"effective rank null, {name} layer"] = float(gathered.effective_rank_null[at])
        told[f"intrinsic dimension, {name} layer"] = float(gathered.intrinsic_dimension[at])
    told["gradient-like heads"] = float(heads.gradient_like.sum())
    told["heads"] = float(heads.gradient_like.size)
    told["median cosine with the gradient"] = float(heads.cosine.median())
    return told | {"geodesic straightness": float(moved.geodesic_straightness)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    asked = parser.parse_args()
    model = rs.load(asked.model)
    traces = excerpts(model, asked.file.read_text() if asked.file else PARAGRAPH, asked.tokens, asked.texts)
    asked.out.mkdir(parents=True, exist_ok=True)
    first = traces[0]
    moves = [rs.transport(trace) for trace in traces]
    lens = rs.readout(model.trace(asked.prompt))
    figures = {
        "transport": rs.plot(moves[0]),
        "clusters": rs.plot(rs.clusters(first)),
        "massive": rs.plot(rs.massive_tokens(first)),
    }
    figures |= {"energy": rs.plot(rs.energy(first)), "readout": rs.plot(lens, token_strings=model.token_strings)}
    for name, figure in figures.items():
        figure.savefig(asked.out / f"{name}.png", dpi=80)
    rows = [numbers(trace, moved) for trace, moved in zip(traces, moves, strict=True)]
    spread = {
        key: [mean(row[key] for row in rows), stdev([row[key] for row in rows]) if len(rows) > 1 else 0.0]
        for key in rows[0]
    }
    for key, (middle, width) in spread.items():
        print(f"{key:40s} {middle:8.3f} ± {width:.3f}")
    ranks = dict(zip(map(str, lens.point.values), map(int, lens["rank"].values), strict=True))
    print(asked.prompt, "→", model.token_strings([lens.attrs["target"]])[0], ranks)
    told = {
        "model": str(model.view.facts["model"]),
        "texts": len(rows),
        "tokens": len(first),
        "numbers": spread,
        "ranks": ranks,
    }
    (asked.out / "flow.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
