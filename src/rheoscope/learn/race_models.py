"""The models of a race, one at a time: for every analysis, for checkpoints, for a look at what was learned."""

from pathlib import Path

import torch

from rheoscope.learn.entrants import entrant as config_of
from rheoscope.learn.initial_weights import with_seed
from rheoscope.learn.race_files import lines_of, pack_folder, packs_of, read_race, state_of, step_of
from rheoscope.models.checkpoint import Undrawn
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer, Translator, architecture
from rheoscope.shapes import RheoscopeError


@torch.no_grad()
def model_of(out: Path, entrant: str, seed: int, rate: float | None = None) -> Transformer | Translator:
    """One model of a race as it stands: `rheoscope.load(model_of("run", "tied", seed=0))` opens it, `rs.save` keeps it.

    **Takes** the folder of a race, the name of an entrant, the number of a seed, and a rate where the race has several.

    **Laws** its weights are those of the pack, whether seeds were packed or not.
    """
    told = read_race(Path(out))
    rates, at = [one for name, one in packs_of(told) if name == entrant], seed - told["first_seed"]
    if not rates or not 0 <= at < told["seeds"] or (rate or rates[0]) not in rates:
        raise RheoscopeError(
            f"{out} has {', '.join(told['mechanisms'])} with seeds {told['first_seed']} to {told['first_seed'] + told['seeds'] - 1} at "
            f"{', '.join(map(str, rates or told['rates']))}; got {entrant}, seed {seed}, rate {rate}"
        )
    if rate is None and len(rates) > 1:
        raise RheoscopeError(f"{out} has several rates; type rate={rates[0]}")
    folder = pack_folder(Path(out), entrant, rate or rates[0])
    step = step_of(lines_of(folder))
    if step is None:
        raise RheoscopeError(f"{out} has nothing of {entrant} yet; type the command of the race again to go on")
    held = state_of(folder, step)
    with Undrawn():
        model = architecture(
            with_seed(config_of(entrant, Config.of(told["recipe"]["config"]), told["recipe"]["context"]), seed)
        )
    for name, own in model.named_parameters():
        alone = held.get(f"{seed}.weights.{name}")
        own.copy_(held[f"{told['first_seed']}.weights.body.{name}"][at] if alone is None else alone)
    return model.eval()
