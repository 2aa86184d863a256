"""Checkpoints of a training run: weights, optimiser state and step, so that a run resumes exactly. No pickle.

    out/model.safetensors, config.json, tokenizer.json    the best model so far: `rheoscope.load(out)` opens it
    out/last/, out/before/                                the last two checkpoints: model, optimiser, step
    out/recipe.json, log.jsonl, figures.json              the recipe, the log, and the metrics of the best model

A checkpoint is written to a temporary directory and renamed when it is complete. The previous one is kept in case the last one
is damaged. Batches and dropout are functions of the step, so no other state is needed.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.files import write_file
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.models import checkpoint
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.shapes import RheoscopeError

LAST, PREVIOUS, PARTIAL = "last", "before", ".partial"
OPTIMISER, PROGRESS, RECIPE, FIGURES, LOG = (
    "optimiser.safetensors", "progress.json", "recipe.json", "figures.json", "log.jsonl"
)  # fmt: skip
OBSERVATIONS = "looks"
"""The folder of the observations of a model at chosen steps."""
EXTENDED = "extended"
"""The field of `recipe.json` that records extensions of a run."""
SAFETENSORS_TEMPORARY = re.compile(r"\.tmp[0-9A-Za-z]{6}")
"""The names under which safetensors writes a file before it renames it."""
LogMessage = Callable[[str], object]
ANOTHER_OUT = use(out="another_run")
"""The advice to choose another output directory."""


def observation_file(out: Path, step: int) -> Path:
    """The file of the observation at a step.

    >>> observation_file(Path("run"), 100).as_posix()
    'run/looks/step-000100.json'
    """
    return out / OBSERVATIONS / f"step-{step:06}.json"


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: steps done, and the best loss on held-out data."""

    step: int = 0
    best: float = float("inf")


def save_checkpoint(
    out: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], progress: RunProgress, tokenizer: Path | None
) -> None:
    """Write a complete checkpoint and make it the last one. The former last one becomes the previous one."""
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
        shutil.rmtree(last, ignore_errors=True)  # a damaged checkpoint does not replace the intact previous one
        partial.rename(last)


def save_best(out: Path, model: nn.Module, tokenizer: Path | None, step: int, metrics: dict[str, float]) -> None:
    """Write the best model so far, which `rheoscope.load(out)` opens, and its metrics."""
    with explain_write_errors(out):
        checkpoint.write_model(model, out, tokenizer)
        write_file(out / FIGURES, lambda file: file.write_text(json.dumps({"step": step} | metrics) + "\n"))


def read_best_metrics(out: Path) -> dict[str, float | int]:
    """The held-out metrics of the best model so far, and its `step`."""
    try:
        metrics: dict[str, float | int] = json.loads((out / FIGURES).read_text())
    except (OSError, ValueError) as error:
        raise RheoscopeError(
            Message("cannot read {file} ({reason})", file=str(out / FIGURES), reason=str(error)), ANOTHER_OUT
        ) from error
    return metrics


@contextmanager
def explain_write_errors(out: Path) -> Iterator[None]:
    """Explain a failed write in one line, and remove partial files. Existing checkpoints stay."""
    try:
        yield
    except (OSError, RheoscopeError) as error:
        shutil.rmtree(out / PARTIAL, ignore_errors=True)
        # `write_file` wraps the OSError of a full disk
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise RheoscopeError(
            Message(
                "cannot write to {directory} ({reason}); {status}; free some space and run the same command to resume",
                directory=str(out),
                reason=cause.strerror or str(cause),
                status=checkpoint_status(out),
            )
        ) from error


def checkpoint_status(out: Path) -> Message:
    """Which checkpoint a run has, as a phrase. `last_checkpoint_step` returns it as a number.

    >>> checkpoint_status(Path("nowhere"))
    'there is no checkpoint yet'
    """
    step = last_checkpoint_step(out)
    if not step:
        return Message("there is no checkpoint yet")
    return Message("the checkpoint of step {step:,} is kept", step=step)


