"""Every analysis by name: the only registry. Lists of analyses are computed from it.

A row holds a public name and the module that declares it. The module is imported when the analysis is first used. The
function `transport` and its declaration `TRANSPORT` live in `flow/transport/analysis.py`.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from rheoscope.space.analysis import Analysis
    from rheoscope.space.claim import Claim
    from rheoscope.space.published_finding import PublishedFinding
    from rheoscope.space.words import Words

ANALYSIS_MODULES: dict[str, str] = {
    "frames": "rheoscope.flow.frames.analysis",
    "readout": "rheoscope.flow.readout.analysis",
    "trajectory": "rheoscope.flow.trajectory.analysis",
    "transport": "rheoscope.flow.transport.analysis",
    "geometry_kept": "rheoscope.flow.geometry_kept.analysis",
    "clusters": "rheoscope.flow.clusters.analysis",
    "density_clusters": "rheoscope.flow.density_clusters.analysis",
    "purity": "rheoscope.flow.purity.analysis",
    "senses": "rheoscope.flow.senses.analysis",
    "relatedness": "rheoscope.flow.relatedness.analysis",
    "charts": "rheoscope.flow.charts.analysis",
    "massive_tokens": "rheoscope.flow.massive_tokens.analysis",
    "energy": "rheoscope.flow.energy.analysis",
    "scores": "rheoscope.covers.scores.analysis",
    "agreement": "rheoscope.covers.agreement.analysis",
    "distortion": "rheoscope.covers.distortion.analysis",
    "distorted_pairs": "rheoscope.covers.distorted_pairs.analysis",
    "stack": "rheoscope.covers.stack.analysis",
    "operators": "rheoscope.covers.operators.analysis",
    "composition": "rheoscope.covers.composition.analysis",
    "relation_swap": "rheoscope.covers.relation_swap.analysis",
    "head_types": "rheoscope.covers.head_types.analysis",
    "head_statistics": "rheoscope.covers.head_statistics.analysis",
    "score_attribution": "rheoscope.covers.score_attribution.analysis",
    "prefix_stability": "rheoscope.covers.prefix_stability.analysis",
    "rollout": "rheoscope.covers.rollout.analysis",
    "heat": "rheoscope.covers.heat.analysis",
    "fixed_point": "rheoscope.covers.fixed_point.analysis",
    "boundary": "rheoscope.covers.boundary.analysis",
    "reversed_attention": "rheoscope.covers.reversed_attention.analysis",
    "attention_patching": "rheoscope.covers.attention_patching.analysis",
    "patch": "rheoscope.covers.patch.analysis",
    "patch_estimates": "rheoscope.covers.patch_estimates.analysis",
    "circuit": "rheoscope.covers.circuit.analysis",
    "surgery": "rheoscope.covers.surgery.analysis",
    "decay": "rheoscope.covers.decay.analysis",
    "faithfulness": "rheoscope.covers.faithfulness.analysis",
}
"""Public name → module, in reading order."""


def analysis_names() -> list[str]:
    """The names of all analyses, in the order of the table."""
    return list(ANALYSIS_MODULES)


def analysis_by_name(name: str) -> "Analysis":
    """The declaration of an analysis by its public name.

    >>> analysis_by_name("transport").needs
    'trace'
    """
    if name not in ANALYSIS_MODULES:
        from rheoscope.messages.advice import Advice
        from rheoscope.messages.closest_name import closest_name
        from rheoscope.messages.message import Message
        from rheoscope.shapes import RheoscopeError  # imports torch, which the table does not need

        closest = closest_name(str(name), ANALYSIS_MODULES)
        if closest is None:
            advice = Advice("rs.analyses()", "rheoscope analyses")
        else:
            advice = Advice(f"rs.{closest}", f"rheoscope analyse {closest}")
        raise RheoscopeError(Message("there is no analysis {name!r}", name=name), advice)
    return getattr(import_module(ANALYSIS_MODULES[name]), name.upper())


@cache
def words_by_name(name: str) -> "Words":
    """What an analysis says in a report: `WORDS` of the file `words.py` in its folder, empty without such a file.

    >>> words_by_name("transport").story[0].name
    'destination'
    """
    from rheoscope.space.words import Words

    folder = ANALYSIS_MODULES[name].rpartition(".")[0]
    return import_module(f"{folder}.words").WORDS if folder and find_spec(f"{folder}.words") else Words()


@cache
def all_claims() -> "tuple[Claim, ...]":
    """The claims of all analyses, in the order of a card: `CLAIMS` of the file `claims.py` in the folder of an analysis.

    >>> all_claims()[0].name
    'similarity'
    """
    return tuple(sorted((claim for claims in _declared("claims") for claim in claims), key=lambda claim: claim.order))


@cache
def published_findings() -> "tuple[PublishedFinding, ...]":
    """Findings of papers that the atlas compares with: `PUBLISHED` of the file `published.py` in the folder of an analysis.

    >>> published_findings()[0].name
    'monotone_energy'
    """
    findings = (finding for findings in _declared("published") for finding in findings)
    return tuple(sorted(findings, key=lambda finding: finding.order))


def _declared(name: str) -> list[Any]:
    """The constant of this name in capitals, from the file of this name in the folder of every analysis that has one."""
    folders = [module.rpartition(".")[0] for module in ANALYSIS_MODULES.values()]
    modules = [import_module(f"{folder}.{name}") for folder in folders if folder and find_spec(f"{folder}.{name}")]
    return [getattr(module, name.upper()) for module in modules]


def analyses() -> "pandas.DataFrame":
    """A table of every analysis: its name, its question and what it needs.

    `needs` is "view" (weights only: `rs.operators(model.view)`), "trace" (one text: `rs.transport(trace)`) or "model" (runs
    the model again: `rs.surgery(model, text)`).

    >>> import rheoscope as rs
    >>> rs.analyses().loc["transport", "needs"]
    'trace'
    """
    import pandas as pd

    declarations = [analysis_by_name(name) for name in ANALYSIS_MODULES]
    columns = {
        "question": [declaration.question for declaration in declarations],
        "needs": [declaration.needs for declaration in declarations],
    }
    return pd.DataFrame(columns, index=pd.Index(ANALYSIS_MODULES, name="name"))
