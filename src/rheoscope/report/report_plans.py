"""What every command asks and tells: one row a command, the only table. All of them are run the same way (`command.py`)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rheoscope.catalogue import TABLE, analysis
from rheoscope.covers.agreement import words as agreement
from rheoscope.covers.operators import words as operators
from rheoscope.covers.reversed_attention import words as reversed_attention
from rheoscope.covers.surgery import words as surgery
from rheoscope.flow.readout import words as readout
from rheoscope.picture.blocks import Block, Lines
from rheoscope.report import field_blocks, layer_table, question_blocks, text_blocks
from rheoscope.report.findings import findings, sentences
from rheoscope.report.report_settings import asked, listed
from rheoscope.report.run_analyses import CONTROLLED, MOST, Ask, with_settings
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.space.results import Answers

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


# The rows


def _findings(answers: Answers) -> list[Block]:
    if not answers.nulls:
        return [Lines("What else beat chance", ["Nothing is told: nulls are left out (--fast)."])]
    return [Lines("What else beat chance", sentences(*findings(answers)))]


SOONEST = sorted(QUESTIONS, key=lambda one: max(CONTROLLED.get(name, 0) for name in one.needs) == MOST)
FIRST = tuple(dict.fromkeys(name for one in SOONEST for name in one.needs))
"""What the seven questions need, asked before everything else, so that answers stand there at once: in their order, but that
what waits for several controls comes last."""
LAST = ("head_types", "distorted_pairs", "score_attribution")
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
        Ask("distorted_pairs", listed(1)),
        asked("head_types"),
        asked("distortion"),
    ]


def _covers_besides(options: Options) -> list[Ask]:
    more = ("distorted_pairs", "stack", "composition", "score_attribution", "rollout", "fixed_point", "operators")
    return [*map(asked, more), Ask("distorted_pairs", listed(agreement.LISTED))]


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
    return lambda answers: f"{what}: {text_blocks.title(answers)}"


JOBS: dict[str, Job] = {
    "flow": Job(
        text_blocks.title,
        _main,
        (
            *(Told(one.needs, question_blocks.blocks(one)) for one in QUESTIONS),
            Told((), question_blocks.note),
            Told(layer_table.NEEDS, layer_table.blocks),
            Told(("readout",), readout.blocks),
            Told(("operators", "energy"), operators.blocks),
            Told(("geometry_kept", "massive_tokens", "operators", "agreement", "distortion"), _findings),
        ),
    ),
    "covers": Job(
        _title("Covers"),
        _covers,
        (
            Told(("agreement", "head_types", "distortion"), agreement.blocks),
            Told(("agreement", "distortion"), _findings),
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
        lambda answers: f"{name}: {text_blocks.title(answers)}",
        lambda options: [with_settings(name, **options)],
        (Told((name,), lambda answers: field_blocks.blocks(answers, name)),),
        must=name,
    )
