"""The files of a race. A race can be killed at any moment and continues to the same numbers, byte for byte.

    out/race.json                         the settings: recipe, entrants, seeds, rates
    out/data/                             the tokens, unless they were prepared elsewhere
    out/screen/                           a shorter race in which the rates were chosen, if there was one
    out/curves/                           loss against rate at full length, if the rates were chosen from it
    out/.lock                             held by the process that works on the folder
    out/packs/NAME@RATE/log.jsonl         one line per seed and evaluation
                        state-STEP.safetensors    the current weights and, before the last step, optimiser states
                        looks/            observations of the first seed at chosen steps
                        times.jsonl       durations; they are never part of a result

A pack is all seeds of one entrant at one rate. Its state is written first, under a temporary name. Then its log is
written, which determines the valid state. The previous state is removed last.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rheoscope.files import directory_lock, foreign_files, signature, write_file, write_report
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import save_tensors
from rheoscope.models.config import Config
from rheoscope.models.recipes import Recipe
from rheoscope.models.training_state import OBSERVATIONS, observation_file
from rheoscope.shapes import RheoscopeError

RACE_FILE, PACKS_FOLDER, DATA_FOLDER, SCREEN_FOLDER, CURVES_FOLDER, LOG_FILE, TIMES_FILE = (
    "race.json",
    "packs",
    "data",
    "screen",
    "curves",
    "log.jsonl",
    "times.jsonl",
)
RATE_FOLDERS = (SCREEN_FOLDER, CURVES_FOLDER)
"""The folders of races that chose the rates of this race."""
JsonObject = dict[str, Any]


def pack_folder(out: Path, entrant: str, rate: float) -> Path:
    """The folder of an entrant's pack at a rate.

    >>> pack_folder(Path("run"), "metric:flops", 0.001).name
    'metric-by-flops@0.001'
    """
    return out / PACKS_FOLDER / f"{entrant.replace(':', '-by-')}@{rate!r}"


def entrant_rates(entrant: str, rates: Sequence[float], chosen_rates: Mapping[str, Sequence[float]]) -> list[float]:
    """The rates of an entrant: those chosen for it before, or the whole grid.

    >>> entrant_rates("tied", [1e-3, 3e-3], {}), entrant_rates("tied", [1e-3, 3e-3], {"untied": [1e-3], "tied": [3e-3]})
    ([0.001, 0.003], [0.003])
    """
    return list(chosen_rates.get(entrant, rates))


def judged_rates(settings: JsonObject) -> dict[str, float]:
    """The rate at which each entrant is judged: the first that earlier seeds chose for it. Empty if no earlier seeds ran.

    The curves of a race also have rates of their own for some entrants, but their seeds start at 0.

    >>> judged_rates({"first_seed": 4, "chosen": {"tied": [4e-3, 2e-3]}}), judged_rates({"first_seed": 0, "chosen": {"tied": [4e-3]}})
    ({'tied': 0.004}, {})
    """
    return {name: rates[0] for name, rates in settings["chosen"].items()} if settings["first_seed"] else {}


def list_packs(settings: JsonObject) -> list[tuple[str, float]]:
    """All packs of a race, grouped by entrant."""
    return [
        (entrant, rate)
        for entrant in settings["mechanisms"]
        for rate in entrant_rates(entrant, settings["rates"], settings["chosen"])
    ]


def read_log(folder: Path) -> list[JsonObject]:
    """The log entries of a pack, in order."""
    file = folder / LOG_FILE
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def last_step(lines: list[JsonObject]) -> int | None:
    """The step that a pack has reached; None if it has not started."""
    return int(lines[-1]["step"]) if lines else None


def save_state(folder: Path, step: int, tensors: dict[str, Tensor], lines: list[JsonObject]) -> None:
    """Write the state of a step, then the log that refers to it, and remove the previous state last."""
    state_file = _state_file(folder, step)
    try:
        write_file(state_file, lambda file: save_tensors(tensors, file))
        write_file(folder / LOG_FILE, lambda file: file.write_text("".join(json.dumps(line) + "\n" for line in lines)))
    except OSError as error:
        raise RheoscopeError(
            Message(
                "cannot write to {folder}: {reason}; free disk space and run the same command to continue",
                folder=str(folder),
                reason=error.strerror or str(error),
            )
        ) from error
    for old_file in [*folder.glob("state-*.safetensors"), *folder.glob(".state-*"), *folder.glob(".log-*")]:
        if old_file != state_file:
            old_file.unlink(missing_ok=True)


def load_state(folder: Path, step: int) -> dict[str, Tensor]:
    """The tensors of a pack at its current step."""
    from safetensors.torch import load_file

    from rheoscope.running.weight_files import check_safetensors

    file = _state_file(folder, step)
    if not file.exists():
        raise RheoscopeError(
            Message(
                "{file} is missing, although the log refers to it; remove {folder} to train this pack again",
                file=str(file),
                folder=str(folder),
            )
        )
    check_safetensors(file)
    tensors: dict[str, Tensor] = load_file(file)
    return tensors


def _state_file(folder: Path, step: int) -> Path:
    return folder / f"state-{step:06d}.safetensors"


def append_time(folder: Path, entry: JsonObject) -> None:
    """Append a line to the durations of a pack."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TIMES_FILE).open("a") as file:
        file.write(json.dumps(entry) + "\n")


