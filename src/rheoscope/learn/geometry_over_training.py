"""Geometry while a model learns: the catalogue's analyses of one held-out text, at marked steps of a run.

    out/looks/step-000100.json    what was seen at step 100: one number a quantity, and one a head where there is one

`rheoscope train … --look 0,100,300,1000` looks, `rheoscope learned RUN` tells. A look is a function of the weights and of a text that
depends on the data and the recipe alone, so that a run that was killed and resumed has the same looks.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rheoscope.catalogue import analysis
from rheoscope.files import write_file
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Task
from rheoscope.models.training_state import LOOKS, look_file
from rheoscope.opening import load
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field

if TYPE_CHECKING:
    import xarray

TOKENS = 64
"""Tokens of the held-out text that is looked at, at most."""


@dataclass(frozen=True)
class Seen:
    """One quantity: a field of an analysis and of its null, and how it becomes one number a model."""

    asks: str
    of: str
    null: str
    told: str
    settings: dict[str, Any] = field(default_factory=dict)
    pick: Callable[["xarray.DataArray"], "xarray.DataArray"] = lambda x: x.mean()
    text: bool = True
    """Whether it is asked of the held-out text; else the analysis brings its own."""


def _last(x: "xarray.DataArray") -> "xarray.DataArray":
    return x.isel(point=-1)


def _largest(x: "xarray.DataArray") -> "xarray.DataArray":
    return x.max()


SEEN: dict[str, Seen] = {
    "symmetry": Seen("operators", "symmetry", "symmetry_null", "tr(MM)/tr(MMᵀ), mean over heads", {"draws": 0}),
    "positive_share": Seen(
        "operators", "positive_share", "positive_share_null", "Σλ⁺/Σ|λ| of ½(M + Mᵀ), mean over heads", {"draws": 0}
    ),
    "agreement": Seen(
        "agreement", "agreement", "null_mean", "do scores follow similarity in E? mean over heads", {"draws": 8}
    ),
    "distortion": Seen(
        "distortion",
        "rsa",
        "rsa_null",
        "rank correlation of distances before and after projection, mean over heads and images",
        {"draws": 2},
    ),
    "residual": Seen(
        "fixed_point",
        "residual",
        "",
        "‖T(X) − X‖/‖X‖ of a layer, mean over layers",
        {"times": 1, "iterations": 0, "draws": 0},
    ),
    "effective_rank": Seen(
        "clusters", "effective_rank", "effective_rank_null", "directions that the last cloud spreads in", pick=_last
    ),
    "toward_next": Seen(
        "transport",
        "toward_next",
        "toward_next_null",
        "mean cosine of the last point of a token with the word of the next token",
        {"strides": (1,), "draws": 20},
        _last,
    ),
    "itself": Seen("head_types", "itself", "itself_null", "mean weight of a token on itself, mean over heads"),
    "sink": Seen("head_types", "sink", "sink_null", "mean weight on the first token, mean over heads"),
    "induction": Seen(
        "head_types",
        "induction",
        "induction_null",
        "weight on what followed the same token before, on random tokens twice over, the largest over heads",
        pick=_largest,
        text=False,
    ),
}
"""What is looked at, by name: a row here is all that a new quantity needs."""


@dataclass(frozen=True, eq=False)
class Looks:
    """What `train(look=…)` is given: at marked steps the model is looked at, and what was seen is kept in the folder of the run."""

    at: frozenset[int]
    out: Path
    ids: Int[Tensor, " n"]

    def __call__(self, step: int, model: nn.Module) -> None:
        if step in self.at:
            keep(self.out, step, look(model, self.ids))

    @staticmethod
    def of(at: Sequence[int], out: Path, task: Task, recipe: Recipe) -> "Looks":
        """Looks of the first held-out text."""
        if recipe.config.form == "encoder-decoder":
            raise RheoscopeError("a look is at one stack of layers, got an encoder-decoder; leave --look out")
        beyond = [step for step in at if step > recipe.steps]
        if beyond:
            raise RheoscopeError(
                f"this run has {recipe.steps:,} steps, got --look {beyond[0]}; type steps from 0 to {recipe.steps}"
            )
        x, _ = next(iter(task.held_out(recipe)))
        return Looks(frozenset(at), out, x[0, :TOKENS])


def marked(told: str) -> list[int]:
    """Steps as a person types them.

    >>> marked("0,100,300")
    [0, 100, 300]
    """
    try:
        steps = sorted({int(one) for one in told.split(",")})
    except ValueError as error:
        raise RheoscopeError(f"looks are at whole steps, got {told!r}; type --look 0,100,300,1000") from error
    if steps[0] < 0:
        raise RheoscopeError(f"looks are at steps from 0 on, got {steps[0]}; type --look 0,100,300,1000")
    return steps


def look(model: nn.Module, ids: Int[Tensor, " n"]) -> dict[str, Any]:
    """Every quantity of a model on a text: `values` and `nulls` by name, `heads` (layer, head), and why some are `left_out`."""
    values: dict[str, float] = {}
    nulls: dict[str, float] = {}
    heads: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with resting(model):
        opened = load(model)
        trace = opened.trace(ids.to(opened.view.embed.device))
        answer = cache(lambda name, text, told: _answer(opened, trace if text else None, name, dict(told)))
        for name, one in SEEN.items():
            try:
                found = answer(one.asks, one.text, tuple(one.settings.items()))
                values[name] = float(one.pick(found[one.of]))
                if one.null:
                    nulls[name] = float(one.pick(found[one.null]))
                if found[one.of].dims == ("layer", "head"):
                    heads[name] = found[one.of].values.astype(float).tolist()
            except (RheoscopeError, KeyError) as error:  # no M, no next token, norms after sums: the reason is kept
                left_out[name] = str(error)
    return {"tokens": len(ids), "values": values, "nulls": nulls, "heads": heads, "left_out": left_out}


def _answer(model: Any, trace: Any, name: str, settings: dict[str, Any]) -> "xarray.Dataset":
    """One analysis, given what it is about."""
    asked = analysis(name)
    about = {"view": model.view, "trace": trace, "model": model}
    return asked.ask(*(about[subject] for subject in asked.subjects if about[subject] is not None), **settings)


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """Inside, a model that is being trained does not learn and draws nothing that training would miss."""
    was = model.training
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            model.train(was)


def keep(out: Path, step: int, seen: dict[str, Any]) -> None:
    """One file, renamed into place when it is whole; NaN is null."""
    (out / LOOKS).mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite({"step": step} | seen), indent=1)
    write_file(look_file(out, step), lambda file: file.write_text(text + "\n"))


def _finite(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _finite(one) for name, one in told.items()}
    if isinstance(told, list):
        return [_finite(one) for one in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def learned(run: Path) -> "xarray.Dataset":
    """How geometry formed while a model learned: every quantity beside its null, at the steps that were looked at.

    **Answers** "when did heads become symmetric, follow similarity, find the first token, copy what came before?"

    **Gives** (training_step): each quantity and its null; (training_step, layer, head): `…_by_head` where there is one a head.
    `attrs["missing"]` says what could not be asked of this model, and why.

    **Laws** the look at step 0 is that of the untrained model, the control of all others; a run that was killed and resumed has the same.

    **Siblings** `rheoscope train --look` makes them; `rs.operators`, `rs.agreement`, … ask the same of any model.
    """
    files = sorted((run / LOOKS).glob("step-*.json"))
    if not files:
        raise RheoscopeError(f"{run} holds no looks; type rheoscope train … --look 0,100,300,1000 --out {run}")
    looks = sorted((json.loads(file.read_text()) for file in files), key=lambda one: one["step"])
    values: dict[str, Any] = {}
    for name in SEEN:
        if any(name in one["values"] for one in looks):
            values[name] = _row(looks, "values", name)
        if any(name in one["nulls"] for one in looks):
            values[f"{name}_null"] = _row(looks, "nulls", name)
        if all(name in one["heads"] for one in looks):
            values[f"{name}_by_head"] = _numbers([one["heads"][name] for one in looks])
    left_out = {name: why for one in looks for name, why in one["left_out"].items() if name not in values}
    attributes = {"run": str(run), "tokens": looks[0]["tokens"]} | (
        {"missing": json.dumps(left_out)} if left_out else {}
    )
    return LEARNED.answer(values, {"training_step": [one["step"] for one in looks]}, attributes)


def _row(looks: list[dict[str, Any]], part: str, name: str) -> Any:
    return _numbers([one[part].get(name) for one in looks])


def _numbers(told: Any) -> Any:
    import numpy as np

    return np.array(told, dtype=float)  # null is NaN


def _fields() -> dict[str, Field]:
    found: dict[str, Field] = {}
    for name, one in SEEN.items():
        found[name] = Field(("training_step",), one.told, null=f"{name}_null" if one.null else "")
        found[f"{name}_null"] = Field(
            ("training_step",), f"what chance gives for {name} in the same model, or equal weights"
        )
        found[f"{name}_by_head"] = Field(("training_step", "layer", "head"), f"{name} of every head")
    return found


LEARNED = Analysis("learned", "How does geometry form while a model learns?", learned, "view", _fields())
