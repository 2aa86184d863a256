"""The residual stream of a running model: hook points, recording, editing, and reuse of block outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.lower.cudnn import HALF_DTYPES
from rheoscope.attention.lower.kernels.triton_lowerings import HAS_TRITON
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, plural
from rheoscope.running.cuda_side_stream import on_side_stream
from rheoscope.running.shared_patch import Undo, replace_method, shared_patch
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks, on_turn
from rheoscope.shapes import RheoscopeError
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.head import Heads
from rheoscope.space.head_outputs import can_subtract_value_bias
from rheoscope.space.model import Hook, Hooks
from rheoscope.space.model_parts import Norm
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.step import Step


@dataclass(frozen=True)
class Tap:
    """A hook point of the stream: the first input or the output of a module.

    `is_displacement`: a displacement from the step before. Without a `writer`, nothing reads their sum (attention of a parallel block).
    `writer`: no module holds the point, which is the step before plus `writer_scale` (one or per coordinate) times the output of `writer`.
    `turn`: where the modules run `n_turns` times in one forward pass (ALBERT), the turn at which they hold the point.
    `scale`: the tensor is this multiple of the point (MiniMax multiplies its stream before a norm).
    `is_shared`: other operations read the tensor too, so nothing can take its place (Gemma 3n).
    """

    step: Step
    module: nn.Module
    side: Literal["in", "out"]
    is_displacement: bool = False
    writer: nn.Module | None = None
    writer_scale: float | Tensor = field(default=1.0, compare=False)
    turn: int = 0
    n_turns: int = 1
    scale: float = 1.0
    is_shared: bool = False

    @property
    def is_virtual(self) -> bool:
        """Whether the network does not compute the point."""
        return self.is_displacement and self.writer is None

    def to_point(self, x: Tensor) -> Tensor:
        """The point of a tensor at this tap."""
        return x if self.scale == 1 else x / self.scale


@dataclass(frozen=True, eq=False)
class ModelDescription:
    """The description of one model for Rheoscope: its hook points and its weights.

    `layer_taps[l]` are the taps of layer l in the order of the stream; `layer_heads` and `mlps` are its operators.
    `attention_modules` compute attention, and `output_projections` read the concatenated outputs of the heads.
    `cross_heads` and `cross_attention_modules` are the same for cross-attention, if there is any.
    `embed_projection` and `unembed_projection` map embeddings into E and E to the input of the unembedding, if widths differ.
    `prediction_head` maps last points to logits, if more than a norm and an unembedding lies between (masked language models).
    `opaque_blocks` names blocks without a softmax or without keys of their own. They count as part of the layer before them, or of
    the embedding.
    `embed_scale` and `unembed_scale` are factors of the embedding and of the logits; `unembed_bias` is added to the logits.
    Without `unembed_scale`, logits are no linear map of the last points, and there is no logit lens. `context_length` is the
    longest text that position embeddings allow. `n_streams` is the number of streams that every block mixes into its points.
    `shares_states`: blocks read more of earlier ones than their points (several streams, shared keys and values), so none can be skipped.
    """

    embed_tap: Tap
    layer_taps: tuple[tuple[Tap, ...], ...]
    layer_heads: tuple[Heads, ...]
    attention_modules: tuple[nn.Module, ...]
    output_projections: tuple[nn.Module, ...]
    mlps: tuple[Callable[[Tensor], Tensor], ...]
    embedding: nn.Embedding
    final_norm: Norm
    is_encoder: bool = False
    embed_projection: Float[Tensor, "w d"] | None = None
    unembed_projection: Float[Tensor, "d w"] | None = None
    prediction_head: Callable[[Tensor], Tensor] | None = None
    cross_heads: tuple[CrossHeads, ...] = ()
    cross_attention_modules: tuple[nn.Module, ...] = ()
    opaque_blocks: tuple[str, ...] = ()
    embed_scale: float | None = None
    unembed_scale: float | None = 1.0
    unembed_bias: Float[Tensor, " vocabulary"] | None = None
    context_length: int | None = None
    n_streams: int = 1
    shares_states: bool = False

    def __repr__(self) -> str:
        return f"<Description of {len(self.layer_heads)} layers, each {self.layer_heads[0]!r}>"

    def input_tap(self, layer: int) -> Tap:
        """The tap of the points that the attention of a layer reads."""
        return self.layer_taps[layer - 1][-1] if layer else self.embed_tap

    def output_tap(self, layer: int) -> Tap:
        """The tap of the first points that include the attention of a layer: after attention, or after a parallel block."""
        first, *_, last = self.layer_taps[layer]
        return last if first.is_virtual else first


def pre_norm_taps(layers: Sequence[Any], mid_norm_name: str, writer_name: str) -> tuple[tuple[Tap, Tap], ...]:
    """The taps of pre-norm blocks: `mid_norm_name` reads the point after attention, `writer_name` adds to the stream."""
    return tuple(
        (
            Tap(
                Step(i, "resid_mid"),
                getattr(layer, mid_norm_name),
                "in",
                writer=getattr(layer, writer_name),
            ),
            Tap(Step(i, "resid_post"), layer, "out"),
        )
        for i, layer in enumerate(layers)
    )


def post_norm_taps(layer: int, block: Any, attention_norm: Any, mlp_norm: Any) -> tuple[Tap, ...]:
    """The taps of a post-norm block: each sum, and the output of its norm."""
    return (
        Tap(Step(layer, "attn_sum"), attention_norm, "in"),
        Tap(Step(layer, "resid_mid"), attention_norm, "out"),
        Tap(Step(layer, "mlp_sum"), mlp_norm, "in"),
        Tap(Step(layer, "resid_post"), block, "out"),
    )


def taps(description: ModelDescription) -> list[Tap]:
    """The taps of every step, from the embedding to the last point."""
    return [description.embed_tap, *(tap for layer in description.layer_taps for tap in layer)]


@contextmanager
def record_points(description: ModelDescription, points: Float[Tensor, "b p n d"]) -> Iterator[None]:
    """While the model runs, copy the tensor at each tap into `points`; on a GPU this happens on a side stream."""
    with _record(description, points, lambda step_index: partial(_store_points, points, step_index)):
        yield


@contextmanager
def append_points(description: ModelDescription, points: Float[Tensor, "b p n d"], start: int) -> Iterator[None]:
    """While the model reads new tokens, in one pass or in many, collect their points. At the end, store them from `start` on.

    They are copied together, because a copy for every token and step would take longer than the rest of the hook. As on a side
    stream, no such tensor may be changed in place afterwards.
    """
    collected: list[list[Tensor]] = [[] for _ in taps(description)]
    with _record(description, points, lambda step_index: partial(_collect, collected[step_index])):
        yield
    for step_index, (tap, tensors) in enumerate(zip(taps(description), collected, strict=True)):
        if tensors:
            x = tensors[0] if len(tensors) == 1 else torch.cat([x.to(points.device) for x in tensors], -2)
            _store_points(points[:, :, start : start + x.shape[-2]], step_index, tap.is_displacement, x)


def _collect(tensors: list[Tensor], is_displacement: bool, x: Tensor) -> None:
    tensors.append(x)


@contextmanager
def _record(
    description: ModelDescription, points: Tensor, store: Callable[[int], Callable[[bool, Tensor], None]]
) -> Iterator[None]:
    """Call the function of every step with whether its tensor is a displacement, and with the tensor."""
    with on_side_stream(points.device) as on_stream:
        callbacks = [
            on_stream(partial(store(step_index), tap.is_displacement))
            for step_index, tap in enumerate(taps(description))
        ]
        with apply_module_hooks(
            [observe_tap(tap, callback) for tap, callback in zip(taps(description), callbacks, strict=True)]
        ):
            yield


def _store_points(points: Tensor, step_index: int, is_displacement: bool, x: Tensor) -> None:
    destination = points[:, step_index]
    x = x.detach().reshape(destination.shape)
    both_contiguous = x.is_contiguous() and destination.is_contiguous()
    if HAS_TRITON and x.is_cuda and both_contiguous and x.dtype in HALF_DTYPES and destination.dtype == torch.float32:
        from rheoscope.attention.lower.kernels.widen_dtype import copy_to_float32

        copy_to_float32(x, destination)
    else:
        points[:, step_index] = x
    if is_displacement:
        points[:, step_index] += points[:, step_index - 1]


@contextmanager
def record_head_outputs(description: ModelDescription, outputs: dict[int, Float[Tensor, "b n he"]]) -> Iterator[None]:
    """While the model runs, store the concatenated head outputs of each layer; on one device nothing is copied.

    Layers whose heads cannot be separated from their outputs alone are left out.
    """
    layers = [layer for layer, heads in enumerate(description.layer_heads) if can_subtract_value_bias(heads)]
    device = description.embedding.weight.device
    with apply_module_hooks(
        [
            on_turn(
                ModuleHook(
                    description.output_projections[layer], "in", partial(_store_outputs, outputs, layer, device)
                ),
                description.layer_taps[layer][-1].turn,
                description.layer_taps[layer][-1].n_turns,
            )
            for layer in layers
        ]
    ):
        yield


def _store_outputs(
    outputs: dict[int, Tensor], layer: int, device: torch.device, args: Any, kwargs: dict[str, Any]
) -> None:
    outputs[layer] = args[0].detach().to(device)


@contextmanager
def capture_points(description: ModelDescription, captured: dict[str, Tensor]) -> Iterator[None]:
    """While the model runs, store the tensor at each tap, so that gradients can be taken with respect to it.

    The graph begins at the embedding, so weights are not part of it.
    """
    embed_tap = Tap(description.embed_tap.step, description.embed_tap.module, description.embed_tap.side)
    observers = [observe_tap(tap, partial(captured.__setitem__, str(tap.step))) for tap in taps(description)]
    with apply_module_hooks([*_point_hooks(embed_tap, embed_tap, lambda x: x.detach().requires_grad_()), *observers]):
        yield


@contextmanager
def apply_hooks(description: ModelDescription, hooks: Hooks, prefix: str = "") -> Iterator[None]:
    """While the model runs, replace the points at each step by hook(points), earlier steps first.

    `prefix` comes before the labels if hooks address several streams.
    """
    labels, hooks_by_label = (
        [prefix + str(tap.step) for tap in taps(description)],
        {str(step): hook for step, hook in hooks.items()},
    )
    for label in hooks_by_label:
        if label not in labels:
            raise RheoscopeError(
                Message(
                    "there is no step {label!r}; expected one of {first}, …, {last}",
                    label=label,
                    first=", ".join(labels[:3]),
                    last=labels[-1],
                )
            )
    hooked_taps = [
        hooked_tap
        for hooked_tap in zip([description.embed_tap, *taps(description)], taps(description), labels, strict=False)
        if hooked_tap[2] in hooks_by_label
    ]
    hook_groups = [
        _point_hooks(previous_tap, tap, partial(_run_hook, label, hooks_by_label[label]))
        for previous_tap, tap, label in hooked_taps
    ]
    with apply_module_hooks([module_hook for hook_group in hook_groups for module_hook in hook_group]):
        yield


@contextmanager
def record_block_outputs(description: ModelDescription, block_outputs: list[Any]) -> Iterator[None]:
    """While the model runs, store the output of every block. Blocks that run several times in a pass or share states have none to reuse."""
    blocks = [x[-1] for x in description.layer_taps if x[-1].n_turns == 1 and not description.shares_states]
    with apply_module_hooks([ModuleHook(tap.module, "out", block_outputs.append) for tap in blocks]):
        yield


_reused_outputs: ContextVar[Mapping[nn.Module, Any]] = ContextVar(
    "reused block outputs of this thread", default=MappingProxyType({})
)


@contextmanager
def reuse_block_outputs(description: ModelDescription, block_outputs: Sequence[Any]) -> Iterator[None]:
    """While the model runs, its first blocks return stored outputs and compute nothing, in this thread only."""
    blocks = {layer[-1].module: out for layer, out in zip(description.layer_taps, block_outputs, strict=False)}
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(shared_patch((block, "forward"), partial(_patch_forward, block)))
        stack.callback(_reused_outputs.reset, _reused_outputs.set({**_reused_outputs.get(), **blocks}))
        yield


def _patch_forward(block: nn.Module) -> Undo:
    """Patch a block's `forward`: threads that have its output return it, all others compute as before."""
    original_forward = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        reused = _reused_outputs.get()
        return reused[block] if block in reused else original_forward(*args, **kwargs)

    return replace_method(block, "forward", forward)


