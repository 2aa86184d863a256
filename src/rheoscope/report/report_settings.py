"""How a report asks an analysis, where not with its own defaults: settings made of what is known so far."""

from collections.abc import Callable
from typing import Any

from rheoscope.covers.agreement import words as agreement
from rheoscope.report.run_analyses import LONG, Ask, Settings, with_settings
from rheoscope.shapes import RheoscopeError
from rheoscope.space.results import Answers

DRAWS = 12
"""Random heads that each head is compared with in the main report; `rheoscope covers --draws` takes more."""
QUERIES, ROWS, FEW = 32, 8, 5
"""Of a long text: queries that agreement looks at, tokens whose distances to all others distortion looks at, draws."""
TURNS = 5
"""How often all heads are turned at random to see what they then keep of the distances."""


def _nearest(answers: Answers, most: int) -> Settings:
    """As many neighbours as a short text has."""
    return {"nearest": max(1, min(5, most))}


def _counted(answers: Answers) -> int:
    return len(answers.text) - len(answers.text.massive())


def _purity(answers: Answers) -> dict[str, Settings]:
    return {"": {"draws": 999} | ({"clusters": answers.found["clusters"]} if answers.knows("clusters") else {})}


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


def listed(most: int) -> Callable[[Answers], dict[str, Settings]]:
    """The pairs of the clearest heads of every list."""

    def settings(answers: Answers) -> dict[str, Settings]:
        heads = agreement.listed(_read(answers), most)
        return {f"L{layer}.H{head}": {"layer": layer, "head": head, "top": 2} for layer, head in heads}

    return settings


def is_long(answers: Answers) -> bool:
    """Whether assignments and Jacobians of this text are dear."""
    return len(answers.text) > LONG


def _transport(answers: Answers) -> dict[str, Settings]:
    """Of a long text the way layer by layer and the whole way, with few draws of that: Student's law needs no more."""
    return {"": {"strides": sorted({1, answers.view.layers}), "draws": FEW, "between": 0} if is_long(answers) else {}}


def _fixed_point(answers: Answers) -> dict[str, Settings]:
    """The last layer: each costs as much as a few passes of the model. Fewer steps would leave a radius too uncertain to tell."""
    iterations = 4 if is_long(answers) else 14
    return {"": {"iterations": iterations, "times": 1, "layers": [answers.view.layers - 1]}}


SETTINGS: dict[str, Callable[[Answers], dict[str, Settings]]] = {
    "geometry_kept": lambda answers: {"": _nearest(answers, _counted(answers) - 2)},
    "distortion": lambda answers: {
        "": _nearest(answers, (_counted(answers) - 1) // 2)
        | {"draws": FEW if is_long(answers) else TURNS, "rows": ROWS if is_long(answers) else None}
    },
    "purity": _purity,
    "agreement": lambda answers: {
        "": {"draws": FEW if is_long(answers) else DRAWS, "queries": QUERIES if is_long(answers) else None}
    },
    "distorted_pairs": _furthest,
    "score_attribution": _surest,
    "head_types": lambda answers: {"": {"trace": None}},
    "rollout": lambda answers: {"": {"probes": 8}},
    "transport": _transport,
    "fixed_point": _fixed_point,
}
"""How a report asks an analysis, where not with its own defaults."""


def asked(name: str, **settings: Any) -> Ask:
    """An analysis as a report asks it, with further settings."""
    usual = SETTINGS.get(name)
    if usual is None:
        return with_settings(name, **settings)
    return Ask(name, lambda answers: {word: given | settings for word, given in usual(answers).items()})
