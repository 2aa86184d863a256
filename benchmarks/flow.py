"""The cost of the flow on a real model, 256 tokens: time of every analysis over a bare forward, memory over that of the Trace.

    python benchmarks/flow.py MODEL_DIRECTORY TEXT_FILE [--quick]

Medians of interleaved rounds on the same machine, noise half the interquartile range. What heads carried is computed once a
round and counted where it is first asked for. Exact transport is left out: `transport.py` measures it.
"""

import sys
from pathlib import Path

import torch
from timing import interleaved, keep, peak_bytes, ratio

MAKE = """
import rheoscope as rs
model = rs.load({model!r})
ids = model.ids(open({text!r}).read()[:4000])[:256]
trace = model.trace(ids)
"""
ANALYSES = {
    "trajectory": "rs.trajectory(trace)",
    "energy": "rs.energy(model.view, trace)",
    "kept": "rs.kept(trace)",
    "clusters": "rs.clusters(trace)",
    "readout": "rs.readout(model.view, trace)",
}


@torch.no_grad()
def main() -> None:
    make = MAKE.format(model=sys.argv[1], text=str(Path(sys.argv[2]).resolve()))
    made: dict[str, object] = {}
    exec(make, made)
    model, trace = made["model"], made["trace"]

    def every() -> None:
        trace._carried.clear()
        for code in ANALYSES.values():
            eval(code, made)

    methods = {"forward": lambda: model.network(trace.ids[None])}
    methods |= {name: lambda code=code: eval(code, made) for name, code in ANALYSES.items()}
    first = methods["trajectory"]
    methods["trajectory"] = lambda: (trace._carried.clear(), first())
    seconds = interleaved(methods | {"all": every}, rounds=3 if "--quick" in sys.argv else 9, warm=1)
    rows: list[dict[str, object]] = []
    for name in (*ANALYSES, "all"):
        times, noise = ratio(seconds, "forward", name)
        rows.append({"what": name, "tokens": len(trace), "of forward": times, "noise": noise})
    size = trace.points.numel() * trace.points.element_size()
    warm = make + "".join(f"{code}\n" for code in ANALYSES.values()) + "trace = model.trace(ids)\n"
    for name, code in (ANALYSES | {"all": "\n".join(ANALYSES.values())}).items():
        rows.append({"what": name, "peak of the Trace": peak_bytes(f"{warm}# measured\n{code}") / size})
    for row in rows:
        print({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()})
    print("stored", keep("flow", rows))


if __name__ == "__main__":
    main()
