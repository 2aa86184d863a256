"""One run of a network on the texts of its proof: every layer is compared with its View as soon as it has run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rheoscope.attention.mask import BooleanMask
from rheoscope.attention.position_bias import Bias
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.describe_network import visible_softmax
from rheoscope.pretrained.finder.softmax_calls import SOFTMAX_OPERATIONS
from rheoscope.pretrained.hf_model import Pretrained
from rheoscope.pretrained.packed_patches import is_packed
from rheoscope.pretrained.proof_texts import ProofBatch, ProofPlan
from rheoscope.running import certificate
from rheoscope.running.certificate import Certificate, Coverage, LayerErrors, Texts
from rheoscope.running.loading_stages import Progress
from rheoscope.running.runner import allocate_points
from rheoscope.running.stream import ModelDescription, record_points
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks, on_turn
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model_parts import ModelRotary

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
    n_checks: int = 0

    def check(self, batch: ProofBatch, forward: Callable[[], Any]) -> None:
        """Run the network on a batch, and compare every layer of every text."""
        model, (n_texts, n) = self.model, batch.positions.shape
        points = allocate_points(model.description, batch.ids.expand(n_texts, n).to(model.device))
        layers = iter(range(model.view.layers))
        planned = next(placements(batch, range(n_texts)))

        def check_layer(out: Any) -> None:
            if points.is_cuda:
                torch.cuda.synchronize(points.device)  # the points are copied on a side stream
            weights = weights_by_head(layer_weights.pop(), n).unflatten(0, (n_texts, -1)).to(points.device)
            self._check_layer(batch, planned, next(layers), points, weights)

        last_taps = [layer_taps[-1] for layer_taps in model.description.layer_taps]
        checks = [on_turn(ModuleHook(tap.module, "out", check_layer), tap.turn, tap.n_turns) for tap in last_taps]
        with (
            visible_softmax(model.network),
            record_points(model.description, points),
            record_layer_weights(
                model.network, model.description, model.description.attention_modules
            ) as layer_weights,
            apply_module_hooks(checks),
            suppress_after(layers),
        ):
            forward()

    def _check_layer(
        self, batch: ProofBatch, planned: "Placement", layer: int, points: Tensor, weights: Tensor
    ) -> None:
        """Compare a layer on all texts at once with what the batch gave the network, else each text with what it may have made of it."""
        errors = planned.errors(self.model, layer, points, weights)
        if certificate.is_explained(errors, self.model.view.dtype):
            self.errors.append(errors)
        else:
            for text in range(len(weights)):
                self._check_text(batch, text, layer, points, weights)
        self.n_checks += 1
        self.report_progress(self.n_checks, self.model.view.layers * len(self.plan.batches))

    def _check_text(self, batch: ProofBatch, text: int, layer: int, points: Tensor, weights: Tensor) -> None:
        is_token = batch.is_token[text]
        if not bool(is_token.all()) and not bool(weights[text][:, is_token].isfinite().all()):
            raise PaddingError
        errors = list[LayerErrors]()
        for placement in placements(batch, [text]):
            errors.append(placement.errors(self.model, layer, points, weights))
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
    """The tokens of some texts of a batch as one cloud, in which every token sees those of its own text.

    Token i is row `rows[i]` of text `texts[i]`. It is at `places[i]` in the mask and at `positions[i]`. `n_tokens` are the sizes of
    the texts. `untested` says which of the places that a batch asks for the network does not use.
    """

    texts: Int[Tensor, " n"]
    rows: Int[Tensor, " n"]
    places: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    n_tokens: list[int]
    untested: tuple[Message, ...] = ()

    def heads(self, heads: Heads) -> Heads:
        """The heads of tokens at these places."""
        if self.is_plain:
            return heads
        mechanism, places = heads.mechanism, self.places.to(heads.W_O.device)
        position, bias = mechanism.position, mechanism.position.bias(places, places)
        if isinstance(position, ModelRotary):
            rotate, positions = position.rotate, self.positions
            position = ModelRotary(lambda x, tokens: rotate(x, positions.to(tokens.device)[tokens]))
        elif bias is not None:
            position = Bias(bias)
        mask = BooleanMask(mechanism.mask(places, places) & self.is_same_text.to(places.device))
        return replace(heads, mechanism=replace(mechanism, mask=mask, position=position))

    @cached_property
    def is_plain(self) -> bool:
        """Whether the tokens are one text at its first positions."""
        first = torch.arange(len(self.places))
        return len(self.n_tokens) == 1 and torch.equal(self.places, first) and torch.equal(self.positions, first)

    @cached_property
    def is_same_text(self) -> Bool[Tensor, "n n"]:
        return self.texts[:, None] == self.texts

    @cached_property
    def texts_in_cloud(self) -> Texts:
        """What relates the weights of this cloud to those of the network."""
        queries, keys = self.is_same_text.nonzero().unbind(1)
        return Texts(self.n_tokens, (queries, keys, self.rows[keys]))

    def errors(
        self, model: Pretrained, layer: int, points: Float[Tensor, "t p n d"], weights: Float[Tensor, "t h n n"]
    ) -> LayerErrors:
        """The errors of a layer on these tokens."""
        input_step = len(model.description.layer_taps[0]) * layer
        before, after = (points[self.texts, step, self.rows] for step in (input_step, input_step + 1))
        heads, rows = self.heads(model.view.layer_heads[layer]), weights.transpose(0, 1)[:, self.texts, self.rows]
        return certificate.cloud_errors(heads, model.view.dtype, before, after, rows, self.texts_in_cloud)


def placements(batch: ProofBatch, texts: Sequence[int]) -> Iterator[Placement]:
    """What a network may make of texts, first what the batch asks for.

    A network may read padding, its blocks may make their own masks, and it may ignore positions. Each is a different computation, so
    a wrong View agrees with none of them.
    """
    is_token, first = batch.is_token[texts], torch.arange(len(batch.ids)).expand(len(texts), -1)
    n_before = is_token.int().argmax(1, keepdim=True)  # chunks begin at the first token that is no padding
    for tokens, places, positions in product(
        _options(is_token, PADDING_UNTESTED, torch.ones_like(is_token)),
        _options(batch.indices - n_before, EDGES_UNTESTED, first - n_before),
        _options(batch.positions[texts], FAR_UNTESTED, batch.indices.expand_as(first), first),
    ):
        text, row = tokens[0].nonzero().unbind(1)
        yield Placement(
            torch.tensor(texts)[text], row, places[0][tokens[0]], positions[0][tokens[0]], tokens[0].sum(1).tolist(),
            (*tokens[1], *places[1], *positions[1]),
        )  # fmt: skip


def _options(planned: Tensor, reason: Message, *others: Tensor) -> list[tuple[Tensor, tuple[Message, ...]]]:
    """What a batch asks for, and what else a network may use, with the reason that leaves untested."""
    return [(planned, ()), *((x, (reason,)) for x in others if not torch.equal(x, planned))]


@contextmanager
def record_layer_weights(
    network: nn.Module, description: ModelDescription, modules: Sequence[nn.Module]
) -> Iterator[list[Tensor]]:
    """Inside, the result of the last softmax in one of the modules of every layer, such as its attention.

    Where a module returns this very result, further modules of its class are not searched for it.
    """
    recorder, layer_weights, returning_classes = SoftmaxRecorder(), list[Tensor](), set[type]()
    has_segments = is_packed(network)

    def begin(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if has_segments:
            recorder.weights.clear()
        if type(module) not in returning_classes:
            modes.enter_context(recorder)

    def end(module: nn.Module, out: Any) -> None:
        modes.close()
        if type(module) in returning_classes:
            layer_weights.append(out[1])
            return
        returned = out[1] if isinstance(out, tuple) and len(out) > 1 else None
        layer_weights.append(join_segments(recorder.weights) if has_segments else recorder.weights.pop())
        if isinstance(returned, Tensor) and returned.is_set_to(layer_weights[-1]):
            returning_classes.add(type(module))

    last_taps = [layer_taps[-1] for layer_taps in description.layer_taps]
    pairs = zip(last_taps, modules, strict=True)
    hooks = [
        on_turn(hook, tap.turn, tap.n_turns)
        for tap, module in pairs
        for hook in (ModuleHook(module, "in", partial(begin, module)), ModuleHook(module, "out", partial(end, module)))
    ]
    with ExitStack() as modes, apply_module_hooks(hooks):
        yield layer_weights


def join_segments(weights: Sequence[Float[Tensor, "1 h _ _"]]) -> Float[Tensor, "1 h n n"]:
    """The weights of one sequence, from those of its segments, which do not see each other."""
    heads = zip(*(x[0] for x in weights), strict=True)
    return torch.stack([torch.block_diag(*segments) for segments in heads])[None]


class SoftmaxRecorder(TorchDispatchMode):
    """Keeps the result of every softmax over keys that runs inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so no operation pays for a check of it."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.__name__.split(".")[0] in SOFTMAX_OPERATIONS and out.ndim >= 3:
            self.weights.append(out)
        return out


def weights_by_head(softmax: Float[Tensor, "*b n s"], n_keys: int) -> Float[Tensor, "h n keys"]:
    """The result of a softmax as weights of every head, without the weight of a sink."""
    return softmax.reshape(-1, *softmax.shape[-2:])[..., :n_keys]