def read_times(folder: Path) -> list[JsonObject]:
    """The durations of a pack. A line that was cut short by a kill is skipped."""
    entries = []
    for line in (folder / TIMES_FILE).read_text().splitlines() if (folder / TIMES_FILE).exists() else []:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


@contextmanager
def race_lock(race_folder: Path) -> Iterator[None]:
    """Lock the folder of a race against other drivers."""
    if not (race_folder / RACE_FILE).exists() and any(
        path.name not in (DATA_FOLDER, *RATE_FOLDERS) for path in foreign_files(race_folder)
    ):
        raise RheoscopeError(
            Message("{folder} contains files of other programs; choose another folder", folder=str(race_folder))
        )
    with directory_lock(race_folder):
        yield


def store_or_check_race(race_folder: Path, new_settings: JsonObject) -> JsonObject:
    """Store the settings of a race, or check them against the stored ones.

    Entrants and rates may be added; nothing else may change.
    """
    new_settings, file = json.loads(json.dumps(new_settings)), race_folder / RACE_FILE
    if file.exists():
        stored_settings = read_race_settings(race_folder)
        _check_same_race(race_folder, stored_settings, new_settings)
        new_settings |= {
            name: list(dict.fromkeys([*stored_settings[name], *new_settings[name]])) for name in ("mechanisms", "rates")
        }
        new_settings["chosen"] = {
            name: list(dict.fromkeys([*stored_settings["chosen"].get(name, []), *new_settings["chosen"].get(name, [])]))
            for name in {**stored_settings["chosen"], **new_settings["chosen"]}
        }
        for name in FACT_KEYS:
            new_settings[name] = stored_settings.get(name, {}) | new_settings.get(name, {})
    write_file(
        file, lambda path: path.write_text(json.dumps({"written_by": signature()} | new_settings, indent=1) + "\n")
    )
    return new_settings


FACT_KEYS = ("parameters", "files")
"""Facts about entrants: their sizes, and fingerprints of the files that define them. Earlier versions stored none."""
EXTENDABLE_KEYS = ("mechanisms", "rates", "chosen", *FACT_KEYS)
"""Settings that may be extended in an existing race."""


def _with_recipe_defaults(settings: JsonObject) -> JsonObject:
    """The settings with every field of the recipe and of its model. Earlier versions stored fewer, with the same defaults."""
    recipe = settings.get("recipe", {})
    if "config" not in recipe:
        return settings
    defaults = {field.name: field.default for field in fields(Recipe) if field.default is not MISSING}
    config = asdict(Config.from_dict(recipe["config"]))
    return settings | {"recipe": json.loads(json.dumps(defaults | recipe | {"config": config}))}


def _check_same_race(path: Path, stored: JsonObject, new: JsonObject) -> None:
    stored, new = _with_recipe_defaults(stored), _with_recipe_defaults(new)
    _check_same_files(stored, new)
    for name in sorted((set(stored) | set(new)) - {"written_by", "packs", *EXTENDABLE_KEYS}):
        if stored.get(name) != new.get(name):
            setting, stored_value, new_value = _first_difference(name, stored, new)
            raise RheoscopeError(
                Message(
                    "{path} holds a race with {setting}={stored}, now {setting}={new}; use the stored value or another path",
                    path=str(path),
                    setting=setting,
                    stored=stored_value,
                    new=new_value,
                )
            )


def _check_same_files(stored: JsonObject, new: JsonObject) -> None:
    """Raise if the file of an entrant has changed since the race started."""
    stored_files, new_files = stored.get("files", {}), new.get("files", {})
    for entrant in stored_files.keys() & new_files.keys():
        if stored_files[entrant] != new_files[entrant]:
            raise RheoscopeError(
                Message("the file of {entrant} has changed since this race started; use another --out", entrant=entrant)
            )


