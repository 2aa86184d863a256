"""What a Model is, whoever made it: a View, and a way to run it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View

Edit = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]
"""An edit of one head: from its q, k, v (b, 1, n, ·) and its mechanism to its output (b, 1, n, e)."""
LayerEdit = Callable[[Tensor, Tensor, Tensor, Mechanism, Tensor], Tensor]
"""An edit of all heads of a layer: from q (b, h, n, ·), k, v (b, g, n, ·), the mechanism and the outputs (b, h, n, e) that the
model itself computed to new outputs."""


@dataclass(frozen=True, eq=False)
class Rewrite:
    """An edit of a layer by its points: `change(x, q, k, v, mechanism, out)`, where x (b, n, d) are the points that the layer reads.

    It gives new outputs (b, h, n, e), and what attention writes to every token beside them (b, n, d), or None.
    """

    change: Callable[[Tensor, Tensor, Tensor, Tensor, Mechanism, Tensor], tuple[Tensor, Tensor | None]]


Edits = Mapping[tuple[int, int], Edit] | Mapping[int, LayerEdit | Rewrite]
"""{(layer, head): edit of a head}, or {layer: edit of a layer}."""
Hook = Callable[[Tensor], Tensor]
"""A change of the points (b, n, d) at a step."""
Hooks = Mapping[str, Hook] | Mapping[Step, Hook]
"""{step or its label: change of the points there}; steps of an encoder beside a decoder as `source.L0.resid_mid`."""
Text = str | Sequence[int] | Tensor
"""One text: a string, or the ids of its tokens."""
Texts = Sequence[Text]
"""Several texts; a string and a list of whole numbers are one."""


@runtime_checkable
class Model(Protocol):
    """A View and a way to run it: forward, with gradients, with a changed head or changed points."""

    @property
    def view(self) -> View:
        """The weights as operators on E."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def tokenizer(self) -> Any:
        """What makes ids of strings, or None where only ids are read."""
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
        """The text as points of E (a list of texts gives Traces, computed as one batch)."""
        ...

    def run(self, text: Text, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        """Logits (n, vocabulary) with heads edited and points changed; everything is undone on exit."""
        ...

    def run_batch(
        self, ids: Tensor, edit: Edits | None = None, hooks: Hooks | None = None, given: Sequence[Any] = ()
    ) -> Tensor:
        """Logits (b, n, vocabulary) of ids (b, n), as `run`; blocks whose outputs are `given` are not computed again."""
        ...

    def passed(self, ids: Tensor) -> list[Any]:
        """What every block gives for ids (b, n), for `given`."""
        ...

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar of the logits, and its gradient at every step of the stream, by the label of the step."""
        ...

    def ids(self, text: Text) -> Tensor:
        """Token ids (n) of a text that the model can read."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a string of any length."""
        ...

    def words(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Each token as text."""
        ...


def check_made_by(model: Model, trace: object) -> None:
    """Refuse what is no Trace of this model: what the weights of one do to the points of another means nothing."""
    if not isinstance(trace, Trace):
        raise RheoscopeError(f"one Trace is asked about, got {type(trace).__name__}; type model.trace(text)")
    made_by, own = trace.view.facts.get("weights"), model.view.facts.get("weights")
    if made_by != own:
        raise RheoscopeError(
            f"this trace was made by other weights ({made_by}) than the model's ({own}); "
            "type model.trace(text) with the same model"
        )


def as_list(texts: Any) -> list[Any]:
    """One text or several as a list of texts; a list of token ids is one text."""
    several = isinstance(texts, list | tuple) and bool(texts) and not isinstance(texts[0], Integral)
    return list(texts) if several else [texts]
