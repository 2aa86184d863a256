"""The winner of a race as a model: the entrant with the lowest mean loss, and of it the seed with the lowest one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rheoscope.learn import race_files
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.own_entrants import is_own_entrant
from rheoscope.learn.packed_model import PackedModel
from rheoscope.learn.race_plan import Pack
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import check_no_foreign_files
from rheoscope.models.transformers_files import save_for_transformers
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True, eq=False)
class Winner:
    """The run that won: its pack, its seed, the held-out loss of the run and the mean over the seeds of its pack."""

    pack: Pack
    seed: int
    loss: float
    mean_loss: float


def find_winner(packs: Sequence[Pack], folder: Path) -> Winner:
    """The winner of a finished race. A pack with a diverged seed does not win."""
    winners = []
    for pack in packs:
        losses = _final_losses(pack, folder)
        if len(losses) == len(pack.seeds):
            seed = min(losses, key=lambda seed: losses[seed])
            winners.append(Winner(pack, seed, losses[seed], sum(losses.values()) / len(losses)))
    if not winners:
        raise RheoscopeError(Message("every entrant has a seed that diverged, so no model can be saved"))
    return min(winners, key=lambda winner: winner.mean_loss)


def _final_losses(pack: Pack, folder: Path) -> dict[int, float]:
    """The last loss of every seed that did not diverge."""
    lines = race_files.read_log(race_files.pack_folder(folder, pack.entrant, pack.recipe.rate))
    return {
        line["seed"]: line["loss"] for line in lines if line["step"] == pack.recipe.steps and line["loss"] is not None
    }


@torch.no_grad()
def winning_network(winner: Winner, folder: Path) -> nn.Module:
    """The network of the winner with its trained weights, on the CPU."""
    pack = winner.pack
    tensors = race_files.load_state(race_files.pack_folder(folder, pack.entrant, pack.recipe.rate), pack.recipe.steps)
    single = initial_model(pack.recipe.config, winner.seed)
    own_weights = _weights(tensors, winner.seed)
    if own_weights.keys() == dict(single.named_parameters()).keys():
        _copy(single, own_weights)
        return single.eval()
    packed = PackedModel([initial_model(pack.recipe.config, seed) for seed in pack.seeds])
    _copy(packed, _weights(tensors, pack.seeds[0]))
    return packed.unpack(pack.seeds.index(winner.seed)).eval()


def _weights(tensors: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The weights of the learner whose first seed this is."""
    prefix = f"{seed}.weights."
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _copy(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def check_can_save(mechanisms: Sequence[str], form: str, out: Path) -> None:
    """Raise before a race whose winner could not be saved, or not be opened as a language model."""
    check_no_foreign_files(out)
    if form != "decoder":
        raise RheoscopeError(
            Message("--save writes decoders, but this race trains an {form}", form=form), Advice("", "no --save")
        )
    own = next(filter(is_own_entrant, mechanisms), None)
    if own is not None:
        raise RheoscopeError(
            Message("--save cannot write {entrant}, whose code is in a file of yours", entrant=own),
            Advice("", "no --save"),
        )


def save_winner(packs: Sequence[Pack], folder: Path, tokenizer: Path | None, out: Path) -> Message:
    """Write the winner of a finished race to a folder that `rs.load`, `rheoscope generate` and transformers open."""
    winner = find_winner(packs, folder)
    recipe = winner.pack.recipe
    card = {
        "entrant": winner.pack.entrant,
        "rate": recipe.rate,
        "seed": winner.seed,
        "steps": recipe.steps,
        "held_out_loss": winner.loss,
        "mean_held_out_loss": winner.mean_loss,
        "seeds": len(winner.pack.seeds),
    }
    save_for_transformers(winning_network(winner, folder), out, tokenizer, card)
    return Message(
        "saved {entrant} at rate {rate:g}, seed {seed}, in {out}: the lowest mean loss, and of it the best seed",
        entrant=winner.pack.entrant,
        rate=recipe.rate,
        seed=winner.seed,
        out=str(out),
    )
