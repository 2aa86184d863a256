"""Exact transport of the clouds of a real model, beside scipy and POT: solver time, and the whole analysis.

    python benchmarks/transport.py MODEL_DIRECTORY TEXT_FILE [--quick]
    python benchmarks/transport.py --smallest     the default model on a sentence

Consecutive layers and strides of 2, 4, … layers, 256 and 1024 tokens, massive tokens dropped. Cost matrices are given to all
solvers. Ratios are time of ours over time of the peer, summed over pairs of clouds: below 1 is faster; the worst pair beside it.
The whole is solver and cost matrix, beside scipy's solver with our cost matrices and with those of its own `cdist`.
"""

import time
from collections.abc import Sequence

import numpy as np
import ot
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from timing import arguments, keep, model_and_text

import rheoscope as rs
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.transport.analysis import default_strides
from rheoscope.flow.transport.optimal_assignment import assignment, squared_distances


def timed(run: object, *given: object) -> tuple[float, object]:
    start = time.perf_counter()
    result = run(*given)
    return time.perf_counter() - start, result


def compare(points: object, stride: int, peers: dict[str, object]) -> dict[str, object]:
    """Seconds of every solver over all pairs of clouds that a stride apart, and the largest difference of their costs."""
    seconds: dict[str, list[float]] = {
        name: [] for name in ("ours", "whole", "scipy whole", "scipy with cdist", *peers)
    }
    worst = 0.0
    for at in range(len(points) - stride):
        making, cost = timed(squared_distances, points[at], points[at + stride])
        table = cost.numpy()
        ours, coupling = timed(assignment, cost)
        least = table[np.arange(len(table)), coupling.numpy()].mean()
        seconds["ours"].append(ours)
        seconds["whole"].append(making + ours)
        for name, solve in peers.items():
            spent, value = timed(solve, table)
            seconds[name].append(spent)
            worst = max(worst, abs(value - least) / max(least, 1e-30))
        own, _ = timed(cdist, points[at].numpy(), points[at + stride].numpy(), "sqeuclidean")
        seconds["scipy whole"].append(making + seconds["scipy"][-1])
        seconds["scipy with cdist"].append(own + seconds["scipy"][-1])
    return {"seconds": seconds, "difference": worst}


def scipy_cost(table: np.ndarray) -> float:
    rows, columns = linear_sum_assignment(table)
    return float(table[rows, columns].mean())


def pot_cost(table: np.ndarray) -> float:
    uniform = np.full(len(table), 1 / len(table))
    return float(ot.emd2(uniform, uniform, table, numItermax=10_000_000))


def main(words: Sequence[str] | None = None) -> None:
    asked, name, text = model_and_text(arguments(__doc__), words)
    model, peers = rs.load(name), {"scipy": scipy_cost, "POT": pot_cost}
    rows = []
    for tokens in (256, 1024)[: 1 if asked.quick or asked.smallest else 2]:
        points = select_clouds(model.trace(model.ids(text[: 12 * tokens])[:tokens]), grain="layer").points.double()
        for stride in default_strides(len(points) - 1):
            found = compare(points, stride, peers)
            ours = np.array(found["seconds"]["ours"])
            row: dict[str, object] = {"tokens": tokens, "stride": stride, "difference": found["difference"]}
            for name in peers:
                row |= {
                    f"of {name}": ours.sum() / sum(found["seconds"][name]),
                    f"worst of {name}": float((ours / found["seconds"][name]).max()),
                }
            for name in ("scipy whole", "scipy with cdist"):
                row[f"whole of {name}"] = sum(found["seconds"]["whole"]) / sum(found["seconds"][name])
            rows.append(row | {"ms": 1000 * float(ours.sum())})
            print(
                {name: round(value, 8 if name == "difference" else 3) for name, value in rows[-1].items()}, flush=True
            )
    keep("transport", rows, asked.smallest)


if __name__ == "__main__":
    main()
