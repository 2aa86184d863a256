"""Time of exact transport between the clouds of a real model, compared with scipy and POT.

    python benchmarks/transport.py MODEL_DIRECTORY TEXT_FILE [--quick]
    python benchmarks/transport.py --smallest     the default model on a sentence

Pairs of clouds are consecutive layers and strides of 2, 4, … layers of 256 and 1024 tokens, without massive tokens. All solvers get the
same cost matrices. A ratio is our time divided by the peer's, summed over pairs: below 1, we are faster. The worst pair is also listed.
"whole" is the time of the solver and the cost matrix, compared with scipy's solver on our cost matrices and on those of its `cdist`.
"""

import time
from collections.abc import Sequence

import numpy as np
import ot
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from timing import make_parser, model_and_text, store_rows

import rheoscope as rs
from rheoscope.flow.cloud import select_clouds
from rheoscope.flow.transport.analysis import default_strides
from rheoscope.flow.transport.optimal_assignment import assignment, squared_distances


def timed(run: object, *inputs: object) -> tuple[float, object]:
    start = time.perf_counter()
    result = run(*inputs)
    return time.perf_counter() - start, result


def compare(points: object, stride: int, peers: dict[str, object]) -> dict[str, object]:
    """Seconds of every solver for all pairs of clouds at a stride, and the largest relative difference of their costs."""
    seconds: dict[str, list[float]] = {
        name: [] for name in ("ours", "whole", "scipy whole", "scipy with cdist", *peers)
    }
    max_difference = 0.0
    for index in range(len(points) - stride):
        cost_seconds, cost = timed(squared_distances, points[index], points[index + stride])
        table = cost.numpy()
        ours, coupling = timed(assignment, cost)
        optimal_cost = table[np.arange(len(table)), coupling.numpy()].mean()
        seconds["ours"].append(ours)
        seconds["whole"].append(cost_seconds + ours)
        for name, solve in peers.items():
            solver_seconds, value = timed(solve, table)
            seconds[name].append(solver_seconds)
            max_difference = max(max_difference, abs(value - optimal_cost) / max(optimal_cost, 1e-30))
        cdist_seconds, _ = timed(cdist, points[index].numpy(), points[index + stride].numpy(), "sqeuclidean")
        seconds["scipy whole"].append(cost_seconds + seconds["scipy"][-1])
        seconds["scipy with cdist"].append(cdist_seconds + seconds["scipy"][-1])
    return {"seconds": seconds, "difference": max_difference}


def scipy_cost(table: np.ndarray) -> float:
    rows, columns = linear_sum_assignment(table)
    return float(table[rows, columns].mean())


def pot_cost(table: np.ndarray) -> float:
    uniform = np.full(len(table), 1 / len(table))
    return float(ot.emd2(uniform, uniform, table, numItermax=10_000_000))


def main(argv: Sequence[str] | None = None) -> None:
    options, name, text = model_and_text(make_parser(__doc__), argv)
    model, peers = rs.load(name), {"scipy": scipy_cost, "POT": pot_cost}
    rows = []
    for tokens in (256, 1024)[: 1 if options.quick or options.smallest else 2]:
        points = select_clouds(model.trace(model.ids(text[: 12 * tokens])[:tokens]), grain="layer").points.double()
        for stride in default_strides(len(points) - 1):
            result = compare(points, stride, peers)
            ours = np.array(result["seconds"]["ours"])
            row: dict[str, object] = {"tokens": tokens, "stride": stride, "difference": result["difference"]}
            for name in peers:
                row |= {
                    f"of {name}": ours.sum() / sum(result["seconds"][name]),
                    f"worst of {name}": float((ours / result["seconds"][name]).max()),
                }
            for name in ("scipy whole", "scipy with cdist"):
                row[f"whole of {name}"] = sum(result["seconds"]["whole"]) / sum(result["seconds"][name])
            rows.append(row | {"ms": 1000 * float(ours.sum())})
            print(
                {name: round(value, 8 if name == "difference" else 3) for name, value in rows[-1].items()}, flush=True
            )
    store_rows("transport", rows, options.smallest)


if __name__ == "__main__":
    main()
