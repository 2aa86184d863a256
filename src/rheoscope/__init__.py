"""Rheoscope: attention as geometry. This page is the map; a name is loaded when it is first used.

mechanism, mechanisms, Mechanism      what attention computes, by name or composed from parts
nn                                    Attention and MultiHeadAttention as torch modules
attention_gradients                   the backward pass in closed form, with the reversed-attention map
weight_statistics                     entropy, sinks, distances of the weights, never holding them
attention_cost, transformer_cost      FLOPs, bytes, parameters, crossover lengths
energy                                is attention a gradient flow? energy, gradient, what stands between
clusters                              do tokens gather: ranks, dimension, clusters at an angle
density_clusters                      clusters by HDBSCAN, no angle to choose
massive                               which tokens are left out, how large, in which coordinates
purity                                what clusters are made of, against permuted names
dynamics, experiments                 the theory bench: particles under attention, beside what theory gives
agreement                             does a head read similarity in E? scores against cosines, beside random heads and an untrained model
agreement_over_texts                  the same on several texts: intervals, one null, halves against each other
prefix_stability                      does a head score the same two tokens alike, whatever came before?
composition, path_weights             which heads write what later heads read; weights along a path of heads
distortion, torn                      what the projections of a head keep of the tokens' geometry, and which pairs they change
boundary                              the same tokens after other first tokens: do they settle elsewhere?
fixed_point                           would a layer settle? residuals, repeated application, its Jacobian
head_types                            previous-token, induction, duplicate-token, sink, local, uniform
kept                                  how much of the tokens' geometry survives
load                                  a pretrained Transformer as operators on one space E
operators                             every head as an operator: symmetry, direction, rank, copying
rollout                               attention multiplied through the layers, against the true derivative
stack                                 how much of the geometry the heads of a layer see together
scores                                what the scores of every head are made of: form, mean, biases
reversed_attention, reversed_map      how the loss wants every score to change (R)
surgery, operated                     what another M or F costs; the points under the change
surgery_by_head                       the same for every head alone
decay                                 what later layers make of a change, against noise of the same size
pieces, Against                       texts cut to a length; what a change is measured against
attention_patching                    the loss when weights move along the gradient of the scores
faithfulness                          which ranking of heads finds those that matter
why                                   which components make a score, exactly
readout                               what every step of a token predicts (the logit lens)
trajectory                            how every token moves: speed, path, straightness, turning
transport                             is keeping identity the cheapest way to move the cloud? exact W₂
plot, interactive                     what an analysis found, as a figure for papers, for notebooks
save_report                           a text in a model as one self-contained page
register_with_transformers            every mechanism as attn_implementation="rheoscope:<name>"
RheoscopeError                        the one error that a user's mistake raises
"""

from importlib import import_module
from typing import Any

_HOME = {
    "Against": "rheoscope.covers.against",
    "Mechanism": "rheoscope.attention.mechanism",
    "RheoscopeError": "rheoscope.shapes",
    "agreement": "rheoscope.covers.agreement",
    "agreement_over_texts": "rheoscope.covers.agreement_over_texts",
    "attention_cost": "rheoscope.attention.cost",
    "attention_gradients": "rheoscope.attention.gradient",
    "attention_patching": "rheoscope.covers.patching",
    "boundary": "rheoscope.covers.boundary",
    "clusters": "rheoscope.flow.clusters",
    "composition": "rheoscope.covers.composition",
    "decay": "rheoscope.covers.decay",
    "density_clusters": "rheoscope.flow.density",
    "distortion": "rheoscope.covers.distortion",
    "dynamics": "rheoscope.flow.dynamics.bench",
    "energy": "rheoscope.flow.energy",
    "experiments": "rheoscope.flow.dynamics.bench",
    "faithfulness": "rheoscope.covers.faithfulness",
    "fixed_point": "rheoscope.covers.fixed_point",
    "head_types": "rheoscope.covers.head_types",
    "interactive": "rheoscope.report.drawing",
    "kept": "rheoscope.flow.kept",
    "load": "rheoscope.opening",
    "massive": "rheoscope.flow.massive",
    "mechanism": "rheoscope.attention.zoo",
    "mechanisms": "rheoscope.attention.zoo",
    "nn": "rheoscope.attention.modules",
    "operated": "rheoscope.covers.surgery",
    "operators": "rheoscope.covers.operators",
    "path_weights": "rheoscope.covers.composition",
    "pieces": "rheoscope.covers.pieces",
    "plot": "rheoscope.report.drawing",
    "prefix_stability": "rheoscope.covers.prefix_stability",
    "purity": "rheoscope.flow.purity",
    "readout": "rheoscope.flow.readout",
    "register_with_transformers": "rheoscope.pretrained.interface",
    "reversed_attention": "rheoscope.covers.reversed_attention",
    "reversed_map": "rheoscope.covers.reversed_attention",
    "rollout": "rheoscope.covers.rollout",
    "save_report": "rheoscope.report.flow_page",
    "scores": "rheoscope.covers.scores",
    "stack": "rheoscope.covers.stack",
    "surgery": "rheoscope.covers.surgery",
    "surgery_by_head": "rheoscope.covers.by_head",
    "torn": "rheoscope.covers.torn",
    "trajectory": "rheoscope.flow.trajectory",
    "transformer_cost": "rheoscope.attention.cost",
    "transport": "rheoscope.flow.transport",
    "weight_statistics": "rheoscope.attention.lower.statistics",
    "why": "rheoscope.covers.why",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("rheoscope")
    if name not in _HOME:
        raise AttributeError(f"module 'rheoscope' has no name {name!r}; it has {', '.join(__all__)}")
    home = import_module(_HOME[name])
    value = home if name == "nn" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
