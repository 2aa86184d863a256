"""Every analysis by name: one table, the only registry. What is said of all analyses is computed from it.

A row is a public name and the file that declares it; the file is read when the analysis is first asked for. The function
`transport` and its declaration `TRANSPORT` live in `flow/transport.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

    from rheoscope.space.analysis import Analysis

TABLE: dict[str, str] = {
    "frames": "rheoscope.flow.frames",
    "readout": "rheoscope.flow.readout",
    "trajectory": "rheoscope.flow.trajectory",
    "transport": "rheoscope.flow.transport",
    "geometry_kept": "rheoscope.flow.geometry_kept",
    "clusters": "rheoscope.flow.clusters",
    "density_clusters": "rheoscope.flow.density_clusters",
    "purity": "rheoscope.flow.purity",
    "senses": "rheoscope.flow.senses",
    "relatedness": "rheoscope.flow.relatedness",
    "charts": "rheoscope.flow.charts",
    "massive_tokens": "rheoscope.flow.massive_tokens",
    "energy": "rheoscope.flow.energy",
    "scores": "rheoscope.covers.scores",
    "agreement": "rheoscope.covers.agreement",
    "distortion": "rheoscope.covers.distortion",
    "distorted_pairs": "rheoscope.covers.distorted_pairs",
    "stack": "rheoscope.covers.stack",
    "operators": "rheoscope.covers.operators",
    "composition": "rheoscope.covers.composition",
    "relation_swap": "rheoscope.covers.relation_swap",
    "head_types": "rheoscope.covers.head_types",
    "head_statistics": "rheoscope.covers.head_statistics",
    "score_attribution": "rheoscope.covers.score_attribution",
    "prefix_stability": "rheoscope.covers.prefix_stability",
    "rollout": "rheoscope.covers.rollout",
    "heat": "rheoscope.covers.heat",
    "fixed_point": "rheoscope.covers.fixed_point",
    "boundary": "rheoscope.covers.boundary",
    "reversed_attention": "rheoscope.covers.reversed_attention",
    "attention_patching": "rheoscope.covers.attention_patching",
    "surgery": "rheoscope.covers.surgery",
    "decay": "rheoscope.covers.decay",
    "faithfulness": "rheoscope.covers.faithfulness",
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
