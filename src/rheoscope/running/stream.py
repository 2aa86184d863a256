"""The stream of a model that runs: where it can be seen, watching it and changing it by plain hooks, taken away on exit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.lower.cudnn import HALF
from rheoscope.attention.lower.kernels.triton_lowerings import TRITON
from rheoscope.running.cuda_side_stream import beside
from rheoscope.running.shared_patch import Undo, set_method, shared_change
from rheoscope.running.thread_hooks import Ask, asking
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import Crossing
from rheoscope.space.head import Heads, Norm
from rheoscope.space.head_outputs import told_by_outputs
from rheoscope.space.model import Hook, Hooks
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.step import Step


@dataclass(frozen=True)
class Tap:
    """Where a step of the stream can be seen: the first input or the output of a module.

    `added`: what is seen is a displacement, to be added to the step before (the attention of a parallel block).
    `writer`: the point is a sum that no module holds alone, the step before plus `share` times the output of `writer`.
    """

    step: Step
    module: nn.Module
    side: Literal["in", "out"]
    added: bool = False
    writer: nn.Module | None = None
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Description:
    """All that Rheoscope has to know of one model: five hook points and where the weights are.

    `layers[l]` are the taps of layer l in the order of the stream; `blocks`, `mlps` its operators; `attentions` the
    modules that compute attention, `projections` those that read what its heads give, side by side; `crossing` and `crosses`
    the same for cross attention, where there is any.
    `into` and `out_of` map embeddings into E and E back to what the unembedding reads, where their widths differ.
    """

    start: Tap
    layers: tuple[tuple[Tap, ...], ...]
    blocks: tuple[Heads, ...]
    attentions: tuple[nn.Module, ...]
    projections: tuple[nn.Module, ...]
    mlps: tuple[Callable[[Tensor], Tensor], ...]
    embed: nn.Embedding
    final_norm: Norm
    encoder: bool = False
    into: Float[Tensor, "w d"] | None = None
    out_of: Float[Tensor, "d w"] | None = None
    crossing: tuple[Crossing, ...] = ()
    crosses: tuple[nn.Module, ...] = ()

    def __repr__(self) -> str:
        return f"<Description of {len(self.blocks)} layers, each {self.blocks[0]!r}>"

    def read_by(self, layer: int) -> Tap:
        """The points that the attention of a layer reads."""
        return self.layers[layer - 1][-1] if layer else self.start

    def written_by(self, layer: int) -> Tap:
        """The first points that hold what the attention of a layer wrote: after attention, or after a parallel block."""
        first, *_, last = self.layers[layer]
        return last if first.added else first


def pre_norm_taps(layers: Sequence[Any], middle: str, writer: str, share: float = 1.0) -> tuple[tuple[Tap, ...], ...]:
    """Half-layers of pre-norm blocks: `middle` names the norm that reads the point after attention, `writer` what adds."""
    return tuple(
        (
            Tap(Step(i, "resid_mid"), getattr(layer, middle), "in", writer=getattr(layer, writer), share=share),
            Tap(Step(i, "resid_post"), layer, "out"),
        )
        for i, layer in enumerate(layers)
    )


def post_norm_taps(layer: int, block: Any, attention_norm: Any, mlp_norm: Any) -> tuple[Tap, ...]:
    """Half-layers of a post-norm block: each sum, and what its norm makes of it."""
    return (
        Tap(Step(layer, "attn_sum"), attention_norm, "in"),
        Tap(Step(layer, "resid_mid"), attention_norm, "out"),
        Tap(Step(layer, "mlp_sum"), mlp_norm, "in"),
        Tap(Step(layer, "resid_post"), block, "out"),
    )


def taps(description: Description) -> list[Tap]:
    """Every step of the stream, from the embedding to the last point."""
    return [description.start, *(tap for layer in description.layers for tap in layer)]


@contextmanager
def watching(description: Description, points: Float[Tensor, "b p n d"]) -> Iterator[None]:
    """While the model runs, copy what passes each tap into `points`; a GPU does it beside the model, which does not wait."""
    with beside(points.device) as aside:
        keeps = [aside(partial(_keep, points, at, tap.added)) for at, tap in enumerate(taps(description))]
        with asking([looking(tap, keep) for tap, keep in zip(taps(description), keeps, strict=True)]):
            yield


def _keep(points: Tensor, at: int, added: bool, x: Tensor) -> None:
    there = points[:, at]
    x = x.detach().reshape(there.shape)
    in_one_piece = x.is_contiguous() and there.is_contiguous()
    if TRITON and x.is_cuda and in_one_piece and x.dtype in HALF and there.dtype == torch.float32:
        from rheoscope.attention.lower.kernels.widen_dtype import widen

        widen(x, there)
    else:
        points[:, at] = x
    if added:
        points[:, at] += points[:, at - 1]


@contextmanager
def hearing(description: Description, outputs: dict[int, Float[Tensor, "b n he"]]) -> Iterator[None]:
    """While the model runs, keep what the heads of each layer give, side by side; the tensors themselves, nothing is copied on one device.

    Layers whose heads cannot be told apart from their outputs alone are left out.
    """
    layers = [at for at, heads in enumerate(description.blocks) if told_by_outputs(heads)]
    place = description.embed.weight.device
    with asking([Ask(description.projections[at], "in", partial(_hear, outputs, at, place)) for at in layers]):
        yield


def _hear(outputs: dict[int, Tensor], layer: int, place: torch.device, args: Any, kwargs: dict[str, Any]) -> None:
    outputs[layer] = args[0].detach().to(place)


@contextmanager
def gathering(description: Description, seen: dict[str, Tensor]) -> Iterator[None]:
    """While the model runs, keep the tensor itself that passes each tap, so that gradients can be asked of it.

    The graph begins at the embedding: weights take no part in it, frozen or not.
    """
    first = Tap(description.start.step, description.start.module, description.start.side)
    looks = [looking(tap, partial(seen.__setitem__, str(tap.step))) for tap in taps(description)]
    with asking([*_changed(first, first, lambda x: x.detach().requires_grad_()), *looks]):
        yield


@contextmanager
def changing(description: Description, hooks: Hooks, side: str = "") -> Iterator[None]:
    """While the model runs, replace the points at steps by hook(points), earlier steps first.

    `side` stands before the labels where hooks tell several streams apart.
    """
    labels, asked = (
        [side + str(tap.step) for tap in taps(description)],
        {str(step): hook for step, hook in hooks.items()},
    )
    for label in asked:
        if label not in labels:
            raise RheoscopeError(f"there is no step {label!r}; type one of {', '.join(labels[:3])}, …, {labels[-1]}")
    places = [
        place
        for place in zip([description.start, *taps(description)], taps(description), labels, strict=False)
        if place[2] in asked
    ]
    changes = [_changed(before, tap, partial(_asked, label, asked[label])) for before, tap, label in places]
    with asking([ask for change in changes for ask in change]):
        yield


@contextmanager
def keeping(description: Description, kept: list[Any]) -> Iterator[None]:
    """While the model runs, keep what every block gives, as it gives it."""
    with asking([Ask(layer[-1].module, "out", kept.append) for layer in description.layers]):
        yield


_given: ContextVar[Mapping[nn.Module, Any]] = ContextVar(
    "what blocks give in this thread", default=MappingProxyType({})
)


@contextmanager
def resuming(description: Description, given: Sequence[Any]) -> Iterator[None]:
    """While the model runs, its first blocks give what they gave before and compute nothing, in this thread alone."""
    blocks = {layer[-1].module: out for layer, out in zip(description.layers, given, strict=False)}
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(shared_change((block, "forward"), partial(_asking_first, block)))
        stack.callback(_given.reset, _given.set({**_given.get(), **blocks}))
        yield


def _asking_first(block: nn.Module) -> Undo:
    """A block whose `forward` computes as ever, but in threads that have its output already."""
    own = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = _given.get()
        return given[block] if block in given else own(*args, **kwargs)

    return set_method(block, "forward", forward)


def check_given(
    description: Description, given: Sequence[Any], edited: Iterable[int], hooks: Iterable[str | Step]
) -> None:
    """Refuse changes of what is not computed again: layers whose blocks are given, and the steps inside of them."""
    inside = {str(tap.step) for layer in description.layers[: len(given)] for tap in layer[:-1]}
    if given:
        inside.add(str(description.start.step))
    lost = [f"layer {layer}" for layer in edited if layer < len(given)] + [
        str(step) for step in hooks if str(step) in inside
    ]
    if lost:
        raise RheoscopeError(
            f"{lost[0]} cannot be changed: the first {len(given)} blocks are given and not computed again; type given=() or fewer"
        )


def _asked(label: str, hook: Hook, x: Tensor) -> Tensor:
    """hook(x), which must be points again; it is given float32 or better, and what it gives is rounded once."""
    seen = exact(x)
    before = _writes(seen)
    new = hook(seen)
    if not isinstance(new, Tensor) or new.shape != x.shape:
        came = f"a tensor {tuple(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
        raise RheoscopeError(
            f"the hook at {label} must return points {tuple(x.shape)}, got {came}; end it with `return x`"
        )
    untouched = new is seen and _as_it_was(seen, before, lambda: x)
    return x if untouched else new.to(x.dtype)


def _writes(x: Tensor) -> int | None:
    """How often a tensor has been written to; None of one that does not count (it was made in `torch.inference_mode`)."""
    return None if x.is_inference() else x._version


def _as_it_was(x: Tensor, before: int | None, like: Callable[[], Tensor]) -> bool:
    """Whether a hook that gives back its input has left it alone. A count is there at once; without one `like` says what it was."""
    return torch.equal(x, like()) if before is None else x._version == before


def looking(tap: Tap, see: Callable[[Tensor], None]) -> Ask:
    """What passes a tap is shown to `see`."""
    if tap.side == "out":
        return Ask(tap.module, "out", lambda out: see(_first(out)))
    return Ask(tap.module, "in", lambda args, kwargs: see(args[0] if args else kwargs["hidden_states"]))


def _changed(before: Tap, tap: Tap, hook: Hook) -> list[Ask]:
    if tap.added:
        raise RheoscopeError(
            f"{tap.step} is no point that a parallel block reads; change L….resid_post or the step before"
        )
    if tap.writer is not None:
        return _changed_sum(before, tap.writer, tap.share, hook)
    if tap.side == "out":
        return [Ask(tap.module, "out", lambda out: _with_first(out, hook(_first(out))))]
    return [Ask(tap.module, "in", partial(_change_before, hook))]


def _change_before(hook: Hook, args: Any, kwargs: dict[str, Any]) -> Any:
    if args:
        return (hook(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": hook(kwargs["hidden_states"])}


def _changed_sum(before: Tap, writer: nn.Module, share: float, hook: Hook) -> list[Ask]:
    """A sum that no module holds (the point after attention): change what is added, so that the sum is hook(sum)."""
    read: list[Tensor] = []
    return [looking(before, read.append), Ask(writer, "out", partial(_write_sum, read, share, hook))]


def _write_sum(read: list[Tensor], share: float, hook: Hook, out: Any) -> Any:
    x, added = read.pop(), share * _first(out)
    middle = x + added
    before = _writes(middle)
    wanted = hook(middle)
    untouched = wanted is middle and _as_it_was(middle, before, lambda: x + added)
    return out if untouched else _with_first(out, (wanted - x) / share)


def _first(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _with_first(out: Any, first: Tensor) -> Any:
    return first if isinstance(out, torch.Tensor) else (first, *out[1:])
