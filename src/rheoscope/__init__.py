"""Rheoscope: attention as geometry. This page is the map; a name is loaded when it is first used.

load                                  a Transformer as operators on one space E: model.view, model.trace(text)
analyses                              every analysis: its name, its question, what it needs
verdicts                              seven questions to a text in a model: yes, no or cannot tell, each beside its null
open_corpus                           a run over a whole corpus (rheoscope corpus run) as xarray and DuckDB
over_texts                            any analysis over several texts: means, intervals, one null
plot, show, table                     what an analysis found: a figure for papers, alive in a notebook (a text too), as tidy tables
save_report                           a text in a model as one self-contained page
mechanism, mechanisms, Mechanism      what attention computes, by name or composed from parts
nn                                    Attention and MultiHeadAttention as torch modules
attention_gradients                   the backward pass in closed form, with the reversed-attention map
self_attention_gradients              the same to the tokens: what each is moved by as query, as key and as value
weight_statistics                     entropy, sinks, distances of the weights, never holding them
attention_cost, transformer_cost      FLOPs, bytes, parameters, crossover lengths
path_weights, reversed_map            weights along a path of heads; the gradient of one head's scores
trace_under, Against                  the points under a changed M or F; what a change is measured against
dynamics, experiments                 the theory bench: particles under attention, beside what theory gives
register_with_transformers            every mechanism as attn_implementation="rheoscope:<name>"
RheoscopeError                        the one error that a user's mistake raises
"""

import sys
from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import Any

from rheoscope.catalogue import TABLE
from rheoscope.notebook_html import DRAWN_BY

_HOME = {
    "Against": "rheoscope.covers.comparison_arms",
    "Mechanism": "rheoscope.attention.mechanism",
    "RheoscopeError": "rheoscope.shapes",
    "analyses": "rheoscope.catalogue",
    "attention_cost": "rheoscope.attention.cost",
    "attention_gradients": "rheoscope.attention.gradient",
    "dynamics": "rheoscope.theory.experiments",
    "experiments": "rheoscope.theory.experiments",
    "load": "rheoscope.opening",
    "mechanism": "rheoscope.attention.zoo",
    "mechanisms": "rheoscope.attention.zoo",
    "nn": "rheoscope.attention.modules",
    "open_corpus": "rheoscope.corpus.corpus_result",
    "over_texts": "rheoscope.running.over_texts",
    "path_weights": "rheoscope.covers.composition.analysis",
    "plot": "rheoscope.report.draw_result",
    "register_with_transformers": "rheoscope.pretrained.attention_interface",
    "reversed_map": "rheoscope.covers.reversed_attention.analysis",
    "save_report": "rheoscope.report.report_page",
    "self_attention_gradients": "rheoscope.attention.gradient",
    "show": "rheoscope.studio.notebook",
    "table": "rheoscope.report.tables",
    "trace_under": "rheoscope.covers.surgery.analysis",
    "transformer_cost": "rheoscope.attention.cost",
    "verdicts": "rheoscope.report.verdicts",
    "weight_statistics": "rheoscope.attention.lower.statistics",
}
"""Public name → file, of what is no analysis; the analyses are in `catalogue.py`."""


DRAWN_BY["Trace"] = lambda trace: import_module("rheoscope.report.thumbnail").thumbnail(trace)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = version("rheoscope")  # read from a file: once
        return globals()[name]
    if name == "__all__":
        return __dir__()
    homes = TABLE | _HOME
    if name not in homes:
        raise AttributeError(f"module 'rheoscope' has no name {name!r}; it has {', '.join(sorted(homes))}")
    home = import_module(homes[name])
    value = home if name == "nn" else getattr(home, name)
    if isfunction(value):
        from rheoscope.running.argument_checks import looking_first  # with torch, which most of these functions need

        value = looking_first(name, value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(TABLE | _HOME)


class _Package(ModuleType):
    """The package, whose page lists every analysis of the table with its question; they are read when someone looks."""

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from rheoscope.catalogue import analysis

        rows = [f"{name:37} {analysis(name).question}" for name in TABLE]
        return "\n".join([vars(self)["__doc__"].rstrip(), "", "The analyses:", *rows])


sys.modules[__name__].__class__ = _Package