def check_reused_blocks(
    description: ModelDescription,
    block_outputs: Sequence[Any],
    edited_layers: Iterable[int],
    hooks: Iterable[str | Step],
) -> None:
    """Raise for edits in layers that are not computed again: their blocks, and the steps inside them."""
    reused_steps = {str(tap.step) for layer in description.layer_taps[: len(block_outputs)] for tap in layer[:-1]}
    if block_outputs:
        reused_steps.add(str(description.embed_tap.step))
    ineffective: list[str] = [
        Message("layer {layer}", layer=layer) for layer in edited_layers if layer < len(block_outputs)
    ]
    ineffective += [str(step) for step in hooks if str(step) in reused_steps]
    if ineffective:
        raise RheoscopeError(
            plural(
                "{part} cannot be edited: the output of the first block is reused",
                "{part} cannot be edited: the outputs of the first {n} blocks are reused",
                n=len(block_outputs),
                part=ineffective[0],
            ),
            Advice("block_outputs=()"),
        )


def describe_value(value: object) -> str:
    """A value in an error: the shape of a tensor, else the name of its class.

    >>> describe_value(torch.ones(2, 3)), describe_value(None)
    ('a tensor of shape (2, 3)', 'NoneType')
    """
    if isinstance(value, Tensor):
        return Message("a tensor of shape {shape}", shape=str(tuple(value.shape)))
    return type(value).__name__


