"""Every analysis by name: one table, the only registry. What is said of all analyses is computed from it.

A row is a public name and the file that declares it; the file is read when the analysis is first asked for. The function
`transport` and its declaration `TRANSPORT` live in `flow/transport/analysis.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

    from rheoscope.space.analysis import Analysis

TABLE: dict[str, str] = {
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
    "surgery": "rheoscope.covers.surgery.analysis",
    "decay": "rheoscope.covers.decay.analysis",
    "faithfulness": "rheoscope.covers.faithfulness.analysis",
}
"""Public name → file, in the order in which people read them."""


def names() -> list[str]:
    """Every analysis, in the order of the table."""
    return list(TABLE)


def analysis(name: str) -> "Analysis":
    """The declaration of an analysis, by its public name.

    >>> analysis("transport").needs
    'trace'
    """
    if name not in TABLE:
        from rheoscope.shapes import RheoscopeError  # with torch, which a look at the table does not need

        raise RheoscopeError(f"there is no analysis {name!r}; type one of {', '.join(TABLE)}")
    return getattr(import_module(TABLE[name]), name.upper())


def analyses() -> "pandas.DataFrame":
    """Every analysis that can be asked: its name, the question it answers and what it needs.

    `needs` is "view" (weights alone: `rs.operators(model.view)`), "trace" (one text: `rs.transport(trace)`) or "model" (runs
    the model again: `rs.surgery(model, text)`).

    >>> import rheoscope as rs
    >>> rs.analyses().loc["transport", "needs"]
    'trace'
    """
    import pandas as pd

    rows = [analysis(name) for name in TABLE]
    table = {"question": [one.question for one in rows], "needs": [one.needs for one in rows]}
    return pd.DataFrame(table, index=pd.Index(TABLE, name="name"))
