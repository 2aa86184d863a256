"""Rheoscope: attention as geometry. This page lists every public name; a name is loaded when it is first used.

load                                  a Transformer as operators on one space E: model.view, model.trace(text)
describe                              how a model was interpreted: its formulas, where each matrix lives, the errors of the proof
analyses                              a table of every analysis: its name, its question, what it needs
load_series                           the checkpoints of a training run as a series of models, loaded one at a time
over_series                           any analysis over a series: one result with the axis checkpoint
compare                               two models: which heads changed, where the flows diverge, what each predicts
Monitor                               a training monitor: every head on a fixed batch while a model trains, logs and alarms
story                                 what happens to a text in a model, line by line, with measured numbers and their nulls
card                                  the claims of the seed documents about a model, over many texts: effect, interval, answer
atlas                                 the cards of several models side by side
open_corpus                           a run over a whole corpus (rheoscope corpus run) as xarray and DuckDB
generate                              new tokens with their paths, their logit lens, and the tokens and heads that write them
over_texts                            any analysis over several texts: means, confidence intervals, one null
plot, show, table                     a result as a figure for papers, live in a notebook (a text too), as tidy tables
save_report                           a text in a model as one self-contained page
mechanism, mechanisms, Mechanism      attention mechanisms, by name or composed from parts
nn                                    Attention and MultiHeadAttention as torch modules
attention_gradients                   the backward pass in closed form, with the reversed-attention map
self_attention_gradients              the same with respect to the tokens, split into query, key and value paths
weight_statistics                     entropy, sinks and distances of the weights, without storing the weights
attention_cost, transformer_cost      FLOPs, bytes, parameters, crossover lengths
Pair, read_pairs                      minimal pairs of texts, and a file of them
patch_pairs, circuit_of_pairs         patching and circuits of many pairs, with intervals
path_weights, reversed_map            weights along a path of heads; the gradient of one head's scores
resumable_trace                       the traces of texts, layer by layer in a folder, so that an interrupted run continues
source_model, target_model            the encoder and the decoder of an encoder-decoder as models of one text each
trace_from                            points that another engine wrote, as a Trace, with a proof for each layer
Features                              a sparse dictionary (an autoencoder or a transcoder) of a site of a model
feature_map, feature_quality          which features a head maps to which; the error and the loss of a dictionary on texts
train_features                        a sparse autoencoder, trained on the points of texts
trace_under, Comparisons              the points under an edited M or F; the comparison arms of an edit
dynamics, experiments                 the theory bench: particles under attention, compared with theory
register_with_transformers            every mechanism as attn_implementation="rheoscope:<name>"
RheoscopeError                        the error raised for a user's mistake
"""

import sys
from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import Any

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.notebook_html import THUMBNAIL_RENDERERS

_PUBLIC_MODULES = {
    "Comparisons": "rheoscope.covers.comparison_arms",
    "Features": "rheoscope.running.features",
    "Mechanism": "rheoscope.attention.mechanism",
    "Monitor": "rheoscope.learn.monitor.monitor",
    "RheoscopeError": "rheoscope.shapes",
    "analyses": "rheoscope.catalogue",
    "atlas": "rheoscope.report.atlas",
    "attention_cost": "rheoscope.attention.cost",
    "attention_gradients": "rheoscope.attention.gradient",
    "card": "rheoscope.report.card",
    "compare": "rheoscope.model_comparison.compare",
    "circuit_of_pairs": "rheoscope.covers.circuit.analysis",
    "describe": "rheoscope.running.model_structure",
    "dynamics": "rheoscope.theory.experiments",
    "experiments": "rheoscope.theory.experiments",
    "generate": "rheoscope.flow.generation.generation",
    "feature_map": "rheoscope.covers.feature_map",
    "feature_quality": "rheoscope.covers.feature_quality",
    "load": "rheoscope.opening",
    "load_series": "rheoscope.checkpoint_series",
    "mechanism": "rheoscope.attention.zoo",
    "mechanisms": "rheoscope.attention.zoo",
    "nn": "rheoscope.attention.modules",
    "open_corpus": "rheoscope.corpus.corpus_result",
    "over_series": "rheoscope.checkpoint_series",
    "over_texts": "rheoscope.running.over_texts",
    "Pair": "rheoscope.covers.patch.pairs",
    "patch_pairs": "rheoscope.covers.patch.over_pairs",
    "path_weights": "rheoscope.covers.composition.analysis",
    "plot": "rheoscope.report.draw_result",
    "read_pairs": "rheoscope.covers.patch.pair_files",
    "register_with_transformers": "rheoscope.pretrained.attention_interface",
    "resumable_trace": "rheoscope.running.resumable_trace",
    "reversed_map": "rheoscope.covers.reversed_attention.analysis",
    "save_report": "rheoscope.report.report_page",
    "self_attention_gradients": "rheoscope.attention.gradient",
    "show": "rheoscope.studio.notebook",
    "source_model": "rheoscope.running.pair_sides",
    "story": "rheoscope.report.story",
    "table": "rheoscope.report.tables",
    "target_model": "rheoscope.running.pair_sides",
    "trace_from": "rheoscope.running.external_points",
    "train_features": "rheoscope.learn.feature_training",
    "trace_under": "rheoscope.covers.surgery.analysis",
    "transformer_cost": "rheoscope.attention.cost",
    "weight_statistics": "rheoscope.attention.lower.statistics",
}
"""Public name → module, for every name that is not an analysis. The analyses are in `catalogue.py`."""


THUMBNAIL_RENDERERS["Trace"] = lambda trace: import_module("rheoscope.report.thumbnail").thumbnail(trace)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = version("rheoscope")  # cached: it is read from a file
        return globals()[name]
    if name == "__all__":
        return __dir__()
    modules = ANALYSIS_MODULES | _PUBLIC_MODULES
    if name not in modules:
        raise AttributeError(_unknown_name(name))
    module = import_module(modules[name])
    value = module if name == "nn" else getattr(module, name)
    if isfunction(value):
        from rheoscope.running.argument_checks import (
            with_argument_checks,
        )  # imports torch, as most of these functions do

        value = with_argument_checks(name, value)
    globals()[name] = value
    return value


def _unknown_name(name: str) -> str:
    """The message for a name that the package does not have, with the closest name.

    Tools look for many private names, such as `__wrapped__`. These get no closest name, because the search is slow.
    """
    from rheoscope.messages.closest_name import closest_name

    closest = None if name.startswith("_") else closest_name(name, __dir__())
    advice = "type dir(rheoscope) for all names" if closest is None else f"did you mean {closest!r}?"
    return f"module 'rheoscope' has no attribute {name!r}; {advice}"


def __dir__() -> list[str]:
    return sorted(ANALYSIS_MODULES | _PUBLIC_MODULES)


class _Package(ModuleType):
    """The package. Its docstring lists every analysis with its question, and is built when it is read."""

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        from rheoscope.catalogue import analysis_by_name

        rows = [f"{name:37} {analysis_by_name(name).question}" for name in ANALYSIS_MODULES]
        return "\n".join([vars(self)["__doc__"].rstrip(), "", "The analyses:", *rows])


sys.modules[__name__].__class__ = _Package
