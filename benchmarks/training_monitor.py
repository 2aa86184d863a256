"""The training monitor: its cost, its effect on the weights, its alarms on runs that fail, and none on healthy runs.

    python benchmarks/training_monitor.py                 everything; an hour on a shared core (--quick: a third of the runs)
    python benchmarks/training_monitor.py --part healthy  one part: cost, gpu_cost, equal, healthy, high_rate, failures, planted or rules

The rules were set on `RULE_RUNS`, whose extreme values the part `rules` prints. Earlier sets of healthy and
failing runs, with seeds below 400, set them too. The parts `healthy` and `failures` have seeds from 400 on.
"""

import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import torch
from monitored_runs import Run, Trainer, first_check_after, loss_of, monitored
from timing import RESULTS, interleaved, make_parser, store_rows
from training_cuda import compiled_decoder

import rheoscope as rs
from rheoscope.models.recipes import gpt2

Row = dict[str, Any]
ARCHITECTURES = ("gpt2", "llama", "neox", "qwen3", "opt", "native", "mistral")
TASK_NAMES = ("topic", "motif", "chain", "mixture")
SHAPES = ((32, 2, 2), (32, 3, 4), (48, 2, 3), (64, 2, 4), (32, 4, 4))
RATES = (2e-3, 3e-3, 1e-3)


def healthy_runs(first_seed: int, count: int, steps: int) -> list[Run]:
    """Runs of different architectures, tasks, sizes and rates."""
    parts = zip(cycle(ARCHITECTURES), cycle(TASK_NAMES), cycle(SHAPES), cycle(RATES), range(count), strict=False)
    return [Run(a, task, *shape, rate, first_seed + i, steps) for a, task, shape, rate, i in islice(parts, count)]


def failing_runs(first_seed: int, count: int, steps: int) -> list[Run]:
    """Queries and keys that grow, and a learning rate of queries and keys that is too high, each in two architectures."""
    kinds = [(a, rate, failure) for failure in ("scale", "rate") for a, rate in (("gpt2", 2e-3), ("mistral", 3e-3))]
    return [
        Run(architecture, "topic", 32, 2, 4, rate, first_seed + i, steps, failure)
        for i, (architecture, rate, failure) in enumerate(islice(cycle(kinds), count))
    ]


RULE_RUNS = [
    Run("llama", "motif", 32, 3, 4, 5e-3, 101, 600),
    Run("gpt2", "motif", 32, 2, 4, 5e-3, 1, 600),
    Run("mistral", "motif", 48, 2, 3, 5e-3, 2, 600),
    Run("opt", "motif", 32, 2, 2, 5e-3, 3, 600),
    Run("native", "mixture", 32, 2, 2, 5e-3, 4, 600),
    Run("neox", "motif", 32, 3, 4, 5e-3, 5, 600),
    Run("gpt2", "topic", 32, 2, 4, 2e-3, 1, 900, "scale"),
    Run("llama", "topic", 32, 2, 4, 3e-3, 2, 900, "scale"),
    Run("gpt2", "topic", 32, 2, 4, 2e-3, 1, 900, "rate"),
    Run("llama", "topic", 32, 2, 4, 3e-3, 2, 900, "rate"),
]
"""The runs on which the rules were set: heads that learn sharp attention at a high rate, and runs that fail."""


def rules(effort: str) -> Iterator[Row]:
    """The extreme values of the runs on which the rules were set."""
    for run in RULE_RUNS[:: {"full": 1, "quick": 3, "smallest": 10}[effort]]:
        readings = monitored(short(run, effort), until_rise=True).monitor.readings
        extremes = {
            f"{label} {name}": round(
                float(function([function(r.values[name][r.values[name] == r.values[name]]) for r in readings])), 4
            )
            for label, function, name in (
                ("largest", max, "largest_logit"),
                ("smallest", min, "entropy"),
                ("largest", max, "token_cosine"),
                ("largest", max, "nearest_head_cosine"),
                ("smallest", min, "stable_rank_M"),
            )
        }
        yield describe(run) | extremes


