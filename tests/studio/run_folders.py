"""Folders of training runs and races, written by hand as far as a run has got."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENTRANTS, RATE, EVALUATED_STEPS = ("untied", "tied"), 0.001, (0, 10, 20)


def write_race(folder: Path, entrants: Sequence[str] = ENTRANTS, n_evaluations: int = 3, n_seeds: int = 4) -> Path:
    """A race over 20 steps, in which `entrants` have been evaluated `n_evaluations` times. The tied entrant is behind by .5."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = {"steps": 20, "context": 8, "config": {"vocabulary": 20, "width": 16, "heads": 2}}
    settings = {"recipe": recipe, "mechanisms": ENTRANTS, "rates": [RATE], "chosen": {}, "seeds": n_seeds}
    (folder / "race.json").write_text(json.dumps(settings | {"data": "by hand", "first_seed": 0}))
    for entrant in entrants:
        pack = folder / "packs" / f"{entrant}@{RATE!r}"
        pack.mkdir(parents=True, exist_ok=True)
        lines = [
            {
                "entrant": entrant,
                "rate": RATE,
                "seed": seed,
                "step": step,
                "tokens": 64 * step,
                "flops": 1000 * step,
                "train loss": 3 - step / 20,
                "loss": 3 - step / 20 + 0.01 * seed + 0.5 * (entrant == "tied" and step > 0) * (1 + 0.01 * seed),
                "diverged": None,
            }
            for step in EVALUATED_STEPS[:n_evaluations]
            for seed in range(n_seeds)
        ]
        (pack / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_training_run(folder: Path, n_evaluations: int = 3, observed: Sequence[int] = (0, 20)) -> Path:
    """A training run of 20 steps with observations of its geometry."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps({"steps": 20, "config": {"vocabulary": 20}}))
    lines = [{"step": step, "loss": 3 - step / 20, "train loss": 2.5} for step in EVALUATED_STEPS[:n_evaluations]]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in observed:
        (folder / "looks").mkdir(exist_ok=True)
        observation: dict[str, Any] = {"step": step, "tokens": 30, "values": {"symmetry": 0.1 + step / 100}}
        observation |= {"nulls": {"symmetry": 0.05}, "heads": {}, "left_out": {}}
        (folder / "looks" / f"step-{step:06}.json").write_text(json.dumps(observation))
    return folder
