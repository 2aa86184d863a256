"""What a run keeps so that it can go on as if nothing had happened: weights, optimiser, step. No pickle.

    out/model.safetensors, config.json, tokenizer.json    the best model so far: `rheoscope.load(out)` opens it
    out/last/, out/before/                                the last two checkpoints: a model, its optimiser, its step
    out/recipe.json, log.jsonl, figures.json              what is trained, how it went, how good the best model is

A checkpoint is written beside the others and renamed when it is whole; the one before it stays, for the case that a
disk or a person damages the last. Batches and dropout are functions of the step, so nothing else has to be remembered.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.files import write_file
from rheoscope.models import checkpoint
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.shapes import RheoscopeError

LAST, BEFORE, PARTIAL = "last", "before", ".partial"
OPTIMISER, PROGRESS, RECIPE, FIGURES, LOG = (
    "optimiser.safetensors", "progress.json", "recipe.json", "figures.json", "log.jsonl"
)  # fmt: skip
LOOKS = "looks"
"""The folder of what was seen of a model at marked steps."""
EXTENDED = "extended"
"""Where `recipe.json` says that a run was given another number of steps, and when."""
Say = Callable[[str], object]


def look_file(out: Path, step: int) -> Path:
    """Where that of one step is kept.

    >>> look_file(Path("run"), 100).as_posix()
    'run/looks/step-000100.json'
    """
    return out / LOOKS / f"step-{step:06}.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: steps done, and the best loss on held-out data."""

    step: int = 0
    best: float = float("inf")


def keep(
    out: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], progress: Progress, tokenizer: Path | None
) -> None:
    """Write a checkpoint whole, then make it the last one; what was the last one is now the one before."""
    partial, last, before = (out / name for name in (PARTIAL, LAST, BEFORE))
    with writing(out):
        shutil.rmtree(partial, ignore_errors=True)
        checkpoint.store(model, partial, tokenizer)
        checkpoint.save_tensors(optimiser_tensors(optimisers), partial / OPTIMISER)
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        told = {"step": progress.step, "best": progress.best, "bytes": sizes}
        (partial / PROGRESS).write_text(json.dumps(told) + "\n")
        if last.exists() and damage(last) is None:
            shutil.rmtree(before, ignore_errors=True)
            last.rename(before)
        shutil.rmtree(last, ignore_errors=True)  # a damaged one does not displace the good one before it
        partial.rename(last)


def keep_best(out: Path, model: nn.Module, tokenizer: Path | None, step: int, figures: dict[str, float]) -> None:
    """The best model so far, where `rheoscope.load(out)` finds it, and its figures."""
    with writing(out):
        checkpoint.store(model, out, tokenizer)
        write_file(out / FIGURES, lambda file: file.write_text(json.dumps({"step": step} | figures) + "\n"))


def best_figures(out: Path) -> dict[str, float | int]:
    """The held-out figures of the best model so far, and the `step` it was found at."""
    try:
        told: dict[str, float | int] = json.loads((out / FIGURES).read_text())
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{out / FIGURES} cannot be read ({error}); train again with another --out") from error
    return told


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Around whatever a run writes: a full disk is told in one line, nothing half-written stays, what was kept is kept."""
    try:
        yield
    except (OSError, RheoscopeError) as error:
        shutil.rmtree(out / PARTIAL, ignore_errors=True)
        cause = error if isinstance(error, OSError) else error.__cause__  # `written` tells of a disk in its own words
        if not isinstance(cause, OSError):
            raise
        raise RheoscopeError(
            f"cannot write to {out} ({cause.strerror or cause}); {kept(out)}: make room and type the same command to go on"
        ) from error


def kept(out: Path) -> str:
    """What a run has kept, in words; `kept_step` as a number.

    >>> kept(Path("nowhere"))
    'no checkpoint was kept yet'
    """
    step = kept_step(out)
    return f"the checkpoint of step {step:,} is kept" if step else "no checkpoint was kept yet"


def kept_step(out: Path) -> int:
    """The step that a run would go on from, 0 where nothing was kept."""
    whole = [folder for name in (LAST, BEFORE) if damage(folder := out / name) is None]
    return read_progress(whole[0]).step if whole else 0


def found(out: Path, say: Say = lambda line: None) -> Path | None:
    """The last whole checkpoint of a run, if there is one.

    A run may be killed between two renames, a file may be cut short: then it is the one before, and `say` is told.
    """
    there = [folder for name in (LAST, BEFORE) if (folder := out / name).is_dir()]
    wrong = {folder: damage(folder) for folder in there}
    for folder in there:
        if wrong[folder] is None:
            if folder != there[0]:
                say(f"{there[0]} is damaged ({wrong[there[0]]}): going on from the checkpoint before it")
            return folder
    if there:
        raise RheoscopeError(
            f"{there[0]} is damaged ({wrong[there[0]]}) and there is no whole checkpoint before it; "
            f"type another --out, or remove {there[0]} to start again"
        )
    return None


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None where it is whole."""
    try:
        told = json.loads((folder / PROGRESS).read_text())
        sizes, _, _ = dict(told["bytes"]), told["step"], told["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{PROGRESS} is missing or broken"
    for name, size in sizes.items():
        there = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if there != size:
            return f"{name} has {there:,} bytes of {size:,}"
    return None


def read_progress(folder: Path) -> Progress:
    """Where the run stood when this checkpoint was kept."""
    told = json.loads((folder / PROGRESS).read_text())
    return Progress(told["step"], told["best"])


def restore(folder: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], config: Config) -> Progress:
    """Weights, optimisers and progress as they were kept."""
    if checkpoint.config_of(folder) != config:
        raise RheoscopeError(f"{folder} holds a model of another shape; type the recipe of that run, or another --out")
    checkpoint.fill(model, folder)
    put_back(optimisers, _read_optimisers(folder / OPTIMISER))
    return read_progress(folder)