def last_checkpoint_step(out: Path) -> int:
    """The step from which a run would resume, or 0 without a checkpoint."""
    intact = [folder for name in (LAST, PREVIOUS) if checkpoint_damage(folder := out / name) is None]
    return read_progress(intact[0]).step if intact else 0


def find_checkpoint(out: Path, log: LogMessage = lambda line: None) -> Path | None:
    """The last intact checkpoint of a run, or None.

    A run may be killed between two renames, or a file may be truncated. Then it is the previous checkpoint, and `log` is called.
    """
    folders = [folder for name in (LAST, PREVIOUS) if (folder := out / name).is_dir()]
    damages = {folder: checkpoint_damage(folder) for folder in folders}
    for folder in folders:
        if damages[folder] is None:
            if folder != folders[0]:
                log(
                    Message(
                        "{checkpoint} is damaged ({damage}); resuming from the previous checkpoint",
                        checkpoint=str(folders[0]),
                        damage=damages[folders[0]],
                    )
                )
            return folder
    if folders:
        raise RheoscopeError(
            Message(
                "{checkpoint} is damaged ({damage}) and there is no intact checkpoint before it; "
                "remove it to start again, or choose another directory",
                checkpoint=str(folders[0]),
                damage=damages[folders[0]],
            ),
            ANOTHER_OUT,
        )
    return None


