"""The models of a race, one at a time: for every analysis, for checkpoints, for a look at what was learned."""

from pathlib import Path

import torch

from rheoscope.learn.entrants import entrant_config as entrant_config
from rheoscope.learn.initial_weights import with_mechanism_seed
from rheoscope.learn.race_files import last_step, list_packs, load_state, pack_folder, read_log, read_race_settings
from rheoscope.models.checkpoint import SkipInit
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer, Translator, make_architecture
from rheoscope.shapes import RheoscopeError


@torch.no_grad()
def load_race_model(race_folder: Path, entrant: str, seed: int, rate: float | None = None) -> Transformer | Translator:
    """One model of a race as it stands: `rheoscope.load(model_of("run", "tied", seed=0))` opens it, `rs.save` keeps it.

    **Takes** the folder of a race, the name of an entrant, the number of a seed, and a rate where the race has several.

    **Laws** its weights are those of the pack, whether seeds were packed or not.
    """
    settings = read_race_settings(Path(race_folder))
    rates, seed_index = (
        [pack_rate for name, pack_rate in list_packs(settings) if name == entrant],
        seed - settings["first_seed"],
    )
    if not rates or not 0 <= seed_index < settings["seeds"] or (rate or rates[0]) not in rates:
        raise RheoscopeError(
            f"{race_folder} has {', '.join(settings['mechanisms'])} with seeds {settings['first_seed']} to "
            f"{settings['first_seed'] + settings['seeds'] - 1} at "
            f"{', '.join(map(str, rates or settings['rates']))}; got {entrant}, seed {seed}, rate {rate}"
        )
    if rate is None and len(rates) > 1:
        raise RheoscopeError(f"{race_folder} has several rates; type rate={rates[0]}")
    folder = pack_folder(Path(race_folder), entrant, rate or rates[0])
    step = last_step(read_log(folder))
    if step is None:
        raise RheoscopeError(f"{race_folder} has nothing of {entrant} yet; type the command of the race again to go on")
    state = load_state(folder, step)
    with SkipInit():
        model = make_architecture(
            with_mechanism_seed(
                entrant_config(entrant, Config.from_dict(settings["recipe"]["config"]), settings["recipe"]["context"]),
                seed,
            )
        )
    for name, parameter in model.named_parameters():
        single_weights = state.get(f"{seed}.weights.{name}")
        parameter.copy_(
            state[f"{settings['first_seed']}.weights.body.{name}"][seed_index]
            if single_weights is None
            else single_weights
        )
    return model.eval()