def _first_difference(name: str, stored: JsonObject, new: JsonObject) -> tuple[str, Any, Any]:
    """The first setting that differs, at any depth, with its stored and its new value."""
    stored_value, new_value = stored.get(name), new.get(name)
    if isinstance(stored_value, dict) and isinstance(new_value, dict):
        differing_key = next(
            key for key in sorted(set(stored_value) | set(new_value)) if stored_value.get(key) != new_value.get(key)
        )
        return _first_difference(differing_key, stored_value, new_value)
    return name, stored_value, new_value


def read_race_settings(race_path: Path) -> JsonObject:
    """The settings of the race in a folder or a file of logs.

    Older races store the single rate of an entrant as a number.
    """
    content = _read_race_json(race_path)
    chosen_rates = {name: rate if isinstance(rate, list) else [rate] for name, rate in content["chosen"].items()}
    settings = {name: value for name, value in content.items() if name not in ("written_by", "packs")}
    return settings | {"chosen": chosen_rates}


def _read_race_json(race_path: Path) -> JsonObject:
    file = race_path if race_path.is_file() else race_path / RACE_FILE
    try:
        content: JsonObject = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise RheoscopeError(
            Message("{path} holds no race", path=str(race_path)),
            Advice("", f"rheoscope race run tiny --mechanisms metric --data FILE --out {race_path}"),
        ) from error
    except (OSError, ValueError) as error:
        raise RheoscopeError(Message("cannot read {file}: {reason}", file=str(file), reason=str(error))) from error
    if "mechanisms" not in content or (race_path.is_file() and "packs" not in content):
        raise RheoscopeError(
            Message("{file} holds no logs of a race, expected a file written with --logs", file=str(file))
        )
    return content


def read_all_logs(race_path: Path) -> Iterable[JsonObject]:
    """The log entries of all packs, grouped by entrant and rate, from a folder or a file of logs."""
    if race_path.is_file():
        yield from (line for pack in _read_race_json(race_path)["packs"] for line in log_lines(pack))
        return
    for entrant, rate in list_packs(read_race_settings(race_path)):
        yield from read_log(pack_folder(race_path, entrant, rate))


# Logs in one file


def write_logs(race_path: Path, logs_file: Path) -> str:
    """Write the logs of a race to one file, one column per quantity.

    Reports from the file and from the folder are byte-identical.
    """
    settings = read_race_settings(race_path)
    lines_by_pack: dict[tuple[str, float], list[JsonObject]] = {}
    for line in read_all_logs(race_path):
        lines_by_pack.setdefault((line["entrant"], line["rate"]), []).append(line)
    packs = [
        log_columns(lines) | {"speeds": read_speeds(race_path, *pack), "looks": read_observations(race_path, *pack)}
        for pack, lines in lines_by_pack.items()
    ]
    header = json.dumps({"written_by": signature()} | settings, indent=1).removesuffix("\n}")
    rows = ",\n".join(json.dumps(pack, separators=(",", ":")) for pack in packs)
    return write_report(logs_file, lambda path: path.write_text(f'{header},\n "packs": [\n{rows}\n]}}\n'))


def rate_race(race_path: Path, folder_name: str) -> Path:
    """The race that chose the rates of a race: a folder in its folder, or the file next to its file of logs.

    >>> rate_race(Path("small.json"), "screen").name, rate_race(Path("run"), "curves").as_posix()
    ('small.screen.json', 'run/curves')
    """
    return race_path.with_suffix(f".{folder_name}.json") if race_path.suffix == ".json" else race_path / folder_name


def is_race(race_path: Path) -> bool:
    """Whether a path is the folder of a race or a file of its logs."""
    return race_path.is_file() or (race_path / RACE_FILE).is_file()


