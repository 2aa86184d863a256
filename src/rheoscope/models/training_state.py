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

LAST, PREVIOUS, PARTIAL = "last", "before", ".partial"
OPTIMISER, PROGRESS, RECIPE, FIGURES, LOG = (
    "optimiser.safetensors", "progress.json", "recipe.json", "figures.json", "log.jsonl"
)  # fmt: skip
OBSERVATIONS = "looks"
"""The folder of what was seen of a model at marked steps."""
EXTENDED = "extended"
"""Where `recipe.json` says that a run was given another number of steps, and when."""
LogMessage = Callable[[str], object]


def observation_file(out: Path, step: int) -> Path:
    """Where that of one step is kept.

    >>> observation_file(Path("run"), 100).as_posix()
    'run/looks/step-000100.json'
    """
    return out / OBSERVATIONS / f"step-{step:06}.json"


@dataclass(frozen=True)
class RunProgress:
    """Where a run stands: steps done, and the best loss on held-out data."""

    step: int = 0
    best: float = float("inf")


def save_checkpoint(
    out: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], progress: RunProgress, tokenizer: Path | None
) -> None:
    """Write a checkpoint whole, then make it the last one; what was the last one is now the one before."""
    partial, last, previous = (out / name for name in (PARTIAL, LAST, PREVIOUS))
    with explain_write_errors(out):
        shutil.rmtree(partial, ignore_errors=True)
        checkpoint.write_model(model, partial, tokenizer)
        checkpoint.save_tensors(optimiser_tensors(optimisers), partial / OPTIMISER)
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        record = {"step": progress.step, "best": progress.best, "bytes": sizes}
        (partial / PROGRESS).write_text(json.dumps(record) + "\n")
        if last.exists() and checkpoint_damage(last) is None:
            shutil.rmtree(previous, ignore_errors=True)
            last.rename(previous)
        shutil.rmtree(last, ignore_errors=True)  # a damaged one does not displace the good one before it
        partial.rename(last)


def save_best(out: Path, model: nn.Module, tokenizer: Path | None, step: int, metrics: dict[str, float]) -> None:
    """The best model so far, where `rheoscope.load(out)` finds it, and its figures."""
    with explain_write_errors(out):
        checkpoint.write_model(model, out, tokenizer)
        write_file(out / FIGURES, lambda file: file.write_text(json.dumps({"step": step} | metrics) + "\n"))


def read_best_metrics(out: Path) -> dict[str, float | int]:
    """The held-out figures of the best model so far, and the `step` it was found at."""
    try:
        metrics: dict[str, float | int] = json.loads((out / FIGURES).read_text())
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{out / FIGURES} cannot be read ({error}); train again with another --out") from error
    return metrics


@contextmanager
def explain_write_errors(out: Path) -> Iterator[None]:
    """Around whatever a run writes: a full disk is told in one line, nothing half-written stays, what was kept is kept."""
    try:
        yield
    except (OSError, RheoscopeError) as error:
        shutil.rmtree(out / PARTIAL, ignore_errors=True)
        cause = error if isinstance(error, OSError) else error.__cause__  # `written` tells of a disk in its own words
        if not isinstance(cause, OSError):
            raise
        raise RheoscopeError(
            f"cannot write to {out} ({cause.strerror or cause}); {checkpoint_status(out)}: make room and type the same command to go on"
        ) from error


def checkpoint_status(out: Path) -> str:
    """What a run has kept, in words; `kept_step` as a number.

    >>> checkpoint_status(Path("nowhere"))
    'no checkpoint was kept yet'
    """
    step = last_checkpoint_step(out)
    return f"the checkpoint of step {step:,} is kept" if step else "no checkpoint was kept yet"


def last_checkpoint_step(out: Path) -> int:
    """The step that a run would go on from, 0 where nothing was kept."""
    intact = [folder for name in (LAST, PREVIOUS) if checkpoint_damage(folder := out / name) is None]
    return read_progress(intact[0]).step if intact else 0


def find_checkpoint(out: Path, log: LogMessage = lambda line: None) -> Path | None:
    """The last whole checkpoint of a run, if there is one.

    A run may be killed between two renames, a file may be cut short: then it is the one before, and `say` is told.
    """
    folders = [folder for name in (LAST, PREVIOUS) if (folder := out / name).is_dir()]
    damages = {folder: checkpoint_damage(folder) for folder in folders}
    for folder in folders:
        if damages[folder] is None:
            if folder != folders[0]:
                log(f"{folders[0]} is damaged ({damages[folders[0]]}): going on from the checkpoint before it")
            return folder
    if folders:
        raise RheoscopeError(
            f"{folders[0]} is damaged ({damages[folders[0]]}) and there is no whole checkpoint before it; "
            f"type another --out, or remove {folders[0]} to start again"
        )
    return None


