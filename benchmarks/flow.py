"""The cost of the flow on a real model, 256 tokens: time of every analysis over a bare forward, memory over that of the Trace.

    python benchmarks/flow.py MODEL_DIRECTORY TEXT_FILE [--quick]
    python benchmarks/flow.py --smallest     the default model on a sentence

Medians of interleaved rounds on the same machine, noise half the interquartile range. What heads carried is computed once a
round and counted where it is first asked for. Exact transport is left out: `transport.py` measures it.
"""

from collections.abc import Sequence

import torch
from timing import arguments, interleaved, keep, model_and_text, peak_bytes, ratio

MAKE = """
import rheoscope as rs
model = rs.load({model!r})
ids = model.ids({text!r})[:256]
trace = model.trace(ids)
"""
ANALYSES = {
    "trajectory": "rs.trajectory(trace)",
    "energy": "rs.energy(trace)",
    "geometry_kept": "rs.geometry_kept(trace)",
    "clusters": "rs.clusters(trace)",
    "readout": "rs.readout(trace)",
}


@torch.no_grad()
def times(make: str, rounds: int) -> list[dict[str, object]]:
    made: dict[str, object] = {}
    exec(make, made)
    model, trace = made["model"], made["trace"]

    def every() -> None:
        trace._displacement_cache.clear()
        for code in ANALYSES.values():
            eval(code, made)

    methods = {"forward": lambda: model.network(trace.ids[None])}
    methods |= {name: lambda code=code: eval(code, made) for name, code in ANALYSES.items()}
    first = methods["trajectory"]
    methods["trajectory"] = lambda: (trace._displacement_cache.clear(), first())
    seconds = interleaved(methods | {"all": every}, rounds, warm=1)
    rows: list[dict[str, object]] = []
    for name in (*ANALYSES, "all"):
        times, noise = ratio(seconds, "forward", name)
        rows.append({"what": name, "tokens": len(trace), "of forward": times, "noise": noise})
    return rows


def memory(make: str, fresh: bool) -> list[dict[str, object]]:
    """Peaks over the size of the points, of each analysis and of all; where no process is fresh, of all alone."""
    made: dict[str, object] = {}
    exec(make, made)
    points, every = made["trace"].points, "\n".join(ANALYSES.values())
    warm = f"{make}{every}\ntrace = model.trace(ids)\n# measured\n"
    return [
        {"what": name, "peak of the Trace": peak_bytes(warm + code, fresh) / points.nbytes}
        for name, code in ((ANALYSES if fresh else {}) | {"all": every}).items()
    ]


def main(words: Sequence[str] | None = None) -> None:
    asked, model, text = model_and_text(arguments(__doc__), words)
    make, rounds = MAKE.format(model=model, text=text[:4000]), 2 if asked.smallest else 3 if asked.quick else 9
    rows = times(make, rounds) + memory(make, fresh=not asked.smallest)
    for row in rows:
        print({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()})
    keep("flow", rows, asked.smallest)


if __name__ == "__main__":
    main()
