"""Attention weights computed by the running modules: the independent side of the certificate."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rheoscope.models.build_view import project_cross
from rheoscope.models.trained_model import NativeTransformer, NativeTranslator
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, probe_ids
from rheoscope.running.encoder_decoder import LinkedTraces
from rheoscope.space.trace import Trace

WeightsHook = Callable[[list[Tensor], Any, tuple[Any, ...], Tensor], None]


def certify(model: NativeTransformer | NativeTranslator) -> Certificate:
    """Compare the View with the running modules on a few tokens, and raise if they differ."""
    ids = probe_ids(model.view)
    if isinstance(model, NativeTransformer):
        return certificate.certify(*trace_and_weights(model, ids))
    return certify_linked(model, ids)


def trace_and_weights(model: NativeTransformer, ids: Int[Tensor, " n"]) -> tuple[Trace, list[Float[Tensor, "h n n"]]]:
    """One run: its points, and the weights of every layer as the module computes them."""
    with record_weights(model.description.attention_modules, _self_weights_hook) as weights:
        return model.trace(ids), weights


def certify_linked(model: NativeTranslator, ids: Int[Tensor, " n"]) -> Certificate:
    """Certify encoder, decoder and cross attention in one run on a source and on the same tokens reversed."""
    with (
        record_weights(model.source_description.attention_modules, _self_weights_hook) as source_weights,
        record_weights(model.description.attention_modules, _self_weights_hook) as target_weights,
        record_weights(model.description.cross_attention_modules, _cross_weights_hook) as cross_weights,
    ):
        linked: LinkedTraces = model.trace((ids, ids.flip(0)[: max(1, len(ids) - 2)]))
    return certificate.combine_certificates(
        [
            certificate.certify(linked.source, source_weights),
            certificate.certify(linked.target, target_weights),
            certificate.certify_cross_attention(linked.target, cross_weights),
        ]
    )


@contextmanager
def record_weights(modules: Sequence[nn.Module], hook: WeightsHook) -> Iterator[list[Tensor]]:
    """While a model runs, record the attention weights of every layer as the module computes them."""
    weights: list[Tensor] = []
    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.callback(module.register_forward_hook(partial(hook, weights)).remove)
        yield weights


def _cross_weights_hook(weights: list[Tensor], cross: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, memory, mask, *_ = args
    weights.append(
        cross.mechanism.current_mechanism().weights(
            project_cross(cross, u)[0], cross.source_keys_values(memory)[0], mask
        )[0]
    )


def _self_weights_hook(weights: list[Tensor], attention: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, mask, rotation, position, *_ = args
    q, k, _ = attention.project(u, rotation)
    mechanism = attention.mechanism.current_mechanism()
    weights.append((mechanism if position is None else replace(mechanism, position=position)).weights(q, k, mask)[0])
