"""Training speed of packed seeds compared with one seed at a time, and of every entrant compared with the baseline.

    python benchmarks/race.py [--seeds 12] [--batch 16] [--entrants untied,metric,…]
    python benchmarks/race.py --seeds 12 --batch 64     close to the setting of a race
    python benchmarks/race.py --factorial               the 16 entrants of projection x scale x diagonal, without the packing times
    python benchmarks/race.py --quick --entrants untied+residual=0.1,layerscale     penalties and branches
    python benchmarks/race.py --smallest                two small seeds, few steps, nothing is stored

The model is a decoder of about 3M parameters (width 192, 6 layers, vocabulary of 4096) with 256 tokens per text. On a GPU it runs with
bfloat16 autocast and torch.compile, as in a race. Steps are interleaved in one process. A step is forward, backward, clipping and AdamW
(or Muon with --muon). On a CPU, an entrant is compared with the baseline by CPU time, because other programs share the machine.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from timing import interleaved, make_parser, ratio, store_rows

from rheoscope.learn.entrant_parts import FACTORIAL, split_entrants
from rheoscope.learn.entrants import ENTRANTS, canonical_name, n_parameters
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.learner import Learner, make_packed_learner, make_single_learner
from rheoscope.learn.packed_model import PackingError
from rheoscope.learn.race import COMPILE_PER_BLOCK
from rheoscope.learn.race_plan import Pack, Race
from rheoscope.learn.torch_modes import raised_recompile_limit
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import NextTokenTask
from rheoscope.models.token_corpus import Corpus
from rheoscope.running.weight_files import default_device

SMALLEST_SEEDS = 2
"""Seeds with --smallest, where nothing is compiled."""
PEAK_FLOPS = 989e12
"""Peak FLOP/s in dense bfloat16, from the data sheet of the H100 and H200."""


def recipe_of(smallest: bool, batch: int, optimiser: str) -> Recipe:
    config = Config(vocabulary=4096, width=192, depth=6, heads=3, context=256)
    if smallest:
        config = config.with_changes(vocabulary=64, width=32, depth=1, heads=2, context=16)
    return Recipe(config, steps=1000, batch=batch, context=config.context, rate=1e-3, optimiser=optimiser)


def stepper(learners: Sequence[Learner], pack: Pack, task: NextTokenTask, device: str) -> Callable[[], None]:
    """A function that runs one step of all seeds on the batch of step 0."""
    batches = [pack.batch(task, learner.seeds, 0) for learner in learners]
    device_batches = [((x.to(device), y.to(device)), tokens.to(device)) for (x, y), tokens in batches]

    def step() -> None:
        for learner, (batch, tokens) in zip(learners, device_batches, strict=True):
            learner.step(pack.recipe, 200, batch, tokens)
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def make_learners(pack: Pack, task: NextTokenTask, device: str, together: int, blocks: bool = False) -> list[Learner]:
    """Learners of `together` seeds each, with recorded CUDA graphs. 0: learners of one seed without recording."""
    models = {seed: initial_model(pack.recipe.config, seed).to(device) for seed in pack.seeds}
    learners = (
        [make_single_learner(model, seed, pack.recipe, task) for seed, model in models.items()] if not together else []
    )
    for first_seed in range(0, len(pack.seeds), together) if together else ():
        seeds = pack.seeds[first_seed : first_seed + together]
        learners.append(make_packed_learner([models[seed] for seed in seeds], seeds, pack.recipe, task))
    for learner in learners if device == "cuda" and len(pack.seeds) > SMALLEST_SEEDS else ():
        learner.compile(blocks)
        if together:
            learner.enable_recording()
    return learners


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--entrants", default=",".join(ENTRANTS))
    parser.add_argument("--factorial", action="store_true")
    parser.add_argument("--muon", action="store_true")
    options = parser.parse_args(argv)
    seeds, batch = (SMALLEST_SEEDS, 2) if options.smallest else (options.seeds, options.batch)
    device, recipe = default_device(), recipe_of(options.smallest, batch, "muon" if options.muon else "adamw")
    token_ids = np.random.default_rng(0).integers(recipe.config.vocabulary, size=100_000)
    task = NextTokenTask(Corpus(token_ids, token_ids[:1000], recipe.config.vocabulary, 1000, Path()))
    names = split_entrants(options.entrants)
    names = list(map(canonical_name, FACTORIAL)) if options.factorial else names
    names = ["untied", "projection=isometric_tied,scale=unit,diagonal=no"] if options.smallest else names
    rounds, warm = (2, 1) if options.smallest else (10, 3) if options.quick else (30, 5)
    tokens = seeds * batch * recipe.context
    print(
        f"{n_parameters(recipe.config) / 1e6:.2f}M parameters, {seeds} seeds x {batch} x {recipe.context} tokens per step, {device}"
    )
    with raised_recompile_limit(device == "cuda"):
        rows = [] if options.factorial else against_single_seeds(recipe, seeds, task, device, rounds, warm, tokens)
        rows += against_baseline(names, recipe, seeds, task, device, rounds, warm, tokens)
    store_rows("race_factorial" if options.factorial else "race", rows, options.smallest)


def against_single_seeds(
    recipe: Recipe, seeds: int, task: NextTokenTask, device: str, rounds: int, warm: int, tokens: int
) -> list[dict[str, object]]:
    """The baseline packed, compiled as a whole or per block, and one seed after another."""
    pack = Pack("untied", recipe, tuple(range(seeds)))
    methods = {}
    variants = {
        "packed": (seeds, False),
        "packed, by blocks": (seeds, True),
        "one after another, recorded": (1, False),
        "one after another": (0, False),
    }
    for name, variant in variants.items():
        start = time.perf_counter()
        methods[name] = stepper(make_learners(pack, task, device, *variant), pack, task, device)
        methods[name]()
        print(f"  {name}: first step after {time.perf_counter() - start:.1f} s")
    seconds = interleaved(methods, rounds, warm)
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    faster = {name: ratio(seconds, "packed, by blocks", name) for name in variants if name.startswith("one")}
    for name in methods:
        share = pack.flops_per_step * seeds / middle[name] / PEAK_FLOPS
        print(
            f"{name:28s} {1000 * middle[name]:8.2f} ms/step   {tokens / middle[name]:12,.0f} tokens/s   {100 * share:5.1f} % of the peak"
        )
    rows: list[dict[str, object]] = [
        {"name": name, "ms": 1000 * middle[name], "tokens per second": tokens / middle[name]} for name in methods
    ]
    for name, (speed, noise) in faster.items():
        print(f"packed over {name}: {speed:.2f} +- {noise:.2f}")
        rows.append({"name": f"packed over {name}", "speed": speed, "noise": noise})
    return rows


def against_baseline(
    names: Sequence[str],
    recipe: Recipe,
    seeds: int,
    task: NextTokenTask,
    device: str,
    rounds: int,
    warm: int,
    tokens: int,
) -> list[dict[str, object]]:
    """A packed step of every entrant, interleaved with the baseline and compiled as in a race."""
    rows: list[dict[str, object]] = []
    baseline_pack = Pack("untied", recipe, tuple(range(seeds)))
    baseline_step = stepper(
        make_learners(baseline_pack, task, device, seeds, COMPILE_PER_BLOCK), baseline_pack, task, device
    )
    for name in names:
        pack = Race(recipe, (name,), seeds).packs()[-1]
        start = time.perf_counter()
        try:
            step = stepper(make_learners(pack, task, device, seeds, COMPILE_PER_BLOCK), pack, task, device)
        except PackingError as error:
            print(f"{name:20s} cannot be packed: {error}")
            continue
        step()
        first_step_seconds = time.perf_counter() - start
        clock = time.perf_counter if device == "cuda" else time.process_time
        seconds = interleaved({"entrant": step, "untied": baseline_step}, rounds, warm, clock)
        slower, noise = ratio(seconds, "untied", "entrant")
        ms = 1000 * statistics.median(seconds["entrant"])
        print(
            f"{name:56s} {ms:8.2f} ms/step   {slower:5.3f} +- {noise:.3f} of the baseline's   "
            f"{1000 * tokens / ms:12,.0f} tokens/s   first step after {first_step_seconds:.1f} s",
            flush=True,
        )
        rows.append(
            {
                "name": name,
                "ms": ms,
                "tokens per second": 1000 * tokens / ms,
                "step over the baseline's": slower,
                "noise": noise,
                "first step s": first_step_seconds,
            }
        )
    return rows


if __name__ == "__main__":
    main()
