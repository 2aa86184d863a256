"""What a race keeps on disk, so that it can be killed at any moment and goes on to the same numbers, byte for byte.

    out/race.json                         what is raced: recipe, entrants, seeds, rates
    out/data/                             its tokens, unless they were prepared elsewhere
    out/packs/NAME@RATE/log.jsonl         a line for each seed and each time it was measured
                        state-STEP.safetensors    where that pack stands: weights and, until the end, its optimisers
                        times.jsonl       how long it took: never part of a table

A pack is all seeds of one entrant at one rate. Its state is written first, under a temporary name, then its log, which says which state
counts; only then is the state before it removed.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from rheoscope.files import check_directory, signature, write_file
from rheoscope.models.checkpoint import save_tensors
from rheoscope.shapes import RheoscopeError

RACE, PACKS, DATA, LOG, TIMES = "race.json", "packs", "data", "log.jsonl", "times.jsonl"
Line = dict[str, Any]


def pack_folder(out: Path, entrant: str, rate: float) -> Path:
    """Where the pack of an entrant at a rate lies.

    >>> pack_folder(Path("run"), "metric:flops", 0.001).name
    'metric-by-flops@0.001'
    """
    return out / PACKS / f"{entrant.replace(':', '-by-')}@{rate!r}"


def lines_of(folder: Path) -> list[Line]:
    """All that was measured of a pack, in order."""
    file = folder / LOG
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def step_of(lines: list[Line]) -> int | None:
    """The step at which a pack stands; None where it has not begun."""
    return int(lines[-1]["step"]) if lines else None


def keep(folder: Path, step: int, tensors: dict[str, Tensor], lines: list[Line]) -> None:
    """The state of a step, then the log that names it; what was there before goes last."""
    state = _state(folder, step)
    try:
        write_file(state, lambda file: save_tensors(tensors, file))
        write_file(folder / LOG, lambda file: file.write_text("".join(json.dumps(line) + "\n" for line in lines)))
    except OSError as error:
        raise RheoscopeError(
            f"cannot write to {folder} ({error.strerror or error}); make room and type the same command to go on"
        ) from error
    for other in [*folder.glob("state-*.safetensors"), *folder.glob(".state-*"), *folder.glob(".log-*")]:
        if other != state:
            other.unlink(missing_ok=True)


def state_of(folder: Path, step: int) -> dict[str, Tensor]:
    """The tensors of a pack at the step at which it stands."""
    from safetensors.torch import load_file

    from rheoscope.space.weights import check_safetensors

    file = _state(folder, step)
    if not file.exists():
        raise RheoscopeError(f"{file} is gone, its log says that it was written; remove {folder} to run it again")
    check_safetensors(file)
    held: dict[str, Tensor] = load_file(file)
    return held


def _state(folder: Path, step: int) -> Path:
    return folder / f"state-{step:06d}.safetensors"


def add_times(folder: Path, told: Line) -> None:
    """One more line of how long something took."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / TIMES).open("a") as file:
        file.write(json.dumps(told) + "\n")


def times_of(folder: Path) -> list[Line]:
    """How long the steps of a pack took; a line that a kill cut short is left out."""
    told = []
    for line in (folder / TIMES).read_text().splitlines() if (folder / TIMES).exists() else []:
        try:
            told.append(json.loads(line))
        except ValueError:
            continue
    return told


def same_race(out: Path, now: Line) -> Line:
    """Store what is raced, or go on with what is there: more entrants and rates may join, nothing else may change."""
    check_directory(out)
    now, file = json.loads(json.dumps(now)), out / RACE
    if file.exists():
        held = read_race(out)
        for name in sorted(set(held) | set(now)):
            if name not in JOINING and held.get(name) != now.get(name):
                raise RheoscopeError(
                    f"{out} holds a race with {_difference(name, held, now)}; type the same, or another --out"
                )
        now |= {name: list(dict.fromkeys([*held[name], *now[name]])) for name in JOINING}
    elif out.exists() and any(one.name != DATA for one in out.iterdir()):
        raise RheoscopeError(f"{out} holds other files; type another --out")
    write_file(file, lambda to: to.write_text(json.dumps({"written_by": signature()} | now, indent=1) + "\n"))
    return now


JOINING = ("mechanisms", "rates")
"""What may be added to a race that is there."""


def _difference(name: str, held: Line, now: Line) -> str:
    """Which setting differs, in words."""
    before, after = held.get(name), now.get(name)
    if isinstance(before, dict) and isinstance(after, dict):
        inner = next(key for key in sorted(set(before) | set(after)) if before.get(key) != after.get(key))
        return _difference(inner, before, after)
    return f"{name}={before}, now {name}={after}"


def read_race(out: Path) -> Line:
    """What is raced in a folder."""
    try:
        told: Line = json.loads((out / RACE).read_text())
    except FileNotFoundError as error:
        raise RheoscopeError(
            f"{out} holds no race; type the --out of a race, as rheoscope race tiny --out DIR"
        ) from error
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{out / RACE} cannot be read ({error}); type another --out") from error
    return {name: value for name, value in told.items() if name != "written_by"}


def logs(out: Path) -> Iterable[Line]:
    """Every line of every pack of a race, entrant after entrant, rate after rate."""
    told = read_race(out)
    for entrant in told["mechanisms"]:
        for rate in told["rates"]:
            yield from lines_of(pack_folder(out, entrant, rate))
