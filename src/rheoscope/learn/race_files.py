"""What a race keeps on disk, so that it can be killed at any moment and goes on to the same numbers, byte for byte.

    out/race.json                         what is raced: recipe, entrants, seeds, rates
    out/data/                             its tokens, unless they were prepared elsewhere
    out/screen/                           a shorter race in which rates were chosen, where there was one
    out/.lock                             held by the kernel for the one driver that works here
    out/packs/NAME@RATE/log.jsonl         a line for each seed and each time it was measured
                        state-STEP.safetensors    where that pack stands: weights and, until the end, its optimisers
                        looks/            its first seed at marked steps, where it was looked at
                        times.jsonl       how long it took: never part of a table

A pack is all seeds of one entrant at one rate. Its state is written first, under a temporary name, then its log, which says which state
counts; only then is the state before it removed.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rheoscope.files import alone, signature, strangers, write_file, write_report
from rheoscope.models.checkpoint import save_tensors
from rheoscope.models.training_state import LOOKS, look_file
from rheoscope.shapes import RheoscopeError

RACE, PACKS, DATA, SCREEN, LOG, TIMES = "race.json", "packs", "data", "screen", "log.jsonl", "times.jsonl"
Line = dict[str, Any]


def pack_folder(out: Path, entrant: str, rate: float) -> Path:
    """Where the pack of an entrant at a rate lies.

    >>> pack_folder(Path("run"), "metric:flops", 0.001).name
    'metric-by-flops@0.001'
    """
    return out / PACKS / f"{entrant.replace(':', '-by-')}@{rate!r}"


def rates_of(entrant: str, rates: Sequence[float], chosen: Mapping[str, float]) -> list[float]:
    """The rates at which an entrant races: the one that was chosen for it before, or all of the grid.

    >>> rates_of("tied", [1e-3, 3e-3], {}), rates_of("tied", [1e-3, 3e-3], {"untied": 1e-3, "tied": 3e-3})
    ([0.001, 0.003], [0.003])
    """
    return [chosen[entrant]] if chosen else list(rates)


def packs_of(told: Line) -> list[tuple[str, float]]:
    """Every pack of a race, entrant after entrant, rate after rate."""
    return [
        (entrant, rate) for entrant in told["mechanisms"] for rate in rates_of(entrant, told["rates"], told["chosen"])
    ]


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

    from rheoscope.running.weight_files import check_safetensors

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


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Inside, no other driver works on the folder of a race."""
    if not (out / RACE).exists() and any(one.name not in (DATA, SCREEN) for one in strangers(out)):
        raise RheoscopeError(f"{out} holds other files; type another --out")
    with alone(out):
        yield


def same_race(out: Path, now: Line) -> Line:
    """Store what is raced, or go on with what is there: more entrants and rates may join, nothing else may change."""
    now, file = json.loads(json.dumps(now)), out / RACE
    if file.exists():
        held = read_race(out)
        _check_same(out, held, now, "another --out")
        now |= {name: list(dict.fromkeys([*held[name], *now[name]])) for name in ("mechanisms", "rates")}
        now["chosen"] = held["chosen"] | now["chosen"]
    write_file(file, lambda to: to.write_text(json.dumps({"written_by": signature()} | now, indent=1) + "\n"))
    return now


JOINING = ("mechanisms", "rates", "chosen")
"""What may be added to a race that is there."""


def _check_same(where: Path, held: Line, now: Line, other: str) -> None:
    for name in sorted((set(held) | set(now)) - {"written_by", "packs", *JOINING}):
        if held.get(name) != now.get(name):
            raise RheoscopeError(f"{where} holds a race with {_difference(name, held, now)}; type the same, or {other}")


def _difference(name: str, held: Line, now: Line) -> str:
    """Which setting differs, in words."""
    before, after = held.get(name), now.get(name)
    if isinstance(before, dict) and isinstance(after, dict):
        inner = next(key for key in sorted(set(before) | set(after)) if before.get(key) != after.get(key))
        return _difference(inner, before, after)
    return f"{name}={before}, now {name}={after}"


def read_race(out: Path) -> Line:
    """What is raced in a folder."""
    return {name: value for name, value in _read(out).items() if name not in ("written_by", "packs")}


def _read(out: Path) -> Line:
    file = out if out.is_file() else out / RACE
    try:
        told: Line = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise RheoscopeError(
            f"{out} holds no race; type the --out of a race, as rheoscope race tiny --out DIR"
        ) from error
    except (OSError, ValueError) as error:
        raise RheoscopeError(f"{file} cannot be read ({error}); type another --out") from error
    if "mechanisms" not in told or (out.is_file() and "packs" not in told):
        raise RheoscopeError(f"{file} holds no logs of a race; type a file that --logs wrote")
    return told


def logs(out: Path) -> Iterable[Line]:
    """Every line of every pack of a race, entrant after entrant, rate after rate; of a folder, or of a file of logs."""
    if out.is_file():
        yield from (line for pack in _read(out)["packs"] for line in lines_in(pack))
        return
    for entrant, rate in packs_of(read_race(out)):
        yield from lines_of(pack_folder(out, entrant, rate))


# One small file


