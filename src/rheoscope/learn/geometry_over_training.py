"""Geometry during training: the catalogue's analyses of one held-out text at chosen steps of a run.

    out/looks/step-000100.json    the observation at step 100: one number per quantity, and one per head where available

`rheoscope train … --look 0,100,300,1000` records observations and `rheoscope learned RUN` shows them. Checkpoints of any
training run are measured afterwards, on a given text: `rheoscope learned FOLDER TEXT`. An
observation depends only on the weights and on a text fixed by the data and the recipe. A run that was killed and
resumed has the same ones.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name, words_by_name
from rheoscope.checkpoint_series import CheckpointSeries, OnCheckpoint
from rheoscope.files import write_file
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Task
from rheoscope.models.training_state import OBSERVATIONS, observation_file
from rheoscope.opening import load
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.trace import Trace
from rheoscope.space.training_quantity import TrainingQuantity

if TYPE_CHECKING:
    import xarray

MAX_TOKENS = 64
"""The largest number of tokens of the held-out text."""


QUANTITIES: dict[str, TrainingQuantity] = {
    quantity.name: quantity
    for quantity in sorted(
        (quantity for name in ANALYSIS_MODULES for quantity in words_by_name(name).training_quantities),
        key=lambda quantity: quantity.order,
    )
}
"""All quantities by name. An analysis declares its own in its `words.py`."""


@dataclass(frozen=True, eq=False)
class GeometryObserver:
    """An observer for `train(observe=…)`: at chosen steps it measures the model and writes the observation to the run's folder."""

    steps: frozenset[int]
    out: Path
    token_ids: Int[Tensor, " n"]

    def __call__(self, step: int, model: nn.Module) -> None:
        if step in self.steps:
            save_observation(self.out, step, observe_geometry(model, self.token_ids))

    @staticmethod
    def from_task(steps: Sequence[int], out: Path, task: Task, recipe: Recipe) -> "GeometryObserver":
        """An observer that uses the first held-out text."""
        if recipe.config.form == "encoder-decoder":
            raise RheoscopeError(
                Message("look needs a model with a single stack of layers, got an encoder-decoder; leave look out")
            )
        too_late = [step for step in steps if step > recipe.steps]
        if too_late:
            valid_steps = [step for step in steps if step <= recipe.steps] or [0, recipe.steps]
            raise RheoscopeError(
                Message(
                    "look must be between 0 and {steps}, the last step of the run, got {step}",
                    steps=recipe.steps,
                    step=too_late[0],
                ),
                use(look=valid_steps),
            )
        inputs, _ = next(iter(task.held_out_batches(recipe)))
        return GeometryObserver(frozenset(steps), out, inputs[0, :MAX_TOKENS])


EXAMPLE_STEPS = use(look=[0, 100, 300, 1000])
"""Steps to type where the given ones are not usable."""


def parse_steps(text: str) -> list[int]:
    """Steps from a comma-separated list.

    >>> parse_steps("0,100,300")
    [0, 100, 300]
    """
    try:
        steps = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise RheoscopeError(
            Message("look must be a comma-separated list of whole numbers, got {text!r}", text=text), EXAMPLE_STEPS
        ) from error
    if steps[0] < 0:
        raise RheoscopeError(Message("look must be 0 or more, got {step}", step=steps[0]), EXAMPLE_STEPS)
    return steps


def observe_geometry(model: nn.Module, token_ids: Int[Tensor, " n"]) -> dict[str, Any]:
    """Every quantity of a network that is being trained, on a text."""
    with evaluation_mode(model):
        loaded_model = load(model)
        return measure_geometry(loaded_model, loaded_model.trace(token_ids.to(loaded_model.view.embed.device)))


def measure_geometry(model: RunnableModel, trace: Trace) -> dict[str, Any]:
    """Every quantity of a model on a text: `values` and `nulls` by name, `heads` (layer, head), and the reasons for those `left_out`."""
    values: dict[str, float] = {}
    nulls: dict[str, float] = {}
    heads: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    run_cached = cache(
        lambda name, uses_text, settings: _run_analysis(model, trace if uses_text else None, name, dict(settings))
    )
    for name, quantity in QUANTITIES.items():
        try:
            result = run_cached(quantity.analysis, quantity.uses_text, tuple(quantity.settings.items()))
            values[name] = float(quantity.reduce(result[quantity.field_name]))
            if quantity.null_field:
                nulls[name] = float(quantity.reduce(result[quantity.null_field]))
            if result[quantity.field_name].dims == ("layer", "head"):
                heads[name] = result[quantity.field_name].values.astype(float).tolist()
        except (RheoscopeError, KeyError) as error:  # no M, no next token, post-norm
            skipped[name] = str(error)
    return {"tokens": len(trace), "values": values, "nulls": nulls, "heads": heads, "left_out": skipped}