def healthy(effort: str) -> Iterator[Row]:
    """The alarms of runs that were not used to set the rules."""
    yield from alarms_of(healthy_runs(400, {"full": 20, "quick": 7, "smallest": 1}[effort], 600), effort)


def high_rate(effort: str) -> Iterator[Row]:
    """The alarms of other healthy runs at a learning rate of .005, at which heads that learn to copy become very sharp."""
    runs = healthy_runs(800, {"full": 20, "quick": 7, "smallest": 1}[effort], 600)
    yield from alarms_of([replace(run, rate=5e-3) for run in runs], effort)


def alarms_of(runs: Sequence[Run], effort: str) -> Iterator[Row]:
    """The alarms of some runs, with their first and last losses."""
    for run in runs:
        outcome = monitored(short(run, effort))
        losses = list(outcome.losses.values())
        yield describe(run) | {
            "checks": len(outcome.monitor.readings),
            "alarms": len(outcome.monitor.alarms),
            "lines": [alarm.line for alarm in outcome.monitor.alarms],
            "first loss": losses[0],
            "last loss": losses[-1],
            "largest logit": max(float(r.values["largest_logit"].max()) for r in outcome.monitor.readings),
        }


def failures(effort: str) -> Iterator[Row]:
    """Steps from the first alarm to the rise of the held-out loss by .1 nats above its running minimum."""
    for run in failing_runs(400, {"full": 12, "quick": 4, "smallest": 1}[effort], 1200):
        outcome = monitored(short(run, effort), until_rise=True)
        steps = {rule: outcome.first_alarm(rule) for rule in ("logit_growth", "entropy_collapse")}
        rise = outcome.rise_step
        leads = {f"{rule} lead": None if rise is None or step is None else rise - step for rule, step in steps.items()}
        yield describe(run) | {"rise": rise} | steps | leads


def planted(effort: str) -> Iterator[Row]:
    """The check at which faults that the loss may never show are reported."""
    kinds = ("rank_collapse", "dead_head", "duplicated_head")
    seeds = range(300, 300 + {"full": 5, "quick": 2, "smallest": 1}[effort])
    for architecture in ("gpt2", "llama")[: 1 if effort == "smallest" else 2]:
        for kind in kinds:
            for seed in seeds:
                run = Run(architecture, "topic", 32, 2, 4, 2e-3, seed)
                reported, expected = first_check_after(run, kind, *((3, 2) if effort == "smallest" else ()))
                yield describe(run) | {"fault": kind, "reported": reported, "first check": expected}


def equal(effort: str) -> Iterator[Row]:
    """Whether the weights after 200 steps are bit-equal with and without the monitor."""
    steps = {"full": 200, "quick": 200, "smallest": 3}[effort]
    for architecture in ARCHITECTURES[: 1 if effort == "smallest" else None]:
        run = Run(architecture, "mixture", 32, 2, 4, 2e-3, 300, steps)
        weights = [weights_after(run, every) for every in (None, 10 if effort != "smallest" else 1)]
        same = all(torch.equal(x, y) for x, y in zip(*weights, strict=True))
        yield describe(run) | {"steps": steps, "bit-equal": same}


def weights_after(run: Run, every: int | None) -> list[torch.Tensor]:
    """The weights after all steps of a run, with a monitor or without."""
    trainer = Trainer(run)
    torch.manual_seed(7)  # the dropout of both runs
    monitor = None if every is None else rs.Monitor(trainer.network, every=every)
    for step in range(1, run.steps + 1):
        loss = trainer.step(step)
        if monitor is not None:
            monitor.step(loss)
    return [x.detach().clone() for x in trainer.network.state_dict().values()]