def write_logs(out: Path, file: Path) -> str:
    """The logs of a race in one file, a column a quantity: it can be told of as its folder can, to the same bytes."""
    told = read_race(out)
    grouped: dict[tuple[str, float], list[Line]] = {}
    for line in logs(out):
        grouped.setdefault((line["entrant"], line["rate"]), []).append(line)
    packs = [
        columns_of(lines) | {"speeds": speeds_of(out, *pack), "looks": looks_of(out, *pack)}
        for pack, lines in grouped.items()
    ]
    head = json.dumps({"written_by": signature()} | told, indent=1).removesuffix("\n}")
    rows = ",\n".join(json.dumps(pack, separators=(",", ":")) for pack in packs)
    return write_report(file, lambda to: to.write_text(f'{head},\n "packs": [\n{rows}\n]}}\n'))


def screen_file(file: Path) -> Path:
    """Where the logs of the race before lie, in which rates were chosen: beside those of the race.

    >>> screen_file(Path("small.json")).name
    'small.screen.json'
    """
    return file.with_suffix(f".{SCREEN}.json")


def from_logs(file: Path, out: Path, now: Line) -> None:
    """Make the folder of a race from its file of logs, so that others can join it.

    Nothing is done where a race is there; a file of another race than the one that is asked for `now` is refused. The logs of a screen
    are taken from beside it. What is finished needs no weights; what is not is left out and trained from its start. How long it took
    was another machine's, or another hour's, and is left out too.
    """
    if (out / RACE).exists():
        return
    if not file.is_file():
        raise RheoscopeError(f"there is no file {file}; type one that --logs wrote")
    told = _read(file)
    _check_same(file, told, json.loads(json.dumps(now)), "another --join")
    with alone_in(out), tempfile.TemporaryDirectory(prefix=".join-", dir=out) as made:
        _unpack(told, Path(made))
        if screen_file(file).is_file():
            _unpack(_read(screen_file(file)), Path(made) / SCREEN)
        for name in (RACE, SCREEN, PACKS):  # stopped between them, some are trained again
            if (Path(made) / name).exists():
                (Path(made) / name).rename(out / name)


def _unpack(told: Line, out: Path) -> None:
    race = {name: value for name, value in told.items() if name != "packs"}
    for pack in (pack for pack in told["packs"] if pack["step"][-1] == told["recipe"]["steps"]):
        folder = pack_folder(out, pack["entrant"], pack["rate"])
        folder.mkdir(parents=True)
        (folder / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines_in(pack)))
        for seen in pack["looks"]:
            (folder / LOOKS).mkdir(exist_ok=True)
            look_file(folder, seen["step"]).write_text(json.dumps(seen) + "\n")
    (out / RACE).write_text(json.dumps(race, indent=1) + "\n")


def speeds_of(out: Path, entrant: str, rate: float) -> list[float]:
    """Tokens a second of a pack in each of its turns."""
    if out.is_file():
        return _column(out, entrant, rate, "speeds")
    return [line["tokens per second"] for line in times_of(pack_folder(out, entrant, rate))]


def looks_of(out: Path, entrant: str, rate: float) -> list[Line]:
    """What was seen of the first seed of a pack: step, values and nulls by name."""
    if out.is_file():
        return _column(out, entrant, rate, "looks")
    files = sorted((pack_folder(out, entrant, rate) / LOOKS).glob("step-*.json"))
    seen = [json.loads(file.read_text()) for file in files]
    return [{name: one[name] for name in ("step", "values", "nulls")} for one in seen]


def _column(file: Path, entrant: str, rate: float, name: str) -> list[Any]:
    found: Iterable[list[Any]] = (
        pack[name] for pack in _read(file)["packs"] if (pack["entrant"], pack["rate"]) == (entrant, rate)
    )
    return next(iter(found), [])


def columns_of(lines: Sequence[Line]) -> Line:
    """The lines of a pack as columns: losses (step, seed), in as few digits as tell a float32 from its neighbours."""
    seeds = list(dict.fromkeys(line["seed"] for line in lines))
    first = lines[:: len(seeds)]
    rows = {name: [_short(line[name]) for line in lines] for name in ("loss", "train loss")}
    return {
        "entrant": lines[0]["entrant"], "rate": lines[0]["rate"], "seeds": seeds,
        **{name: [line[name] for line in first] for name in ("step", "tokens", "flops")},
        **{name: [row[at : at + len(seeds)] for at in range(0, len(row), len(seeds))] for name, row in rows.items()},
        "diverged": [line["diverged"] for line in lines[-len(seeds) :]],
    }  # fmt: skip


def _short(loss: float | None) -> float | None:
    return None if loss is None else float(str(np.float32(loss)))


def lines_in(pack: Line) -> Iterable[Line]:
    """The lines of a pack, from its columns."""
    for at, step in enumerate(pack["step"]):
        for seed, number in enumerate(pack["seeds"]):
            lost = pack["diverged"][seed]
            whole = {name: pack[name][at][seed] for name in ("train loss", "loss")}
            yield {
                "entrant": pack["entrant"], "rate": pack["rate"], "seed": number, "step": step, "tokens": pack["tokens"][at],
                "flops": pack["flops"][at], **{name: None if x is None else float(np.float32(x)) for name, x in whole.items()},
                "diverged": lost if lost is not None and lost <= step else None,
            }  # fmt: skip
