"""Attention weights computed by Hugging Face's eager attention: the independent side of the certificate."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rheoscope.pretrained.build_view import describe_network
from rheoscope.pretrained.effective_weights import dequantise_projections
from rheoscope.pretrained.feature_model import FeatureModel
from rheoscope.pretrained.feature_pair import FeaturePair
from rheoscope.pretrained.finder.describe_network import visible_softmax
from rheoscope.pretrained.finder.describe_pair import pair_ids
from rheoscope.pretrained.finder.softmax_calls import SOFTMAX_OPERATIONS
from rheoscope.pretrained.hf_model import Pretrained, PretrainedPair
from rheoscope.pretrained.network_inputs import random_features
from rheoscope.pretrained.quantised_weights import copy_modules, quantisation_method, quantised_modules
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, LayerErrors, probe_ids
from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.running.runner import allocate_points, make_traces
from rheoscope.running.stream import record_points
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks, on_turn
from rheoscope.space.trace import Trace


@torch.no_grad()
def certify(model: Pretrained, progress: Progress | None = None) -> Certificate:
    """Compare the View with the model's eager attention on a few tokens, and raise if they differ.

    For a quantised model, the View is compared with the model whose projections are dequantised, and the gap to the quantised run is
    measured on the same tokens.
    """
    if isinstance(model, PretrainedPair):
        return certify_pair(model, probe_ids(model.view))
    method = quantisation_method(model.network)
    if next(quantised_modules(model.network), None) is None:
        return replace(_certify_run(model, progress_stage(progress, 0, 100)), stored_as=method)
    result = _certify_run(with_dequantised_projections(model), progress_stage(progress, 0, 90))
    return certificate.certify_quantised(result, model.trace(probe_ids(model.view)), method)


def _certify_run(model: Pretrained, report_progress: Progress) -> Certificate:
    """Check each layer as soon as it has run, so that a streamed model reads its weights once."""
    ids, inputs = probe(model)
    points = allocate_points(model.description, ids[None].to(model.device))
    trace = make_traces(model.view, model.description, points, [ids], [[""] * len(ids)], [""])[0]
    errors = list[LayerErrors]()

    def check_layer(out: Any) -> None:
        if points.is_cuda:
            torch.cuda.synchronize(points.device)  # the points are copied on a side stream
        weights = weights_by_head(layer_weights.pop(), len(ids)).to(points.device)
        errors.append(certificate.layer_errors(trace, len(errors), weights))
        report_progress(len(errors), model.view.layers)

    last_taps = [layer_taps[-1] for layer_taps in model.description.layer_taps]
    checks = [on_turn(ModuleHook(tap.module, "out", check_layer), tap.turn, tap.n_turns) for tap in last_taps]
    with (
        visible_softmax(model.network),
        record_points(model.description, points),
        record_layer_weights(model) as layer_weights,
        apply_module_hooks(checks),
    ):
        model.forward_points(inputs, None)
    return certificate.certificate_of(trace, errors)


@contextmanager
def record_layer_weights(model: Pretrained) -> Iterator[list[Tensor]]:
    """Inside, the result of the last softmax in the attention of every layer. Softmaxes of other blocks are left out."""
    recorder, layer_weights = SoftmaxRecorder(), list[Tensor]()

    def keep_weights(out: Any) -> None:
        layer_weights.append(recorder.weights.pop())

    last_taps = [layer_taps[-1] for layer_taps in model.description.layer_taps]
    hooks = [
        on_turn(ModuleHook(module, "out", keep_weights), tap.turn, tap.n_turns)
        for tap, module in zip(last_taps, model.description.attention_modules, strict=True)
    ]
    with apply_module_hooks(hooks), recorder:
        yield layer_weights


def probe(model: Pretrained) -> tuple[Tensor, Tensor]:
    """The ids of the tokens on which a model is certified, and what the network reads: a batch of these ids, or random features."""
    if isinstance(model, FeatureModel):
        features = random_features(model.network, seed=1)
        return torch.arange(model.n_tokens(features[0])), features
    ids = probe_ids(model.view)
    return ids, ids[None].to(model.device)


def with_dequantised_projections(model: Pretrained) -> Pretrained:
    """The same model with plain linear layers in place of its quantised attention projections. All other modules share their weights."""
    network = copy_modules(model.network)
    names = {id(module): name for name, module in model.network.named_modules()}
    for attention in model.description.attention_modules:
        dequantise_projections(network.get_submodule(names[id(attention)]), model.view.dtype)
    description = describe_network(network)
    return replace(
        model, network=network, description=description, view=replace(model.view, layer_heads=description.layer_heads)
    )


@torch.no_grad()
def certify_pair(model: PretrainedPair, ids: Tensor) -> Certificate:
    """Certify encoder, decoder and cross-attention in one run on a source and on the same tokens reversed, or on random features."""
    source, target = pair_ids(ids)
    if isinstance(model, FeaturePair):
        source = random_features(model.network, seed=1)[0]
    with visible_softmax(model.network), SoftmaxRecorder() as recorder:
        linked = model.trace((source, target))
    weights: dict[tuple[int, ...], list[Tensor]] = {}
    for x in recorder.weights:
        weights.setdefault(tuple(x.shape[-2:]), []).append(weights_by_head(x, x.shape[-1]))
    s, t = len(linked.source), len(linked.target)
    return certificate.combine_certificates(
        [
            certificate.certify(linked.source, weights.get((s, s), [])),
            certificate.certify(linked.target, weights.get((t, t), [])),
            certificate.certify_cross_attention(linked.target, weights.get((t, s), [])),
        ]
    )


class SoftmaxRecorder(TorchDispatchMode):
    """Keeps the result of every softmax over keys that runs inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.__name__.split(".")[0] in SOFTMAX_OPERATIONS and out.ndim >= 3:
            self.weights.append(out)
        return out


def weights_by_head(softmax: Float[Tensor, "*b n s"], n_keys: int) -> Float[Tensor, "h n keys"]:
    """The result of a softmax as weights of every head, without the weight of a sink."""
    return softmax.reshape(-1, *softmax.shape[-2:])[..., :n_keys]


@torch.no_grad()
def trace_eager(model: Pretrained, ids: Tensor) -> tuple[Trace, list[Tensor]]:
    """One run with eager attention: its points, and the weights (h, n, n) of every layer, as its softmaxes return them."""
    with visible_softmax(model.network), record_layer_weights(model) as weights:
        trace = model.trace(ids)
    return trace, [weights_by_head(x, len(ids)).to(model.device) for x in weights]
