"""Packed seeds against one after another: tokens a second; and the step of every entrant beside the baseline's.

    python benchmarks/race.py [--seeds 12] [--batch 16] [--entrants untied,metric,…]
    python benchmarks/race.py --smallest     two small seeds, few steps, nothing stored

python benchmarks/race.py --seeds 12 --batch 64 is nearer to what a race takes.

A decoder of about 3M parameters (width 192, 6 layers, 4096 tokens in its vocabulary), 256 tokens a text; on a GPU bfloat16 autocast and
torch.compile, as in a race. Steps are interleaved in one process; a step is forward, backward, clipping and AdamW (or --muon).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from timing import arguments, interleaved, keep, ratio

from rheoscope.learn.entrants import ENTRANTS, n_parameters
from rheoscope.learn.entrants import entrant_config as model_of
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import Learner, make_packed_learner, make_single_learner
from rheoscope.learn.packed_model import PackingError
from rheoscope.learn.race import COMPILE_PER_BLOCK
from rheoscope.learn.race_plan import Pack
from rheoscope.learn.torch_modes import raised_recompile_limit
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import NextTokenTask
from rheoscope.models.token_corpus import Corpus
from rheoscope.running.weight_files import default_device

FEWEST = 2
"""Seeds of the smallest form, in which nothing is compiled."""
PEAK = 989e12
"""bfloat16, dense, as the data sheet of the H100 and H200 has it."""


def recipe_of(smallest: bool, batch: int, optimiser: str) -> Recipe:
    config = Config(vocabulary=4096, width=192, depth=6, heads=3, context=256)
    if smallest:
        config = config.with_changes(vocabulary=64, width=32, depth=1, heads=2, context=16)
    return Recipe(config, steps=1000, batch=batch, context=config.context, rate=1e-3, optimiser=optimiser)


def stepper(learners: Sequence[Learner], pack: Pack, task: NextTokenTask, device: str) -> Callable[[], None]:
    """One step of all seeds, on the batch of step 0."""
    work = [pack.batch(task, learner.seeds, 0) for learner in learners]
    there = [((x.to(device), y.to(device)), tokens.to(device)) for (x, y), tokens in work]

    def step() -> None:
        for learner, (batch, tokens) in zip(learners, there, strict=True):
            learner.step(pack.recipe, 200, batch, tokens)
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def made(pack: Pack, task: NextTokenTask, device: str, together: int, blocks: bool = False) -> list[Learner]:
    """Learners of so many seeds each, whose steps are recorded; 0: of one seed, whose steps are not."""
    models = {seed: initial_model(pack.recipe.config, seed).to(device) for seed in pack.seeds}
    learners = (
        [make_single_learner(model, seed, pack.recipe, task) for seed, model in models.items()] if not together else []
    )
    for begin in range(0, len(pack.seeds), together) if together else ():
        seeds = pack.seeds[begin : begin + together]
        learners.append(make_packed_learner([models[seed] for seed in seeds], seeds, pack.recipe, task))
    for learner in learners if device == "cuda" and len(pack.seeds) > FEWEST else ():
        learner.compile(blocks)
        if together:
            learner.enable_recording()
    return learners


def main(words: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--entrants", default=",".join(ENTRANTS))
    parser.add_argument("--muon", action="store_true")
    options = parser.parse_args(words)
    seeds, batch = (FEWEST, 2) if options.smallest else (options.seeds, options.batch)
    device, recipe = default_device(), recipe_of(options.smallest, batch, "muon" if options.muon else "adamw")
    rows = np.random.default_rng(0).integers(recipe.config.vocabulary, size=100_000)
    task = NextTokenTask(Corpus(rows, rows[:1000], recipe.config.vocabulary, 1000, Path()))
    names = ["untied", "metric_map"] if options.smallest else options.entrants.split(",")
    rounds, warm = (2, 1) if options.smallest else (10, 3) if options.quick else (30, 5)
    tokens = seeds * batch * recipe.context
    print(
        f"{n_parameters(recipe.config) / 1e6:.2f}M parameters, {seeds} seeds x {batch} x {recipe.context} tokens a step, {device}"
    )
    with raised_recompile_limit(device == "cuda"):
        told = against_alone(recipe, seeds, task, device, rounds, warm, tokens)
        told += beside_baseline(names, recipe, seeds, task, device, rounds, warm, tokens)
    keep("race", told, options.smallest)


def against_alone(
    recipe: Recipe, seeds: int, task: NextTokenTask, device: str, rounds: int, warm: int, tokens: int
) -> list[dict[str, object]]:
    """The baseline: packed, compiled whole or block by block, and one after another."""
    pack = Pack("untied", recipe, tuple(range(seeds)))
    methods = {}
    ways = {
        "packed": (seeds, False),
        "packed, by blocks": (seeds, True),
        "one after another, recorded": (1, False),
        "one after another": (0, False),
    }
    for name, way in ways.items():
        began = time.perf_counter()
        methods[name] = stepper(made(pack, task, device, *way), pack, task, device)
        methods[name]()
        print(f"  {name}: first step after {time.perf_counter() - began:.1f} s")
    seconds = interleaved(methods, rounds, warm)
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    faster = {name: ratio(seconds, "packed, by blocks", name) for name in ways if name.startswith("one")}
    for name in methods:
        share = pack.flops_per_step * seeds / middle[name] / PEAK
        print(
            f"{name:28s} {1000 * middle[name]:8.2f} ms a step   {tokens / middle[name]:12,.0f} tokens/s   {100 * share:5.1f} % of the peak"
        )
    told: list[dict[str, object]] = [
        {"name": name, "ms": 1000 * middle[name], "tokens per second": tokens / middle[name]} for name in methods
    ]
    for name, (speed, noise) in faster.items():
        print(f"packed over {name}: {speed:.2f} +- {noise:.2f}")
        told.append({"name": f"packed over {name}", "speed": speed, "noise": noise})
    return told


def beside_baseline(
    names: Sequence[str],
    recipe: Recipe,
    seeds: int,
    task: NextTokenTask,
    device: str,
    rounds: int,
    warm: int,
    tokens: int,
) -> list[dict[str, object]]:
    """A packed step of every entrant, compiled as a race does, two at a time: it and the baseline."""
    told: list[dict[str, object]] = []
    base = Pack("untied", recipe, tuple(range(seeds)))
    first = stepper(made(base, task, device, seeds, COMPILE_PER_BLOCK), base, task, device)
    for name in names:
        pack = Pack(name, Recipe(**(vars(recipe) | {"config": model_of(name, recipe.config)})), tuple(range(seeds)))
        began = time.perf_counter()
        try:
            step = stepper(made(pack, task, device, seeds, COMPILE_PER_BLOCK), pack, task, device)
        except PackingError as why:
            print(f"{name:20s} is not packed: {why}")
            continue
        step()
        waited = time.perf_counter() - began
        seconds = interleaved({"it": step, "untied": first}, rounds, warm)
        slower, noise = ratio(seconds, "untied", "it")
        ms = 1000 * statistics.median(seconds["it"])
        print(
            f"{name:20s} {ms:8.2f} ms a step   {slower:5.2f} +- {noise:.2f} of the baseline's   first step after {waited:.1f} s"
        )
        told.append(
            {"name": name, "ms": ms, "step over the baseline's": slower, "noise": noise, "first step s": waited}
        )
    return told


if __name__ == "__main__":
    main()
