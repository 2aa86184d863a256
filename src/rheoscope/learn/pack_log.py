"""The entries that a pack of seeds writes to its log and its checkpoint."""

import math
from dataclasses import dataclass

from torch import Tensor

from rheoscope.learn import race_files
from rheoscope.learn.learner import Learner
from rheoscope.learn.race_plan import Pack


@dataclass(frozen=True)
class IntervalLosses:
    """The mean training loss of every seed since the last evaluation, and the step at which it stopped being finite."""

    losses: list[float]
    divergence_steps: list[int | None]


def log_entries(
    pack: Pack,
    eval_step: int,
    interval_losses: IntervalLosses,
    held_out_losses: list[float],
    earlier_lines: list[race_files.JsonObject],
) -> list[race_files.JsonObject]:
    """One log entry per seed. A seed that diverged once stays marked as diverged."""
    diverged_steps = {line["seed"]: line["diverged"] for line in earlier_lines[-len(pack.seeds) :]}
    entries, total_flops = [], pack.flops_per_step * eval_step
    for index, seed in enumerate(pack.seeds):
        divergence_step = (
            diverged_steps.get(seed)
            or interval_losses.divergence_steps[index]
            or (None if math.isfinite(held_out_losses[index]) else eval_step)
        )
        entries.append(
            {
                "entrant": pack.entrant,
                "rate": pack.recipe.rate,
                "seed": seed,
                "step": eval_step,
                "tokens": eval_step * pack.tokens_per_step,
                "flops": total_flops,
                "train loss": _finite_or_none(interval_losses.losses[index]),
                "loss": None if divergence_step else _finite_or_none(held_out_losses[index]),
                "diverged": divergence_step,
            }
        )
    return entries


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def prefixed_tensors(learner: Learner, resumable: bool) -> dict[str, Tensor]:
    """The state of a learner, keyed by its first seed."""
    return {f"{learner.seeds[0]}.{name}": x for name, x in learner.state_tensors(resumable).items()}


def tensors_of_learner(state: dict[str, Tensor], learner: Learner) -> dict[str, Tensor]:
    """The tensors of one learner in the state of a pack."""
    prefix = f"{learner.seeds[0]}."
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