def checkpoint_damage(folder: Path) -> Message | None:
    """The defect of a checkpoint, or None if it is intact."""
    try:
        record = json.loads((folder / PROGRESS).read_text())
        sizes, _, _ = dict(record["bytes"]), record["step"], record["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return Message("{file} is missing or damaged", file=PROGRESS)
    for name, size in sizes.items():
        actual_size = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if actual_size != size:
            return Message("{file} has {actual:,} of {expected:,} bytes", file=name, actual=actual_size, expected=size)
    return None


def read_progress(folder: Path) -> RunProgress:
    """The progress of the run at this checkpoint."""
    record = json.loads((folder / PROGRESS).read_text())
    return RunProgress(record["step"], record["best"])


def restore(folder: Path, model: nn.Module, optimisers: list[torch.optim.Optimizer], config: Config) -> RunProgress:
    """Load weights, optimiser state and progress from a checkpoint."""
    if checkpoint.read_config(folder) != config:
        raise RheoscopeError(
            Message(
                "{checkpoint} holds a model with another config; use the recipe of that run or another directory",
                checkpoint=str(folder),
            ),
            ANOTHER_OUT,
        )
    checkpoint.load_weights(model, folder)
    restore_optimisers(optimisers, _read_optimisers(folder / OPTIMISER))
    return read_progress(folder)


def store_or_check_recipe(out: Path, folder: Path | None, recipe: dict[str, Any], tokenizer: Path | None) -> int:
    """Store the recipe of a new run, or raise if it differs from the stored one. Returns the planned steps.

    Another number of steps extends a run. `recipe.json` records the extension and the step at which it happened.
    """
    file, new_recipe = out / RECIPE, json.loads(json.dumps(recipe))
    if folder is None:
        with explain_write_errors(out):
            write_file(file, lambda path: path.write_text(json.dumps(new_recipe, indent=1) + "\n"))
        return int(new_recipe["steps"])
    stored_recipe = read_recipe(file) if file.exists() else new_recipe
    _check_same_vocabulary(folder, stored_recipe["config"], new_recipe["config"], tokenizer)
    check_same_recipe(out, stored_recipe, new_recipe)
    _extend(out, stored_recipe, int(new_recipe["steps"]), read_progress(folder).step)
    return int(stored_recipe["steps"])


def check_same_recipe(out: Path, stored_recipe: dict[str, Any], new_recipe: dict[str, Any]) -> None:
    """Raise if two recipes differ, naming the first setting that differs.

    A setting that did not exist when a run was stored has its default value.
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
                    Message(
                        "{directory} holds a run with {name}={stored}, got {name}={new}; use the same recipe or another directory",
                        directory=str(out),
                        name=name,
                        stored=str(stored_value),
                        new=str(new_value),
                    ),
                    ANOTHER_OUT,
                )


def _extend(out: Path, stored_recipe: dict[str, Any], steps: int, step: int) -> None:
    """Record that a run at a step now has another number of steps. Steps already taken cannot be undone."""
    if steps == stored_recipe["steps"]:
        return
    if steps <= step:
        raise RheoscopeError(
            Message(
                "{directory} is at step {step:,} of {planned:,}, got steps={steps}",
                directory=str(out),
                step=step,
                planned=stored_recipe["steps"],
                steps=steps,
            ),
            use(steps=step + 1),
        )
    extended_recipe = stored_recipe | {
        "steps": steps,
        EXTENDED: [*stored_recipe.get(EXTENDED, []), {"at": step, "from": stored_recipe["steps"], "to": steps}],
    }
    with explain_write_errors(out):
        write_file(out / RECIPE, lambda path: path.write_text(json.dumps(extended_recipe, indent=1) + "\n"))


def read_recipe(file: Path) -> dict[str, Any]:
    """The recipe of a run, from its file."""
    try:
        content = json.loads(file.read_text())
        content["config"]["vocabulary"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RheoscopeError(
            Message(
                "{file} is not the recipe of a run ({reason}); remove it or choose another directory",
                file=str(file),
                reason=reason,
            ),
            ANOTHER_OUT,
        ) from error
    recipe: dict[str, Any] = content
    return recipe


def _check_same_vocabulary(
    folder: Path, stored_config: dict[str, Any], new_config: dict[str, Any], tokenizer: Path | None
) -> None:
    if stored_config["vocabulary"] != new_config["vocabulary"]:
        raise RheoscopeError(
            Message(
                "{checkpoint} was trained with {stored} tokens, but the data has {new}; use the data of that run or another directory",
                checkpoint=str(folder),
                stored=stored_config["vocabulary"],
                new=new_config["vocabulary"],
            ),
            ANOTHER_OUT,
        )
    stored_tokenizer = folder / checkpoint.TOKENIZER
    if (
        tokenizer is not None
        and stored_tokenizer.is_file()
        and stored_tokenizer.read_bytes() != Path(tokenizer).read_bytes()
    ):
        raise RheoscopeError(
            Message(
                "{checkpoint} was trained with another tokenizer than {tokenizer}; use the data of that run or another directory",
                checkpoint=str(folder),
                tokenizer=str(tokenizer),
            ),
            ANOTHER_OUT,
        )


def remove_partial_files(out: Path) -> None:
    """Remove the temporary files of a run that was killed, those of safetensors included."""
    shutil.rmtree(out / PARTIAL, ignore_errors=True)
    for name in (checkpoint.WEIGHTS, checkpoint.CONFIG, checkpoint.TOKENIZER, RECIPE, FIGURES, LOG):
        for file in out.glob(f".{Path(name).stem}-*{Path(name).suffix}"):
            file.unlink(missing_ok=True)
    for file in out.glob(".tmp*"):
        if SAFETENSORS_TEMPORARY.fullmatch(file.name) and file.is_file():
            file.unlink(missing_ok=True)


def optimiser_tensors(optimisers: list[torch.optim.Optimizer], prefix: str = "") -> dict[str, Tensor]:
    """The state of optimisers on the CPU, keyed by optimiser index, parameter and name."""
    tensors: dict[str, Tensor] = {}
    for index, optimiser in enumerate(optimisers):
        for parameter, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                tensors[f"{prefix}{index}.{parameter}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    return tensors


def restore_optimisers(optimisers: list[torch.optim.Optimizer], tensors: dict[str, Tensor], prefix: str = "") -> None:
    """Restore the state that `optimiser_tensors` returned. Parameters without stored state start fresh."""
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