def checkpoint_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None where it is whole."""
    try:
        record = json.loads((folder / PROGRESS).read_text())
        sizes, _, _ = dict(record["bytes"]), record["step"], record["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{PROGRESS} is missing or broken"
    for name, size in sizes.items():
        actual_size = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if actual_size != size:
            return f"{name} has {actual_size:,} bytes of {size:,}"
    return None


def read_progress(folder: Path) -> RunProgress:
    """Where the run stood when this checkpoint was kept."""
    record = json.loads((folder / PROGRESS).read_text())
    return RunProgress(record["step"], record["best"])


def restore(folder: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], config: Config) -> RunProgress:
    """Weights, optimisers and progress as they were kept."""
    if checkpoint.read_config(folder) != config:
        raise RheoscopeError(f"{folder} holds a model of another shape; type the recipe of that run, or another --out")
    checkpoint.load_weights(model, folder)
    restore_optimisers(optimisers, _read_optimisers(folder / OPTIMISER))
    return read_progress(folder)


def store_or_check_recipe(out: Path, folder: Path | None, recipe: dict[str, Any], tokenizer: Path | None) -> int:
    """Store what a new run trains, or refuse to go on with another recipe or another vocabulary; gives the steps it was planned for.

    Other steps than planned extend a run: `recipe.json` then says so, and at which step.
    """
    file, new_recipe = out / RECIPE, json.loads(json.dumps(recipe))
    if folder is None:
        with explain_write_errors(out):
            write_file(file, lambda path: path.write_text(json.dumps(new_recipe, indent=1) + "\n"))
        return int(new_recipe["steps"])
    stored_recipe = _read_recipe(file) if file.exists() else new_recipe
    _check_same_vocabulary(folder, stored_recipe["config"], new_recipe["config"], tokenizer)
    check_same_recipe(out, stored_recipe, new_recipe)
    _extend(out, stored_recipe, int(new_recipe["steps"]), read_progress(folder).step)
    return int(stored_recipe["steps"])


def check_same_recipe(out: Path, stored_recipe: dict[str, Any], new_recipe: dict[str, Any]) -> None:
    """Refuse to go on with another recipe than the one that is held, by the first setting that differs.

    A setting that a run did not know yet is at its default in it.
    """
    new_recipe = json.loads(json.dumps(new_recipe))
    for dataclass_type, stored, new in (
        (Recipe, stored_recipe, new_recipe),
        (Config, stored_recipe["config"], new_recipe["config"]),
    ):
        defaults = {
            config_field.name: {} if config_field.default is MISSING else config_field.default
            for config_field in fields(dataclass_type)
        }
        for name in sorted((set(stored) | set(new)) - {"config", "steps", EXTENDED}):
            stored_value, new_value = stored.get(name, defaults.get(name)), new.get(name)
            if stored_value != new_value:
                raise RheoscopeError(
                    f"{out} holds a run with {name}={stored_value}, now {name}={new_value}; type the same recipe, or another --out"
                )


def _extend(out: Path, stored_recipe: dict[str, Any], steps: int, step: int) -> None:
    """Write down that a run that stands at a step now goes to another number of steps; the past cannot be undone."""
    if steps == stored_recipe["steps"]:
        return
    if steps <= step:
        raise RheoscopeError(
            f"{out} stands at step {step:,} of {stored_recipe['steps']:,}, got --steps {steps}; type more than {step}"
        )
    extended_recipe = stored_recipe | {
        "steps": steps,
        EXTENDED: [*stored_recipe.get(EXTENDED, []), {"at": step, "from": stored_recipe["steps"], "to": steps}],
    }
    with explain_write_errors(out):
        write_file(out / RECIPE, lambda path: path.write_text(json.dumps(extended_recipe, indent=1) + "\n"))


def _read_recipe(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
        content["config"]["vocabulary"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RheoscopeError(
            f"{file} is no recipe of a run ({reason}); type another --out, or remove {file}"
        ) from error
    recipe: dict[str, Any] = content
    return recipe


def _check_same_vocabulary(
    folder: Path, stored_config: dict[str, Any], new_config: dict[str, Any], tokenizer: Path | None
) -> None:
    if stored_config["vocabulary"] != new_config["vocabulary"]:
        raise RheoscopeError(
            f"{folder} was trained with {stored_config['vocabulary']} tokens, the data has {new_config['vocabulary']}; "
            "type the data of that run, or another --out"
        )
    stored_tokenizer = folder / checkpoint.TOKENIZER
    if (
        tokenizer is not None
        and stored_tokenizer.is_file()
        and stored_tokenizer.read_bytes() != Path(tokenizer).read_bytes()
    ):
        raise RheoscopeError(
            f"{folder} was trained with other tokens than those of {tokenizer}; type the data of that run, or another --out"
        )


def remove_partial_files(out: Path) -> None:
    """Remove what a run that was killed had begun to write."""
    shutil.rmtree(out / PARTIAL, ignore_errors=True)
    for name in (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, RECIPE, FIGURES, LOG):
        for file in out.glob(f".{Path(name).stem}-*{Path(name).suffix}"):
            file.unlink(missing_ok=True)


def optimiser_tensors(optimisers: list[torch.optim.Optimizer], prefix: str = "") -> dict[str, Tensor]:
    """What optimisers remember, on the CPU, by number, parameter and name."""
    tensors: dict[str, Tensor] = {}
    for index, optimiser in enumerate(optimisers):
        for parameter, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"{prefix}{index}.{parameter}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def restore_optimisers(optimisers: list[torch.optim.Optimizer], tensors: dict[str, Tensor], prefix: str = "") -> None:
    """Let optimisers remember what `optimiser_tensors` gave; a parameter of which nothing was remembered is new to them."""
    for index, optimiser in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(f"{prefix}{index}."):
                parameter, name = key.removeprefix(f"{prefix}{index}.").split(".", 1)
                state.setdefault(int(parameter), {})[name] = value
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _read_optimisers(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    from rheoscope.running.weight_files import check_safetensors

    check_safetensors(file)
    tensors: dict[str, Tensor] = load_file(file)
    return tensors
