"""The models of a race, one at a time."""

from pathlib import Path

import torch

from rheoscope.learn.entrants import canonical_name
from rheoscope.learn.entrants import entrant_config as entrant_config
from rheoscope.learn.initial_weights import with_mechanism_seed
from rheoscope.learn.race_files import last_step, list_packs, load_state, pack_folder, read_log, read_race_settings
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import SkipInit
from rheoscope.models.config import Config
from rheoscope.models.residual_branches import set_branch_warmup
from rheoscope.models.transformer import Transformer, Translator, make_architecture
from rheoscope.shapes import RheoscopeError


@torch.no_grad()
def load_race_model(race_folder: Path, entrant: str, seed: int, rate: float | None = None) -> Transformer | Translator:
    """One model of a race at its current step.

    **Settings** The folder of the race, the name of the entrant, the number of the seed, and the rate if the race
    has several.

    **Laws** The weights are those of the pack, whether or not the seeds were packed.

    **See also** `rheoscope.load(load_race_model("run", "tied", seed=0))` opens it for every analysis, `rs.save`
    stores it.
    """
    settings, entrant = read_race_settings(Path(race_folder)), canonical_name(entrant)
    rates, seed_index = (
        [pack_rate for name, pack_rate in list_packs(settings) if name == entrant],
        seed - settings["first_seed"],
    )
    if not rates or not 0 <= seed_index < settings["seeds"] or (rate or rates[0]) not in rates:
        raise RheoscopeError(
            Message(
                "{folder} has the entrants {entrants} with seeds {first} to {last} at rates {rates}, got {entrant}, seed "
                "{seed}, rate {rate}",
                folder=str(race_folder),
                entrants=", ".join(settings["mechanisms"]),
                first=settings["first_seed"],
                last=settings["first_seed"] + settings["seeds"] - 1,
                rates=", ".join(map(str, rates or settings["rates"])),
                entrant=entrant,
                seed=seed,
                rate=rate,
            )
        )
    if rate is None and len(rates) > 1:
        raise RheoscopeError(
            Message("{folder} has models at {n} rates", folder=str(race_folder), n=len(rates)), use(rate=rates[0])
        )
    folder = pack_folder(Path(race_folder), entrant, rate or rates[0])
    step = last_step(read_log(folder))
    if step is None:
        raise RheoscopeError(
            Message(
                "{path} has no results for {entrant} yet; run the race again to continue it",
                path=str(race_folder),
                entrant=entrant,
            )
        )
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
    set_branch_warmup(model, step / settings["recipe"]["steps"])
    return model.eval()
