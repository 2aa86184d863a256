"""What the running modules themselves compute: the independent side of the certificate."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rheoscope.models.build_view import projected
from rheoscope.models.trained_model import Trained, Translating
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, probe
from rheoscope.running.encoder_decoder import Linked
from rheoscope.space.trace import Trace

Weigh = Callable[[list[Tensor], Any, tuple[Any, ...], Tensor], None]


def certify(model: Trained | Translating) -> Certificate:
    """The View against the running modules on eight tokens; refused where they differ."""
    ids = probe(model.view)
    if isinstance(model, Trained):
        return certificate.certify(*attended(model, ids))
    return certify_linked(model, ids)


def attended(model: Trained, ids: Int[Tensor, " n"]) -> tuple[Trace, list[Float[Tensor, "h n n"]]]:
    """One run: its points, and the weights of every layer by the module itself."""
    with weighing(model.description.attentions, _weigh) as own:
        return model.trace(ids), own


def certify_linked(model: Translating, ids: Int[Tensor, " n"]) -> Certificate:
    """The encoder, the decoder and cross attention between them, in one run on a source and its tokens backwards."""
    with (
        weighing(model.source_description.attentions, _weigh) as source,
        weighing(model.description.attentions, _weigh) as target,
        weighing(model.description.crosses, _weigh_across) as across,
    ):
        linked: Linked = model.trace((ids, ids.flip(0)[: max(1, len(ids) - 2)]))
    return certificate.together(
        [
            certificate.certify(linked.source, source),
            certificate.certify(linked.target, target),
            certificate.certify_across(linked.target, across),
        ]
    )


@contextmanager
def weighing(modules: Sequence[nn.Module], weigh: Weigh) -> Iterator[list[Tensor]]:
    """While a model runs, the weights of every layer by the module itself, from what it was given in that run."""
    own: list[Tensor] = []
    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.callback(module.register_forward_hook(partial(weigh, own)).remove)
        yield own


def _weigh_across(own: list[Tensor], cross: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, memory, mask, *_ = args
    own.append(cross.mechanism.current().weights(projected(cross, u)[0], cross.remember(memory)[0], mask)[0])


def _weigh(own: list[Tensor], attention: Any, args: tuple[Any, ...], out: Tensor) -> None:
    u, mask, turning, position, *_ = args
    q, k, _ = attention.project(u, turning)
    mechanism = attention.mechanism.current()
    own.append((mechanism if position is None else replace(mechanism, position=position)).weights(q, k, mask)[0])