def _run_hook(label: str, hook: Hook, x: Tensor) -> Tensor:
    """hook(x), checked to be points. The hook gets float32 or better, and its result is rounded once."""
    points = at_least_float32(x)
    version_before = _tensor_version(points)
    new_points = hook(points)
    if not isinstance(new_points, Tensor) or new_points.shape != x.shape:
        raise RheoscopeError(
            Message(
                "the hook at {label} must return a tensor of shape {shape}, got {received}",
                label=label,
                shape=str(tuple(x.shape)),
                received=describe_value(new_points),
            ),
            Advice("return x"),
        )
    untouched = new_points is points and _is_unchanged(points, version_before, lambda: x)
    return x if untouched else new_points.to(x.dtype)


def _tensor_version(x: Tensor) -> int | None:
    """The number of in-place writes to a tensor; None for tensors of `torch.inference_mode`, which have no counter."""
    return None if x.is_inference() else x._version


def _is_unchanged(x: Tensor, version_before: int | None, original: Callable[[], Tensor]) -> bool:
    """Whether a hook that returns its input left it unchanged: by the write counter, else by comparison with `original()`."""
    return torch.equal(x, original()) if version_before is None else x._version == version_before


def observe_tap(tap: Tap, callback: Callable[[Tensor], None]) -> ModuleHook:
    """A hook that passes the tensor at a tap to `callback`."""
    if tap.side == "out":
        hook = ModuleHook(tap.module, "out", lambda out: callback(tap.to_point(_first_output(out))))
    else:
        hook = ModuleHook(
            tap.module,
            "in",
            lambda args, kwargs: callback(tap.to_point(args[0] if args else kwargs["hidden_states"])),
        )
    return on_turn(hook, tap.turn, tap.n_turns)


