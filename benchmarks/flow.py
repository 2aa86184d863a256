"""Time and memory of analyses of flow on a real model with 256 tokens.

    python benchmarks/flow.py MODEL_DIRECTORY TEXT_FILE [--quick]
    python benchmarks/flow.py --smallest     the default model on a sentence

Times are medians of interleaved rounds divided by the time of a bare forward pass. Noise is half the interquartile range. Memory is
divided by the size of the points of the Trace. The displacements of heads are computed once per round, and the first analysis that
needs them pays for them. Operations are the parts of these times in matrix products, fused attention, eigenvalues and all other
operations, by torch's profiler. `transport.py` measures exact transport.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from timing import interleaved, make_parser, model_and_text, peak_bytes, ratio, store_rows

SETUP = """
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
OPERATIONS = {
    "aten::mm": "matrix products",
    "aten::bmm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::baddbmm": "matrix products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "fused attention",
    "aten::_linalg_eigh": "eigenvalues",
}


@torch.no_grad()
def times(setup: str, rounds: int, warm: int) -> list[dict[str, object]]:
    namespace: dict[str, object] = {}
    exec(setup, namespace)
    model, trace = namespace["model"], namespace["trace"]

    def run_all() -> None:
        trace._displacement_cache.clear()
        for code in ANALYSES.values():
            eval(code, namespace)

    methods = {"forward": lambda: model.network(trace.ids[None])}
    methods |= {name: lambda code=code: eval(code, namespace) for name, code in ANALYSES.items()}
    run_trajectory = methods["trajectory"]
    methods["trajectory"] = lambda: (trace._displacement_cache.clear(), run_trajectory())
    seconds = interleaved(methods | {"all": run_all}, rounds, warm=warm)
    rows: list[dict[str, object]] = []
    for name in (*ANALYSES, "all"):
        times, noise = ratio(seconds, "forward", name)
        rows.append({"what": name, "tokens": len(trace), "of forward": times, "noise": noise})
    return rows


@torch.no_grad()
def operations(setup: str, rounds: int) -> list[dict[str, object]]:
    """The time of each kind of operation in each analysis, divided by that of a forward pass: medians of interleaved rounds."""
    namespace: dict[str, object] = {}
    exec(setup, namespace)
    model, trace = namespace["model"], namespace["trace"]
    samples: dict[tuple[str, str], list[float]] = {}
    for measured in (False, *(True for _ in range(rounds))):
        forward = sum(operation_seconds(lambda: model.network(trace.ids[None])).values())
        trace._displacement_cache.clear()
        for name, code in ANALYSES.items():
            seconds = operation_seconds(lambda code=code: eval(code, namespace))
            for kind in (*dict.fromkeys(OPERATIONS.values()), "other operations"):
                if measured:
                    samples.setdefault((name, kind), []).append(seconds[kind] / forward)
    return [
        {"what": name, "operation": kind, "of forward": statistics.median(values)}
        for (name, kind), values in samples.items()
    ]


def operation_seconds(run: Callable[[], object]) -> Counter[str]:
    """Seconds per kind of operation. Time in Python between operations belongs to none of them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    seconds: Counter[str] = Counter()
    for event in profile.key_averages():
        seconds[OPERATIONS.get(event.key, "other operations")] += event.self_cpu_time_total / 1e6
    return seconds


def memory(setup: str, fresh: bool) -> list[dict[str, object]]:
    """Peak memory divided by the size of the points, for each analysis and for all together (only together if not `fresh`)."""
    namespace: dict[str, object] = {}
    exec(setup, namespace)
    points, all_code = namespace["trace"].points, "\n".join(ANALYSES.values())
    warm_up = f"{setup}{all_code if fresh else ''}\ntrace = model.trace(ids)\n# measured\n"
    return [
        {"what": name, "peak of the Trace": peak_bytes(warm_up + code, fresh) / points.nbytes}
        for name, code in ((ANALYSES if fresh else {}) | {"all": all_code}).items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    options, model, text = model_and_text(make_parser(__doc__), argv)
    setup, rounds = SETUP.format(model=model, text=text[:4000]), 2 if options.smallest else 3 if options.quick else 9
    rows = times(setup, rounds, warm=int(not options.smallest)) + operations(setup, rounds=min(rounds, 3))
    rows += memory(setup, fresh=not options.smallest)
    for row in rows:
        print({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()})
    store_rows("flow", rows, options.smallest)


if __name__ == "__main__":
    main()