def cost(effort: str) -> Iterator[Row]:
    """CPU time of a check compared with 100 training steps, both in turn. nanoGPT's two CPU-sized models."""
    sizes = {
        "4 layers, 128 wide, 12 × 64 tokens": (4, 4, 128, 12, 64),
        "6 layers, 384 wide, 16 × 256 tokens": (6, 6, 384, 16, 256),
    }
    for name, (layers, heads, width, batch, context) in sizes.items():
        if effort == "smallest":
            layers, heads, width, batch, context = 1, 2, 8, 1, 16
        rounds = {"full": 9, "quick": 3, "smallest": 1}[effort]
        seconds = interleaved(check_and_step(layers, heads, width, batch, context), rounds, 1, time.process_time)
        check, step = (statistics.median(seconds[method]) for method in ("check", "step"))
        yield {"model": name, "check": check, "step": step, "share at every 100 steps": check / (100 * step)}


def gpu_cost(effort: str) -> Iterator[Row]:
    """Seconds of a check compared with 100 training steps of a compiled 124M decoder, batch 32 × 1,024, in bfloat16 on a GPU."""
    recipe, batch = gpt2(), 32
    if effort == "smallest":
        recipe, batch = replace(recipe, config=recipe.config.with_changes(width=128, depth=2, heads=2)), 2
    torch.set_float32_matmul_precision("high")
    model, step = compiled_decoder(recipe)
    monitor = rs.Monitor(model, every=1)
    x, y = torch.randint(0, 50257, (2, batch, 1024), device="cuda").unbind()

    def check() -> None:
        monitor.step()
        torch.cuda.synchronize()

    methods: dict[str, Callable[[], object]] = {"check": check, "step": lambda: step(x, y)}
    seconds = interleaved(methods, {"full": 15, "quick": 5, "smallest": 1}[effort], warm=5)
    check_seconds, step_seconds = (statistics.median(seconds[method]) for method in ("check", "step"))
    share = check_seconds / (100 * step_seconds)
    yield {"model": "124M on a GPU", "check": check_seconds, "step": step_seconds, "share at every 100 steps": share}


def check_and_step(layers: int, heads: int, width: int, batch: int, context: int) -> dict[str, Callable[[], object]]:
    """A check of the monitor and a training step of the same network."""
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 65}
    net = GPT2LMHeadModel(
        GPT2Config(n_layer=layers, n_head=heads, n_embd=width, n_positions=context, **special)
    ).train()
    optimiser, ids = torch.optim.AdamW(net.parameters()), torch.randint(65, (batch, context))
    monitor = rs.Monitor(net, every=1)

    def step() -> None:
        loss_of(net, ids).backward()
        optimiser.step()
        optimiser.zero_grad()

    return {"check": monitor.step, "step": step}


PARTS: dict[str, Callable[[str], Iterator[Row]]] = {
    function.__name__: function for function in (cost, gpu_cost, equal, planted, healthy, high_rate, failures, rules)
}


def describe(run: Run) -> Row:
    """A run as the first columns of its row."""
    size = f"{run.layers} layers × {run.heads} heads, {run.width} wide"
    return {"architecture": run.architecture, "task": run.task, "size": size, "rate": run.rate, "seed": run.seed} | (
        {"failure": run.failure} if run.failure != "none" else {}
    )


def short(run: Run, effort: str) -> Run:
    """The run itself, or with three checks in the smallest form."""
    return replace(run, steps=60) if effort == "smallest" else run


def stored_rows() -> list[Row]:
    """The rows of the last runs of all parts."""
    file = RESULTS / "training_monitor.json"
    rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=list(PARTS), help="run one part and keep the stored rows of the others")
    options = parser.parse_args(argv)
    effort = "smallest" if options.smallest else "quick" if options.quick else "full"
    logging.getLogger("rheoscope.monitor").setLevel(logging.ERROR)
    parts = [name for name in PARTS if name != "gpu_cost" or torch.cuda.is_available()]
    names = [options.part] if options.part else parts
    rows: list[Row] = []
    for name in names:
        for row in PARTS[name](effort):
            rows.append({"part": name} | row)
            print(
                "  ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in rows[-1].items()
                ),
                flush=True,
            )
    others = [] if options.smallest else [row for row in stored_rows() if row["part"] not in names]
    store_rows("training_monitor", others + rows, options.smallest)


if __name__ == "__main__":
    main()