def _point_hooks(previous_tap: Tap, tap: Tap, hook: Hook) -> list[ModuleHook]:
    if tap.is_shared:
        raise RheoscopeError(
            Message(
                "{step} is mixed from several streams, which other parts of the network read too, so it cannot be edited; edit {other} "
                "instead",
                step=str(tap.step),
                other=str(Step(tap.step.layer or 0, "resid_mid")),
            )
        )
    if tap.is_virtual:
        raise RheoscopeError(
            Message(
                "{step} of a parallel block cannot be edited, since no module reads it; edit {other} instead",
                step=str(tap.step),
                other=str(Step(tap.step.layer, "resid_post")),
            )
        )
    if tap.writer is not None:
        return _sum_hooks(previous_tap, tap, hook)
    if tap.side == "out":
        point_hook = ModuleHook(tap.module, "out", lambda out: _with_first_output(out, hook(_first_output(out))))
    else:
        point_hook = ModuleHook(tap.module, "in", partial(_hook_input, tap, hook))
    return [on_turn(point_hook, tap.turn, tap.n_turns)]


def _hook_input(tap: Tap, hook: Hook, args: Any, kwargs: dict[str, Any]) -> Any:
    def new_input(x: Tensor) -> Tensor:
        return hook(x) if tap.scale == 1 else hook(tap.to_point(x)) * tap.scale

    if args:
        return (new_input(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": new_input(kwargs["hidden_states"])}


def _sum_hooks(previous_tap: Tap, tap: Tap, hook: Hook) -> list[ModuleHook]:
    """Hooks for a sum that no module holds (the point after attention): change the summand so that the sum is hook(sum)."""
    assert tap.writer is not None
    inputs: list[Tensor] = []
    change_summand = ModuleHook(tap.writer, "out", partial(_hook_sum, inputs, tap.writer_scale, hook))
    return [observe_tap(previous_tap, inputs.append), on_turn(change_summand, tap.turn, tap.n_turns)]


def _hook_sum(inputs: list[Tensor], writer_scale: float | Tensor, hook: Hook, out: Any) -> Any:
    x, written = inputs.pop(), writer_scale * _first_output(out)
    point_sum = x + written
    version_before = _tensor_version(point_sum)
    new_sum = hook(point_sum)
    untouched = new_sum is point_sum and _is_unchanged(point_sum, version_before, lambda: x + written)
    return out if untouched else _with_first_output(out, (new_sum - x) / writer_scale)


def _first_output(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out[0]


def _with_first_output(out: Any, tensor: Tensor) -> Any:
    return tensor if isinstance(out, torch.Tensor) else (tensor, *out[1:])