def _run_analysis(model: Any, trace: Any, name: str, settings: dict[str, Any]) -> "xarray.Dataset":
    """Run one analysis on the subjects that it needs."""
    declaration = analysis_by_name(name)
    subjects = {"view": model.view, "trace": trace, "model": model}
    return declaration.ask(
        *(subjects[subject] for subject in declaration.subjects if subjects[subject] is not None), **settings
    )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model that is being trained into evaluation mode, and restore the mode of every module and the random state."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), torch.no_grad(), eval_mode(model):
        yield


def save_observation(out: Path, step: int, observation: dict[str, Any]) -> None:
    """Write an observation atomically. NaN becomes null."""
    (out / OBSERVATIONS).mkdir(parents=True, exist_ok=True)
    text = json.dumps(_nan_to_none({"step": step} | observation), indent=1)
    write_file(observation_file(out, step), lambda file: file.write_text(text + "\n"))


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nan_to_none(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def learned(run: Path) -> "xarray.Dataset":
    """Geometry during training: every quantity and its null at the observed steps.

    **Question** When did heads become symmetric, attend to similar tokens, attend to the first token, or copy
    earlier tokens?

    **Returns** (training_step): each quantity and its null. (training_step, layer, head): `…_by_head` where it
    exists. `attrs["missing"]` lists the quantities that this model does not support, with the reasons.

    **Laws** The observation at step 0 is the untrained model, the control of all others. A run that was killed and
    resumed has the same observations.

    **See also** `rheoscope train --look` records them. `rs.operators`, `rs.agreement`, … measure the same for any
    model.
    """
    files = sorted((run / OBSERVATIONS).glob("step-*.json"))
    if not files:
        has_checkpoints = any(run.glob("*/config.json"))
        command = (
            f"rheoscope learned {run} TEXT"
            if has_checkpoints
            else f"rheoscope train RECIPE --look 0,100,300,1000 --out {run}"
        )
        raise RheoscopeError(Message("{run} has no observations", run=str(run)), Advice("", command))
    observations = sorted((json.loads(file.read_text()) for file in files), key=lambda observation: observation["step"])
    return _as_dataset(observations, str(run))


def learned_of_series(
    series: CheckpointSeries, text: Any, on_checkpoint: OnCheckpoint | None = None
) -> "xarray.Dataset":
    """The same quantities measured now on a text, in every checkpoint of a series."""
    observations, models = [], iter(series)
    for index, label in enumerate(series.labels):
        if on_checkpoint is not None:
            on_checkpoint(index, len(series), label)
        model = next(models)
        observations.append({"step": label} | measure_geometry(model, model.trace(text)))
        del model  # before the next one is loaded
    return _as_dataset(observations, series.name)


def _as_dataset(observations: list[dict[str, Any]], run: str) -> "xarray.Dataset":
    """All quantities along the observed steps."""
    values: dict[str, Any] = {}
    for name in QUANTITIES:
        if any(name in observation["values"] for observation in observations):
            values[name] = _quantity_values(observations, "values", name)
        if any(name in observation["nulls"] for observation in observations):
            values[f"{name}_null"] = _quantity_values(observations, "nulls", name)
        if all(name in observation["heads"] for observation in observations):
            values[f"{name}_by_head"] = _float_array([observation["heads"][name] for observation in observations])
    skipped = {
        name: reason
        for observation in observations
        for name, reason in observation["left_out"].items()
        if name not in values
    }
    attributes = {"run": run, "tokens": observations[0]["tokens"]} | (
        {"missing": json.dumps(skipped)} if skipped else {}
    )
    return LEARNED.label(values, {"training_step": [observation["step"] for observation in observations]}, attributes)


def _quantity_values(observations: list[dict[str, Any]], section: str, name: str) -> Any:
    return _float_array([observation[section].get(name) for observation in observations])


def _float_array(values: Any) -> Any:
    import numpy as np

    return np.array(values, dtype=float)  # None becomes NaN


def _quantity_fields() -> dict[str, Field]:
    quantity_fields: dict[str, Field] = {}
    for name, quantity in QUANTITIES.items():
        quantity_fields[name] = Field(
            ("training_step",), quantity.definition, null=f"{name}_null" if quantity.null_field else ""
        )
        quantity_fields[f"{name}_null"] = Field(
            ("training_step",), Message("{quantity} expected by chance in the same model", quantity=name)
        )
        quantity_fields[f"{name}_by_head"] = Field(
            ("training_step", "layer", "head"), Message("{quantity} of each head", quantity=name)
        )
    return quantity_fields


LEARNED = Analysis("learned", "How does geometry form during training?", learned, "view", _quantity_fields())