def restore_from_logs(logs_file: Path, race_folder: Path, new_settings: JsonObject) -> None:
    """Create the folder of a race from its file of logs, so that other entrants can join it.

    Nothing happens if the folder already holds a race. A file of a different race than `new_settings` is refused.
    The logs of a screen and of rate curves are read from the files next to it. Finished packs need no weights; unfinished packs are
    left out and trained from the start. Durations are left out because they belong to another machine.
    """
    if (race_folder / RACE_FILE).exists():
        return
    if not logs_file.is_file():
        raise RheoscopeError(
            Message("there is no file {file}, expected a file written with --logs", file=str(logs_file))
        )
    content = _read_race_json(logs_file)
    _check_same_race(logs_file, content, json.loads(json.dumps(new_settings)))
    with race_lock(race_folder), tempfile.TemporaryDirectory(prefix=".join-", dir=race_folder) as temporary_folder:
        _write_race_folder(content, Path(temporary_folder))
        for name in RATE_FOLDERS:
            if rate_race(logs_file, name).is_file():
                _write_race_folder(_read_race_json(rate_race(logs_file, name)), Path(temporary_folder) / name)
        for name in (RACE_FILE, *RATE_FOLDERS, PACKS_FOLDER):  # if stopped in between, some packs are trained again
            if (Path(temporary_folder) / name).exists():
                (Path(temporary_folder) / name).rename(race_folder / name)


def _write_race_folder(content: JsonObject, race_folder: Path) -> None:
    settings = {name: value for name, value in content.items() if name != "packs"}
    for pack in (pack for pack in content["packs"] if pack["step"][-1] == content["recipe"]["steps"]):
        folder = pack_folder(race_folder, pack["entrant"], pack["rate"])
        folder.mkdir(parents=True)
        (folder / LOG_FILE).write_text("".join(json.dumps(line) + "\n" for line in log_lines(pack)))
        for observation in pack["looks"]:
            (folder / OBSERVATIONS).mkdir(exist_ok=True)
            observation_file(folder, observation["step"]).write_text(json.dumps(observation) + "\n")
    (race_folder / RACE_FILE).write_text(json.dumps(settings, indent=1) + "\n")


def read_speeds(race_path: Path, entrant: str, rate: float) -> list[float]:
    """Tokens per second of a pack in each of its intervals."""
    if race_path.is_file():
        return _pack_column(race_path, entrant, rate, "speeds")
    return [line["tokens per second"] for line in read_times(pack_folder(race_path, entrant, rate))]


def read_observations(race_path: Path, entrant: str, rate: float) -> list[JsonObject]:
    """The observations of a pack's first seed: step, values and nulls by name."""
    if race_path.is_file():
        return _pack_column(race_path, entrant, rate, "looks")
    files = sorted((pack_folder(race_path, entrant, rate) / OBSERVATIONS).glob("step-*.json"))
    observations = [json.loads(file.read_text()) for file in files]
    return [{name: observation[name] for name in ("step", "values", "nulls")} for observation in observations]


def _pack_column(logs_file: Path, entrant: str, rate: float, column: str) -> list[Any]:
    columns: Iterable[list[Any]] = (
        pack[column]
        for pack in _read_race_json(logs_file)["packs"]
        if (pack["entrant"], pack["rate"]) == (entrant, rate)
    )
    return next(iter(columns), [])


def log_columns(lines: Sequence[JsonObject]) -> JsonObject:
    """The log of a pack as columns: losses (step, seed) with the shortest digits that identify a float32."""
    seeds = list(dict.fromkeys(line["seed"] for line in lines))
    first_seed_lines = lines[:: len(seeds)]
    flat_columns = {name: [_shortest_float32(line[name]) for line in lines] for name in ("loss", "train loss")}
    return {
        "entrant": lines[0]["entrant"],
        "rate": lines[0]["rate"],
        "seeds": seeds,
        **{name: [line[name] for line in first_seed_lines] for name in ("step", "tokens", "flops")},
        **{
            name: [values[start : start + len(seeds)] for start in range(0, len(values), len(seeds))]
            for name, values in flat_columns.items()
        },
        "diverged": [line["diverged"] for line in lines[-len(seeds) :]],
    }


def _shortest_float32(loss: float | None) -> float | None:
    return None if loss is None else float(str(np.float32(loss)))


def log_lines(pack: JsonObject) -> Iterable[JsonObject]:
    """The log entries of a pack, from its columns."""
    for index, step in enumerate(pack["step"]):
        for seed_index, seed in enumerate(pack["seeds"]):
            divergence_step = pack["diverged"][seed_index]
            losses = {name: pack[name][index][seed_index] for name in ("train loss", "loss")}
            yield {
                "entrant": pack["entrant"], "rate": pack["rate"], "seed": seed, "step": step, "tokens": pack["tokens"][index],
                "flops": pack["flops"][index], **{name: None if x is None else float(np.float32(x)) for name, x in losses.items()},
                "diverged": divergence_step if divergence_step is not None and divergence_step <= step else None,
            }  # fmt: skip