def same_run(out: Path, folder: Path | None, recipe: dict[str, Any], tokenizer: Path | None) -> int:
    """Store what a new run trains, or refuse to go on with another recipe or another vocabulary; gives the steps it was planned for.

    Other steps than planned extend a run: `recipe.json` then says so, and at which step.
    """
    file, now = out / RECIPE, json.loads(json.dumps(recipe))
    if folder is None:
        with writing(out):
            write_file(file, lambda to: to.write_text(json.dumps(now, indent=1) + "\n"))
        return int(now["steps"])
    held = _kept_recipe(file) if file.exists() else now
    _same_vocabulary(folder, held["config"], now["config"], tokenizer)
    same_recipe(out, held, now)
    _extend(out, held, int(now["steps"]), read_progress(folder).step)
    return int(held["steps"])


def same_recipe(out: Path, held: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with another recipe than the one that is held, by the first setting that differs.

    A setting that a run did not know yet is at its default in it.
    """
    now = json.loads(json.dumps(now))
    for kind, before, after in ((Recipe, held, now), (Config, held["config"], now["config"])):
        usual = {one.name: {} if one.default is MISSING else one.default for one in fields(kind)}
        for name in sorted((set(before) | set(after)) - {"config", "steps", EXTENDED}):
            was, will = before.get(name, usual.get(name)), after.get(name)
            if was != will:
                raise RheoscopeError(
                    f"{out} holds a run with {name}={was}, now {name}={will}; type the same recipe, or another --out"
                )


def _extend(out: Path, held: dict[str, Any], steps: int, at: int) -> None:
    """Write down that a run that stands at a step now goes to another number of steps; the past cannot be undone."""
    if steps == held["steps"]:
        return
    if steps <= at:
        raise RheoscopeError(
            f"{out} stands at step {at:,} of {held['steps']:,}, got --steps {steps}; type more than {at}"
        )
    now = held | {"steps": steps, EXTENDED: [*held.get(EXTENDED, []), {"at": at, "from": held["steps"], "to": steps}]}
    with writing(out):
        write_file(out / RECIPE, lambda to: to.write_text(json.dumps(now, indent=1) + "\n"))


def _kept_recipe(file: Path) -> dict[str, Any]:
    try:
        told = json.loads(file.read_text())
        told["config"]["vocabulary"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise RheoscopeError(f"{file} is no recipe of a run ({said}); type another --out, or remove {file}") from error
    kept: dict[str, Any] = told
    return kept


def _same_vocabulary(folder: Path, held: dict[str, Any], now: dict[str, Any], tokenizer: Path | None) -> None:
    if held["vocabulary"] != now["vocabulary"]:
        raise RheoscopeError(
            f"{folder} was trained with {held['vocabulary']} tokens, the data has {now['vocabulary']}; "
            "type the data of that run, or another --out"
        )
    own = folder / checkpoint.TOKENIZER
    if tokenizer is not None and own.is_file() and own.read_bytes() != Path(tokenizer).read_bytes():
        raise RheoscopeError(
            f"{folder} was trained with other tokens than those of {tokenizer}; type the data of that run, or another --out"
        )


def tidy(out: Path) -> None:
    """Remove what a run that was killed had begun to write."""
    shutil.rmtree(out / PARTIAL, ignore_errors=True)
    for name in (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, RECIPE, FIGURES, LOG):
        for file in out.glob(f".{Path(name).stem}-*{Path(name).suffix}"):
            file.unlink(missing_ok=True)


def optimiser_tensors(optimisers: list[torch.optim.Optimizer], before: str = "") -> dict[str, Tensor]:
    """What optimisers remember, on the CPU, by number, parameter and name."""
    held: dict[str, Tensor] = {}
    for number, one in enumerate(optimisers):
        for parameter, state in one.state_dict()["state"].items():
            for name, value in state.items():
                held[f"{before}{number}.{parameter}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return held


def put_back(optimisers: list[torch.optim.Optimizer], held: dict[str, Tensor], before: str = "") -> None:
    """Let optimisers remember what `optimiser_tensors` gave; a parameter of which nothing was remembered is new to them."""
    for number, one in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in held.items():
            if key.startswith(f"{before}{number}."):
                parameter, name = key.removeprefix(f"{before}{number}.").split(".", 1)
                state.setdefault(int(parameter), {})[name] = value
        one.load_state_dict({"state": state, "param_groups": one.state_dict()["param_groups"]})


def _read_optimisers(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    from rheoscope.running.weight_files import check_safetensors

    check_safetensors(file)
    held: dict[str, Tensor] = load_file(file)
    return held
