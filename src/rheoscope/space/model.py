"""The Model protocol: a View and a way to run it, with the types of edits, hooks and texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

Edit = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]
"""An edit of one head: from its q, k, v (b, 1, n, ·) and its mechanism to its output (b, 1, n, e)."""
LayerEdit = Callable[[Tensor, Tensor, Tensor, Mechanism, Tensor], Tensor]
"""An edit of all heads of a layer: from q (b, h, n, ·), k, v (b, g, n, ·), the mechanism and the model's outputs (b, h, n, e) to
new outputs."""


@dataclass(frozen=True, eq=False)
class Rewrite:
    """An edit of a layer that reads its points: `edit(x, q, k, v, mechanism, out)` with the layer's input x (b, n, d).

    It returns new outputs (b, h, n, e), and what attention writes to every token outside the heads (b, n, d), or None.
    """

    edit: Callable[[Tensor, Tensor, Tensor, Tensor, Mechanism, Tensor], tuple[Tensor, Tensor | None]]


Edits = Mapping[tuple[int, int], Edit] | Mapping[int, LayerEdit | Rewrite]
"""{(layer, head): edit of a head}, or {layer: edit of a layer}."""
Hook = Callable[[Tensor], Tensor]
"""An edit of the points (b, n, d) at a step."""
Hooks = Mapping[str, Hook] | Mapping[Step, Hook]
"""{step or its label: edit of the points}; steps of an encoder are `source.L0.resid_mid`."""
Text = str | Sequence[int] | Tensor | Mapping[str, Any] | Trace
"""One text: a string, its token ids, the output of a tokenizer, or its Trace in the same model. For models of images: pixels."""
Input = Text | Path
"""One text, or the file of an image."""
Texts = Sequence[Text]
"""Several texts. A string or a list of integers is one text."""


@runtime_checkable
class Model(Protocol):
    """A View and a way to run it: forward, with gradients, with edited heads or points."""

    @property
    def view(self) -> View:
        """The weights as operators on E."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, or None if the model reads token ids only."""
        ...

    @overload
    def trace(  # type: ignore[overload-overlap]  # a string is a sequence of strings; here it is one text
        self, text: Text, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace: ...

    @overload
    def trace(
        self, text: Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Traces: ...

    def trace(
        self, text: Text | Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Trace | Traces:
        """The text as points of E; a list of texts returns Traces, computed as one batch."""
        ...

    def run(self, text: Text, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        """Logits (n, vocabulary) with edited heads and points; undone on exit."""
        ...

    def run_batch(
        self, ids: Tensor, edit: Edits | None = None, hooks: Hooks | None = None, block_outputs: Sequence[Any] = ()
    ) -> Tensor:
        """Logits (b, n, vocabulary) of ids (b, n), as `run`; the blocks of `block_outputs` are not computed again."""
        ...

    def block_outputs(self, ids: Tensor) -> list[Any]:
        """The output of every block for ids (b, n), for `run_batch`."""
        ...

    def gradients(self, text: Text, objective: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar of the logits, and its gradient at every step of the stream, by step label."""
        ...

    def ids(self, text: Text) -> Tensor:
        """Token ids (n) of a text, checked against the model."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a string of any length."""
        ...

    def token_strings(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Each token as text."""
        ...


def check_same_weights(model: Model, trace: object) -> None:
    """Raise unless `trace` is a Trace of this model: weights of one model say nothing about points of another."""
    if not isinstance(trace, Trace):
        raise RheoscopeError(
            Message("expected a Trace, got {received}", received=type(trace).__name__), Advice("model.trace(text)")
        )
    trace_weights, model_weights = trace.view.facts.get("weights"), model.view.facts.get("weights")
    if trace_weights != model_weights:
        raise RheoscopeError(
            Message(
                "this trace comes from weights {received}, but the model has weights {expected}",
                received=str(trace_weights),
                expected=str(model_weights),
            ),
            Advice("model.trace(text)"),
        )


def as_text_list(texts: Any) -> list[Any]:
    """One text or several as a list of texts; a list of token ids is one text."""
    is_batch = isinstance(texts, Traces) or (
        isinstance(texts, list | tuple) and bool(texts) and not isinstance(texts[0], Integral)
    )
    return list(texts) if is_batch else [texts]
