"""What a Model is, whoever made it: a View, and a way to run it."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

Edit = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]
"""An edit of one head: from its q, k, v (b, 1, n, ·) and its mechanism to its output (b, 1, n, e)."""
LayerEdit = Callable[[Tensor, Tensor, Tensor, Mechanism, Tensor], Tensor]
"""An edit of all heads of a layer: from q (b, h, n, ·), k, v (b, g, n, ·), the mechanism and the outputs (b, h, n, e) that the
model itself computed to new outputs."""
Edits = Mapping[tuple[int, int], Edit] | Mapping[int, LayerEdit]
"""{(layer, head): edit of a head}, or {layer: edit of a layer}."""
Hook = Callable[[Tensor], Tensor]
"""A change of the points (b, n, d) at a labelled step."""
Text = str | Sequence[int] | Tensor


@runtime_checkable
class Model(Protocol):
    """A View and a way to run it: forward, with gradients, with a changed head or changed points."""

    @property
    def view(self) -> View: ...

    def trace(
        self, text: Any, logits: bool = False, edit: Edits | None = None, hooks: Mapping[str, Hook] | None = None
    ) -> Any:
        """The text as points of E (a list of texts gives a list of Traces, computed as one batch)."""
        ...

    def run(
        self,
        text: Text,
        edit: Edits | None = None,
        hooks: Mapping[str, Hook] | None = None,
    ) -> Tensor:
        """Logits (n, vocabulary) with heads edited and points changed; everything is undone on exit."""
        ...

    def run_batch(
        self,
        ids: Tensor,
        edit: Edits | None = None,
        hooks: Mapping[str, Hook] | None = None,
        given: Sequence[Any] = (),
    ) -> Tensor:
        """Logits (b, n, vocabulary) of ids (b, n), as `run`; blocks whose outputs are `given` are not computed again."""
        ...

    def passed(self, ids: Tensor) -> list[Any]:
        """What every block gives for ids (b, n), for `given`."""
        ...

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar of the logits, and its gradient at every step of the stream."""
        ...

    def ids(self, text: Text) -> Tensor:
        """Token ids of a text."""
        ...


def check_made_by(model: Model, trace: Trace) -> None:
    """Refuses a Trace that other weights made: what the model computes would belong to other points."""
    made_by, given = trace.view.facts.get("weights"), model.view.facts.get("weights")
    if made_by != given:
        raise RheoscopeError(
            f"this Trace was made by weights {made_by}, the model holds {given}; type trace = model.trace(text) with this model"
        )


def as_list(texts: Any) -> list[Any]:
    """One text or several as a list of texts; a list of token ids is one text."""
    several = isinstance(texts, list | tuple) and bool(texts) and not isinstance(texts[0], Integral)
    return list(texts) if several else [texts]


__all__ = ["Edit", "Edits", "Hook", "LayerEdit", "Model", "Text", "Trace", "as_list", "check_made_by"]
