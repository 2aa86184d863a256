"""What every command asks and tells: one row a command, the only table. All of them are run the same way (`command.py`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rheoscope.catalogue import TABLE, analysis
from rheoscope.report.answers import Answers
from rheoscope.report.asking import Ask, Settings, with_settings
from rheoscope.report.findings import CANDIDATES, COVERS, Candidate, findings, sentences
from rheoscope.report.tell import agreement, fields, layers, operators, readout, reversed_attention, surgery, text
from rheoscope.report.telling import Block, Lines
from rheoscope.shapes import RheoscopeError

DRAWS = 20
"""Random heads that each head is compared with in the main report; `rheoscope covers --draws` takes more."""
Options = dict[str, Any]
"""What was typed behind a command, by name."""


@dataclass(frozen=True, eq=False)
class Told:
    """Blocks that can be told once everything they need was asked; `aside` ones only on a page."""

    needs: tuple[str, ...]
    blocks: Callable[[Answers], list[Block]]
    aside: bool = False


@dataclass(frozen=True, eq=False)
class Job:
    """A command: what it asks (with the options that were typed), what it asks besides for files and pages, what it tells.

    `must` names the analysis without whose answer there is nothing to tell: its reason is then the error.
    """

    title: Callable[[Answers], str]
    asks: Callable[[Options], list[Ask]]
    tells: tuple[Told, ...]
    besides: Callable[[Options], list[Ask]] = field(default=lambda options: [])
    must: str = ""


# What some analyses are asked with


def _nearest(answers: Answers, most: int) -> Settings:
    """As many neighbours as a short text has."""
    return {"nearest": max(1, min(5, most))}


def _counted(answers: Answers) -> int:
    return len(answers.text) - len(answers.text.massive())


def _purity(answers: Answers) -> dict[str, Settings]:
    return {"": {"draws": 100} | ({"clusters": answers.found["clusters"]} if answers.knows("clusters") else {})}


def _read(answers: Answers) -> Any:
    if "agreement" not in answers.found:
        raise RheoscopeError("it is shown of a head that agreement picks, and agreement has no answer")
    return answers.found["agreement"]


def _furthest(answers: Answers) -> dict[str, Settings]:
    """The pairs of the head that is furthest from reading similarity."""
    layer, head = agreement.furthest(_read(answers))
    return {"": {"layer": layer, "head": head}}


def _surest(answers: Answers) -> dict[str, Settings]:
    """The pattern of the head that reads similarity most surely."""
    layer, head = agreement.surest(_read(answers))
    return {"": {"layer": layer, "head": head}}


def _listed(most: int) -> Callable[[Answers], dict[str, Settings]]:
    """The pairs of the clearest heads of every list."""

    def settings(answers: Answers) -> dict[str, Settings]:
        heads = agreement.listed(_read(answers), most)
        return {f"L{layer}.H{head}": {"layer": layer, "head": head, "top": 2} for layer, head in heads}

    return settings


SETTINGS: dict[str, Callable[[Answers], dict[str, Settings]]] = {
    "geometry_kept": lambda answers: {"": _nearest(answers, _counted(answers) - 2)},
    "distortion": lambda answers: {"": _nearest(answers, (_counted(answers) - 1) // 2) | {"draws": 2}},
    "purity": _purity,
    "agreement": lambda answers: {"": {"draws": DRAWS}},
    "distorted_pairs": _furthest,
    "score_attribution": _surest,
    "head_types": lambda answers: {"": {"trace": None}},
    "rollout": lambda answers: {"": {"probes": 8}},
    "fixed_point": lambda answers: {"": {"iterations": 10}},
}
"""How a report asks an analysis, where not with its own defaults."""


def asked(name: str, **settings: Any) -> Ask:
    """An analysis as a report asks it, with further settings."""
    usual = SETTINGS.get(name)
    if usual is None:
        return with_settings(name, **settings)
    return Ask(name, lambda answers: {word: given | settings for word, given in usual(answers).items()})


# The rows


def _findings(heading: str, candidates: tuple[Candidate, ...], most: int = 5) -> Callable[[Answers], list[Block]]:
    def blocks(answers: Answers) -> list[Block]:
        if not answers.nulls:
            return [Lines(heading, ["Nothing is told: nulls are left out (--fast)."])]
        return [Lines(heading, sentences(*findings(answers.found, most, candidates)))]

    return blocks


FIRST = ("trajectory", "transport", "clusters", "readout")
"""What the first tables of the main job need: asked before everything else, so that they stand there at once."""
LAST = ("head_types", "agreement", "distorted_pairs", "score_attribution")
"""What takes longest, and stands on what came before."""


def of_a_text() -> list[str]:
    """What the main job asks: every analysis of a text or of weights that is not dear, in an order that tells early."""
    cheap = [name for name in TABLE if not (one := analysis(name)).dear and one.needs in ("trace", "view")]
    return [*FIRST, *(name for name in cheap if name not in (*FIRST, *LAST)), *LAST]


def _main(options: Options) -> list[Ask]:
    space = {"space": options.get("space", "raw")}
    return [asked(name, **(space if "space" in analysis(name).settings else {})) for name in of_a_text()]


def _covers(options: Options) -> list[Ask]:
    settings = {name: options[name] for name in ("draws", "control") if options.get(name) is not None}
    return [
        asked("agreement", **settings),
        Ask("distorted_pairs", _listed(1)),
        asked("head_types"),
        asked("distortion"),
    ]


def _covers_besides(options: Options) -> list[Ask]:
    more = ("distorted_pairs", "stack", "composition", "score_attribution", "rollout", "fixed_point", "operators")
    return [*map(asked, more), Ask("distorted_pairs", _listed(agreement.LISTED))]


def _surgery(options: Options) -> list[Ask]:
    return [with_settings("surgery", **{name: value for name, value in options.items() if value is not None})]


def _reverse(options: Options) -> list[Ask]:
    settings = {name: options[name] for name in ("target", "token") if options.get(name) is not None}
    etas = {"etas": (reversed_attention.STEP, 0.0)}
    return [with_settings("reversed_attention", **settings), with_settings("attention_patching", **settings | etas)]


def _reverse_besides(options: Options) -> list[Ask]:
    settings = {name: options[name] for name in ("target", "token") if options.get(name) is not None}
    return [with_settings("attention_patching", **settings), asked("head_types")]


def _operators(options: Options) -> list[Ask]:
    scores = [asked("scores")] if options.get("text") is not None else []
    return [with_settings("operators", raw=bool(options.get("raw"))), *scores]


def _title(what: str) -> Callable[[Answers], str]:
    return lambda answers: f"{what}: {text.title(answers)}"


JOBS: dict[str, Job] = {
    "flow": Job(
        text.title,
        _main,
        (
            Told(layers.NEEDS, layers.blocks),
            Told(("readout",), readout.blocks),
            Told(("operators", "energy"), operators.blocks),
            Told(
                ("geometry_kept", "purity", "massive_tokens", "energy", "operators"), _findings("Findings", CANDIDATES)
            ),
            Told(("agreement", "operators"), _findings("The covers: what heads make of similarity", COVERS)),
        ),
    ),
    "covers": Job(
        _title("Covers"),
        _covers,
        (
            Told(("agreement", "head_types", "distortion"), agreement.blocks),
            Told(("agreement", "distortion"), _findings("Findings", COVERS, 8)),
            Told((), agreement.head_table, aside=True),
        ),
        _covers_besides,
        must="agreement",
    ),
    "surgery": Job(_title("Surgery"), _surgery, (Told(("surgery",), surgery.blocks),), must="surgery"),
    "reverse": Job(
        _title("Reversed attention"),
        _reverse,
        (Told(("reversed_attention", "attention_patching"), reversed_attention.blocks),),
        _reverse_besides,
        must="reversed_attention",
    ),
    "operators": Job(
        lambda answers: f"Operators of {answers.view.facts['model']}",
        _operators,
        (
            Told(("operators",), operators.blocks),
            Told(("operators",), operators.extremes),
            Told(("scores",), operators.scores),
        ),
        lambda options: [asked("head_types")],
        must="operators",
    ),
}
"""Command → what it asks and tells."""


def job_of(name: str) -> Job:
    """Any analysis of the catalogue as a command of its own."""
    return Job(
        lambda answers: f"{name}: {text.title(answers)}",
        lambda options: [with_settings(name, **options)],
        (Told((name,), lambda answers: fields.blocks(answers, name)),),
        must=name,
    )
