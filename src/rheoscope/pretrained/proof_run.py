"""One run of a network on the texts of its proof: every layer is compared with its View as soon as it has run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from rheoscope.attention.mask import BooleanMask
from rheoscope.attention.position_bias import Bias
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.describe_network import visible_softmax
from rheoscope.pretrained.finder.softmax_calls import SOFTMAX_OPERATIONS
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.pretrained.proof_texts import ProofBatch, ProofPlan
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, Coverage, LayerErrors
from rheoscope.running.loading_stages import Progress
from rheoscope.running.runner import allocate_points, make_traces
from rheoscope.running.stream import record_points
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks, on_turn
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary
from rheoscope.space.trace import Trace

PADDING_UNTESTED = Message("padding (the network reads it)")
EDGES_UNTESTED = Message("window edges (the blocks make their own mask)")
FAR_UNTESTED = Message("far positions (the network ignores position_ids)")


class PaddingError(Exception):
    """The network returns NaN for tokens beside padding."""


@dataclass(eq=False)
class ProofRun:
    """The errors of every layer on every text. A streamed model reads its weights once for each batch."""

    model: Pretrained
    plan: ProofPlan
    report_progress: Progress
    errors: list[LayerErrors] = field(default_factory=list)
    untested: list[Message] = field(default_factory=list)

    def check(self, batch: ProofBatch, forward: Callable[[], Any]) -> None:
        """Run the network on a batch, and compare every layer of every text."""
        model, (n_texts, n) = self.model, batch.positions.shape
        points = allocate_points(model.description, batch.ids.expand(n_texts, n).to(model.device))
        layers = iter(range(model.view.layers))
        n_checks = model.view.layers * sum(len(x.positions) for x in self.plan.batches)

        def check_layer(out: Any) -> None:
            if points.is_cuda:
                torch.cuda.synchronize(points.device)  # the points are copied on a side stream
            weights = weights_by_head(layer_weights.pop(), n).unflatten(0, (n_texts, -1)).to(points.device)
            layer = next(layers)
            with _pop_mode_temporarily():  # without the recorder, which would read every operation of the View
                for text in range(n_texts):
                    self._check_text(batch, text, points[text], layer, weights[text])
            self.report_progress(len(self.errors), n_checks)

        last_taps = [layer_taps[-1] for layer_taps in model.description.layer_taps]
        checks = [on_turn(ModuleHook(tap.module, "out", check_layer), tap.turn, tap.n_turns) for tap in last_taps]
        with (
            visible_softmax(model.network),
            record_points(model.description, points),
            record_layer_weights(model) as layer_weights,
            apply_module_hooks(checks),
            suppress_after(layers),
        ):
            forward()

    def _check_text(self, batch: ProofBatch, text: int, points: Tensor, layer: int, weights: Tensor) -> None:
        """Compare a layer with what the batch gave the network, else with what the network may have made of it."""
        if not bool(batch.is_token[text].all()) and not bool(weights[:, batch.is_token[text]].isfinite().all()):
            raise PaddingError
        errors = list[LayerErrors]()
        for placement in placements(batch, text):
            trace, is_token = (
                placement.trace(self.model, layer, points, batch.ids),
                placement.is_token.to(points.device),
            )
            errors.append(certificate.layer_errors(trace, layer, weights[:, is_token][..., is_token]))
            if certificate.is_explained(errors[-1], self.model.view.dtype):
                self.errors.append(errors[-1])
                self.untested += [reason for reason in placement.untested if reason not in self.untested]
                return
        self.errors.append(errors[0])

    def certificate(self) -> Certificate:
        """The certificate with its coverage; raises if a layer has errors that rounding does not explain."""
        last = self.plan.batches[-1]
        result = certificate.certificate_of(self.model.view, self.errors, len(last.ids), self.model.device)
        positions = set(last.indices.tolist())
        if FAR_UNTESTED not in self.untested:
            positions |= {x for batch in self.plan.batches for x in batch.positions[batch.is_token].tolist()}
        coverage = Coverage(
            positions=tuple(sorted(positions)),
            windows=() if EDGES_UNTESTED in self.untested else self.plan.windows,
            switches=() if FAR_UNTESTED in self.untested else self.plan.switches,
            is_padded=PADDING_UNTESTED not in self.untested and not bool(last.is_token.all()),
            untested=(*self.plan.untested, *self.untested),
        )
        return replace(result, coverage=coverage)


@contextmanager
def suppress_after(layers: Iterator[int]) -> Iterator[None]:
    """Suppress an error of the network behind its last layer, where it may miss the tokens that its blocks did not read."""
    try:
        yield
    except (RheoscopeError, PaddingError):
        raise
    except Exception:
        if next(layers, None) is not None:
            raise


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the tokens of a text are for a View: their places in the mask, their positions, and which of them are no padding.

    `untested` says which of the places that a batch asks for the network does not use.
    """

    is_token: Bool[Tensor, " n"]
    places: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    untested: tuple[Message, ...] = ()

    def heads(self, heads: Heads) -> Heads:
        """The heads of tokens at these places."""
        places, positions = self.places[self.is_token], self.positions[self.is_token]
        first = torch.arange(len(places))
        if torch.equal(places, first) and torch.equal(positions, first):
            return heads
        mechanism, places = heads.mechanism, places.to(heads.W_O.device)
        position, bias = mechanism.position, mechanism.position.bias(places, places)
        if isinstance(position, ModelRotary):
            rotate = position.rotate
            position = ModelRotary(lambda x, rows: rotate(x, positions.to(rows.device)[rows]))
        elif bias is not None:
            position = Bias(bias)
        mask = BooleanMask(mechanism.mask(places, places))
        return replace(heads, mechanism=replace(mechanism, mask=mask, position=position))

    def trace(self, model: Pretrained, layer: int, points: Float[Tensor, "p n d"], ids: Int[Tensor, " n"]) -> Trace:
        """The tokens of a text, for a View whose layer has them at these places."""
        token_rows = self.is_token.nonzero().flatten()
        ids, points = ids[token_rows], points[None].index_select(2, token_rows.to(points.device))
        layers = list(model.view.layer_heads)
        layers[layer] = self.heads(layers[layer])
        view = replace(model.view, layer_heads=tuple(layers))
        return make_traces(view, model.description, points, [ids], [[""] * len(ids)], [""])[0]


def placements(batch: ProofBatch, text: int) -> Iterator[Placement]:
    """What a network may make of a text, first what the batch asks for.

    A network may read padding, its blocks may make their own masks, and it may ignore positions. Each is a different computation, so
    a wrong View agrees with none of them.
    """
    is_token, first = batch.is_token[text], torch.arange(len(batch.ids))
    n_before = int(is_token.int().argmax())  # chunks begin at the first token that is no padding
    for tokens, places, positions in product(
        _options(is_token, PADDING_UNTESTED, torch.ones_like(is_token)),
        _options(batch.indices - n_before, EDGES_UNTESTED, first - n_before),
        _options(batch.positions[text], FAR_UNTESTED, batch.indices, first),
    ):
        yield Placement(tokens[0], places[0], positions[0], (*tokens[1], *places[1], *positions[1]))


def _options(planned: Tensor, reason: Message, *others: Tensor) -> list[tuple[Tensor, tuple[Message, ...]]]:
    """What a batch asks for, and what else a network may use, with the reason that leaves untested."""
    return [(planned, ()), *((x, (reason,)) for x in others if not torch.equal(x, planned))]


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
