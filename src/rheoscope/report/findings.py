"""What else a text shows, in plain words: each sentence has beaten its null after correction for everything that was tested.

A candidate is a function of the Answers of a run to one statement, or to nothing where its analysis was not run. Adding one
is a function and a line in `CANDIDATES`. The seven questions (`verdicts.py`) are corrected together with them.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.numbers import fixed
from rheoscope.picture.token_labels import shown
from rheoscope.space.results import Answers
from rheoscope.statistics.statement import LEVEL, Statement, corrected, from_draws, from_moments, from_units

if TYPE_CHECKING:
    import xarray

MOST = 5
Candidate = Callable[[Answers], Statement | None]


def findings(answers: Answers, most: int = MOST) -> tuple[list[Statement], int]:
    """At most `most` statements that beat their null, the surest first; and how many places were looked at.

    **Answers** "what is worth saying of this text in this model, besides the seven questions?"

    **Formula** p is how often chance goes as far: Student's law where a null was drawn, the normal law where its moments are
    exact; q = p times everything that a run tests, so that a text of noise gets any statement in 5 of 100 cases at most.

    **Laws** nothing that fails its null is told; a null without spread tells nothing.

    >>> import rheoscope as rs
    >>> from rheoscope.report.run_analyses import Ask, Subject, ask
    >>> model = rs.load()
    >>> text = "The keys to the cabinet are on the table"
    >>> told, tested = findings(ask(Subject(model, text, model.trace(text)), [Ask("trajectory")]))
    >>> len(told) <= tested
    True
    """
    made = [one for candidate in CANDIDATES if (one := candidate(answers)) is not None and math.isfinite(one.p)]
    tested = corrected(made, FAMILY)
    told = sorted((one for one in tested if one.q <= LEVEL), key=lambda one: one.q)
    return told[:most], sum(one.tries for one in tested)


def as_dataset(told: Sequence[Statement], tested: int) -> "xarray.Dataset":
    """Findings as a Dataset (finding): for JSON and for programs; `attrs["tested"]` counts the places.

    >>> as_dataset([Statement("a", "b", 1.0, 0.0, 0.5, 0.001)], 7).attrs["tested"]
    7
    """
    import xarray as xr

    names = ("text", "analysis", "value", "null", "spread", "p", "q", "tries")
    data = {name: ("finding", [getattr(one, name) for one in told]) for name in names}
    return xr.Dataset(data, attrs={"analysis": "findings", "tested": tested, "level": LEVEL})


def straightness(answers: Answers) -> Statement | None:
    path = answers.found.get("trajectory")
    if path is None or not path.sizes["draw"]:
        return None
    value, null = float(path.straightness.mean()), path.straightness_flipped.values
    how = "straighter" if value > null.mean() else "less straight"
    text = (
        f"Tokens go {how} than chance: chord over path {fixed(value)}, with each half-layer forwards or backwards at random "
        f"{fixed(null.mean())} ± {fixed(null.std())}."
    )
    return from_draws(text, "trajectory", value, null)


def cheapest(answers: Answers) -> Statement | None:
    moved = answers.found.get("transport")
    if moved is None or "kappa_drawn" not in moved:
        return None
    value, null = float(moved.kappa_strided.values[-1, -1]), moved.kappa_drawn.values
    text = (
        f"From the embedding to the last layer, keeping every token's identity is {'less' if value < null.mean() else 'more'} natural a "
        f"way than chance displacements would make it: κ is {fixed(value)}, with displacements permuted {fixed(null.mean())}."
    )
    return from_draws(text, "transport", value, null)


def geometry(answers: Answers) -> Statement | None:
    if not answers.knows("geometry_kept"):
        return None
    value = _kept(answers.found["geometry_kept"])
    null = answers.untrained("geometry_kept", _kept)
    if not null:
        return None
    how = "Less" if value < np.mean(null) else "More"
    text = (
        f"{how} of the embedding's geometry is left at the end than the architecture leaves by itself: distances correlate by "
        f"{fixed(value)} with those of the embedding, untrained {fixed(float(np.mean(null)))}."
    )
    return from_draws(text, "geometry_kept", value, null)


def _kept(kept: "xarray.Dataset") -> float:
    return float(kept.sel(reference="embed").isel(point=-1).rsa)


def giants(answers: Answers) -> Statement | None:
    sinks = answers.found.get("massive_tokens")
    if sinks is None or not sinks.sizes["token"]:
        return None
    top = int(np.argmax(sinks.largest.values))
    name, largest, spread = sinks.attrs["tokens"][top], float(sinks.largest[top]), float(sinks.spread[top])
    mass, even = float(sinks.sink_mass.isel(token=top).max()), 1 / sinks.attrs["n"]
    text = (
        f"Token {int(sinks.token[top])} {shown(name)} is a sink: {largest:.0f} times the median length, "
        f"{100 * float(sinks.coordinate_share[top, 0]):.0f} % of it in coordinate {int(sinks.coordinate[top, 0])}, "
        f"and up to {100 * mass:.0f} % of a layer's attention goes to it ({100 * even:.0f} % where all get the same)."
    )
    tries = sinks.attrs["n"] * sinks.sizes["point"]
    return from_moments(text, "massive_tokens", math.log(largest), 0.0, spread, tries)


OF_OPERATORS = {
    "symmetry": "M is {} symmetric than chance: tr(MM)/tr(MMᵀ) has mean {} over all heads, the same heads turned at random {}.",
    "positive_share": "M reads similarity {} than by chance: the mean positive share is {}, heads turned at random {}.",
    "copying": "Heads copy {} than by chance: the mean copying score is {}, heads turned at random {}.",
    "alignment": "F points {} along Mᵀ than by chance: mean cosine {}, heads turned at random {}.",
}


def operators(name: str) -> Candidate:
    """A mean over all heads of a model beside the same heads turned at random, those that share a key together."""

    def candidate(answers: Answers) -> Statement | None:
        heads = answers.found.get("operators")
        if heads is None or f"mean_{name}_drawn" not in heads:
            return None
        value, null = float(heads[name].mean()), heads[f"mean_{name}_drawn"].values
        how = "more" if value > null.mean() else "less"
        return from_draws(OF_OPERATORS[name].format(how, fixed(value), fixed(null.mean())), "operators", value, null)

    return candidate


def _by_key(answers: Answers, values: "xarray.DataArray") -> np.ndarray:
    """Means over the heads that share a key: units that weights drawn at random make independent."""
    groups = len(answers.view.blocks[0].W_K)
    return values.values.reshape(values.sizes["layer"], groups, -1).mean(-1).ravel()


def nearness(answers: Answers) -> Statement | None:
    heads = answers.found.get("agreement")
    if heads is None:
        return None
    near, like = (_by_key(answers, heads[name]) for name in ("position_baseline", "agreement"))
    how = "more" if np.nanmean(near - like) > 0 else "less"
    text = (
        f"Nearness explains {how} of the scores than similarity: mean rank correlation {fixed(np.nanmean(near))} over the heads, "
        f"of similarity {fixed(np.nanmean(like))} once nearness and length are taken out."
    )
    return from_units(text, "agreement", near - like, 0.0)


def symmetric_agree(answers: Answers) -> Statement | None:
    if not answers.knows("agreement", "operators"):
        return None
    both = np.stack(
        [_by_key(answers, answers.found[a][b]) for a, b in (("agreement", "agreement"), ("operators", "symmetry"))]
    )
    both = both[:, np.isfinite(both).all(0)]
    if both.shape[1] < 8 or not both.std(1).all():
        return None
    rho, chance = float(np.atleast_2d(np.corrcoef(both.argsort(1).argsort(1)))[0, 1]), 1 / math.sqrt(both.shape[1] - 1)
    text = (
        f"Heads with a more symmetric M read similarity {'more' if rho > 0 else 'less'}: rank correlation {fixed(rho)}, by chance "
        f"0 ± {fixed(chance)}."
    )
    return from_moments(text, "operators", rho, 0.0, chance)


def mismatch(answers: Answers) -> Statement | None:
    heads = answers.found.get("distortion")
    if heads is None:
        return None
    value, null, spread = (float(heads[f"mean_mismatch{part}"]) for part in ("", "_null", "_null_sd"))
    text = (
        f"Queries and keys read spaces that lie {'nearer' if value < null else 'further'} than those of heads turned at random: "
        f"mean sin² of their angles {fixed(value)}, turned {fixed(null)}."
    )
    return from_moments(text, "distortion", value, null, spread)


def stacked(answers: Answers) -> Statement | None:
    layers = answers.found.get("stack")
    if layers is None or "mean_recovered_drawn" not in layers:
        return None
    value, null = float(layers.recovered[:, -1].mean()), layers.mean_recovered_drawn.values
    text = (
        f"All heads of a layer together recover {'less' if value < null.mean() else 'more'} of the distances between tokens than the same "
        f"heads turned at random: mean over layers {fixed(value)}, turned {fixed(null.mean())}."
    )
    return from_draws(text, "stack", value, null)


CANDIDATES: tuple[Candidate, ...] = (
    straightness, cheapest, geometry, giants, *map(operators, OF_OPERATORS), nearness, symmetric_agree, mismatch, stacked,
)  # fmt: skip
OF_VERDICTS = 7
"""Statements that the seven questions rest on."""
FAMILY = OF_VERDICTS + len(CANDIDATES)
"""Everything that a run can say: what each statement pays for."""


def sentences(told: Sequence[Statement], tested: int) -> list[str]:
    """Findings as a person reads them, and how many were looked for.

    >>> sentences([], 12)
    ['12 numbers were held against chance; none beat its null.']
    >>> sentences([], 1), sentences([], 0)
    (['1 number was held against chance; it did not beat its null.'], ['No number of this text could be held against chance.'])
    """
    if not tested:
        return ["No number of this text could be held against chance."]
    held = "1 number was held against chance" if tested == 1 else f"{tested:,} numbers were held against chance"
    if not told:
        return [f"{held}; it did not beat its null." if tested == 1 else f"{held}; none beat its null."]
    lines = [f"{one.text} (q {'< .001' if one.q < 1e-3 else f'{one.q:.1g}'})" for one in told]
    return [*lines, f"{held}; q is the chance that noise gets any sentence as sure as this."]
