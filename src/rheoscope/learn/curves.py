"""The loss curves of a race, from its logs, and the choice of a rate from them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.learn.race_files import JsonObject, list_packs, read_all_logs, read_race_settings
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError


@dataclass(frozen=True, eq=False)
class Curves:
    """Held-out and training losses of one entrant at one rate.

    One row per seed and one column per evaluation; NaN after divergence.
    """

    entrant: str
    rate: float
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[int, ...]
    flops: tuple[int, ...]
    loss: Float[Tensor, "s t"]
    train_loss: Float[Tensor, "s t"]
    divergence_steps: tuple[int | None, ...]

    @property
    def final_loss(self) -> Float[Tensor, " s"]:
        """The loss at the last evaluation."""
        return self.loss[:, -1]

    def first_evaluations(self, n_evaluations: int) -> "Curves":
        """The curves cut after the first `n_evaluations` evaluations."""
        return Curves(
            self.entrant, self.rate, self.seeds, self.steps[:n_evaluations], self.tokens[:n_evaluations], self.flops[:n_evaluations],
            self.loss[:, :n_evaluations], self.train_loss[:, :n_evaluations], self.divergence_steps,
        )  # fmt: skip


def read_curves(race_path: Path) -> list[Curves]:
    """The curves of a race, up to the last evaluation that every entrant has reached.

    This makes an unfinished race comparable.
    """
    curves = read_started_curves(race_path)
    started = {(curve.entrant, curve.rate) for curve in curves}
    missing = [name for name, rate in list_packs(read_race_settings(race_path)) if (name, rate) not in started]
    if missing:
        raise RheoscopeError(
            Message(
                "{path} has no results for {entrant} yet; run the race again to continue it",
                path=str(race_path),
                entrant=missing[0],
            )
        )
    return [curve.first_evaluations(min(len(shortest.steps) for shortest in curves)) for curve in curves]


def read_started_curves(race_path: Path) -> list[Curves]:
    """The curve of every pack that has been evaluated, each up to its own last evaluation."""
    lines_by_pack: dict[tuple[str, float], list[JsonObject]] = {}
    for line in read_all_logs(race_path):
        lines_by_pack.setdefault((line["entrant"], line["rate"]), []).append(line)
    return [_make_curves(name, rate, lines) for (name, rate), lines in lines_by_pack.items()]


def _make_curves(entrant: str, rate: float, lines: Sequence[JsonObject]) -> Curves:
    seeds, steps = ([*dict.fromkeys(line[key] for line in lines)] for key in ("seed", "step"))
    first_seed_lines = [line for line in lines if line["seed"] == seeds[0]]

    def grid(key: str) -> Tensor:
        values = [torch.nan if line[key] is None else line[key] for line in lines]
        return torch.tensor(values, dtype=torch.float64).view(len(steps), len(seeds)).mT

    return Curves(
        entrant, rate, tuple(seeds), tuple(steps), tuple(line["tokens"] for line in first_seed_lines),
        tuple(line["flops"] for line in first_seed_lines), grid("loss"), grid("train loss"),
        tuple(line["diverged"] for line in lines[-len(seeds) :]),
    )  # fmt: skip


def best_curves(candidates: Sequence[Curves], seeds: slice = slice(None)) -> Curves:
    """The curves at the rate with the lowest mean loss over `seeds`.

    A rate at which a seed diverged is chosen only if a seed diverged at every rate.

    >>> def single(rate, loss):
    ...     return Curves("untied", rate, (0,), (1,), (9,), (9,), torch.tensor([[loss]]), torch.zeros(1, 1), (None,))
    >>> best_curves([single(1e-3, 3.0), single(3e-3, 2.0), single(1e-2, float("nan"))]).rate
    0.003
    """

    def sort_key(curves: Curves) -> tuple[int, float]:
        final_losses = curves.final_loss[seeds]
        n_diverged = int(final_losses.isnan().sum())
        return n_diverged, float(final_losses.nanmean()) if n_diverged < len(final_losses) else torch.inf

    return min(candidates, key=sort_key)


def mean_losses(curves: Iterable[Curves]) -> dict[tuple[str, float], float]:
    """The final loss of every entrant at every rate, mean over seeds; NaN if a seed diverged."""
    return {(curve.entrant, curve.rate): float(curve.final_loss.mean()) for curve in curves}


def default_target(baseline: Curves, judged_slice: slice) -> float:
    """A loss that every seed of the baseline reaches: the largest final loss over its seeds."""
    return float(baseline.final_loss[judged_slice].nan_to_num(-torch.inf).max())
