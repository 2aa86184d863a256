"""The certificate of a Hugging Face model: its View against its own eager attention."""

import textwrap
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.build_view import describe_network
from rheoscope.pretrained.effective_weights import dequantise_projections
from rheoscope.pretrained.feature_model import FeatureModel
from rheoscope.pretrained.feature_pair import FeaturePair
from rheoscope.pretrained.finder.describe_network import visible_softmax
from rheoscope.pretrained.finder.describe_pair import pair_ids
from rheoscope.pretrained.hf_model import Pretrained, PretrainedPair
from rheoscope.pretrained.network_inputs import random_features
from rheoscope.pretrained.proof_run import (
    PaddingError,
    ProofRun,
    record_layer_weights,
    weights_by_head,
)
from rheoscope.pretrained.proof_texts import ProofPlan, plain_batch, plan_proof, selected_tokens
from rheoscope.pretrained.quantised_weights import copy_modules, quantisation_method, quantised_modules
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, Coverage, probe_ids
from rheoscope.running.loading_stages import Progress, progress_stage
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace

FEATURES_UNTESTED = (Message("padding and far positions (the network reads features of one size)"),)
PAIR_UNTESTED = (Message("padding and far positions (an encoder–decoder is certified on one pair)"),)
REASON_WIDTH = 80
"""The longest reason that is quoted from a network."""


@torch.no_grad()
def certify(model: Pretrained, progress: Progress | None = None) -> Certificate:
    """Compare the View with the model's eager attention on a few tokens, and raise if they differ.

    For a quantised model, the View is compared with the model whose projections are dequantised, and the gap to the quantised run is
    measured on the same tokens.
    """
    if isinstance(model, PretrainedPair):
        return certify_pair(model, probe_ids(model.view))
    method = quantisation_method(model.network)
    if not method or next(quantised_modules(model.network), None) is None:
        return replace(_certify_run(model, progress_stage(progress, 0, 100)), stored_as=method)
    result = _certify_run(with_dequantised_projections(model), progress_stage(progress, 0, 90))
    return certificate.certify_quantised(result, model.trace(probe_ids(model.view)), method)


def _certify_run(model: Pretrained, report_progress: Progress) -> Certificate:
    """Certify a model on all texts of its proof. Where the network refuses them, one plain text remains."""
    if isinstance(model, FeatureModel):
        features = random_features(model.network, seed=1)
        batch = plain_batch(torch.arange(model.n_tokens(features[0])))
        run = ProofRun(model, ProofPlan((batch,), untested=FEATURES_UNTESTED), report_progress)
        run.check(batch, lambda: model.forward_points(features, None))
        return run.certificate()
    plan = plan_proof(model)
    try:
        try:
            return certify_texts(model, plan, report_progress)
        except PaddingError:  # eager attention in float64 has NaN where a query sees no key
            return certify_texts(model, plan.without_left_padding, report_progress)
    except RheoscopeError:
        raise
    except Exception as error:  # a network may refuse padding or positions in any way
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", REASON_WIDTH, placeholder=" …")
        untested = (Message("padding and far positions ({reason})", reason=reason),)
        plan = ProofPlan((plain_batch(probe_ids(model.view)),), untested=untested)
        return certify_texts(model, plan, report_progress)


@torch.no_grad()
def certify_texts(model: Pretrained, plan: ProofPlan, report_progress: Progress) -> Certificate:
    """Certify a model on the texts of a plan."""
    run = ProofRun(model, plan, report_progress)
    for batch in plan.batches:
        forward = partial(model.network.base_model, **batch.inputs(model.device))
        with selected_tokens(model.network, model.description, batch):
            run.check(batch, forward)
    return run.certificate()


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
    encoder, decoder = model.source_description, model.description
    with (
        visible_softmax(model.network),
        record_layer_weights(model.network, encoder, encoder.attention_modules) as source_weights,
        record_layer_weights(model.network, decoder, decoder.attention_modules) as target_weights,
        record_layer_weights(model.network, decoder, decoder.cross_attention_modules) as cross_weights,
    ):
        linked = model.trace((source, target))
    s, t = len(linked.source), len(linked.target)
    result = certificate.combine_certificates(
        [
            certificate.certify(linked.source, [weights_by_head(x, s) for x in source_weights]),
            certificate.certify(linked.target, [weights_by_head(x, t) for x in target_weights]),
            certificate.certify_cross_attention(linked.target, [weights_by_head(x, s) for x in cross_weights]),
        ]
    )
    return replace(result, coverage=Coverage(tuple(range(max(s, t))), untested=PAIR_UNTESTED))


@torch.no_grad()
def trace_eager(model: Pretrained, ids: Tensor) -> tuple[Trace, list[Tensor]]:
    """One run with eager attention: its points, and the weights (h, n, n) of every layer, as its softmaxes return them."""
    with (
        visible_softmax(model.network),
        record_layer_weights(model.network, model.description, model.description.attention_modules) as weights,
    ):
        trace = model.trace(ids)
    return trace, [weights_by_head(x, len(ids)).to(model.device) for x in weights]
