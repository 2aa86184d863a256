"""What a Model is, whoever made it: a View, and a way to run it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

Edit = Callable[[Tensor, Tensor, Tensor, Mechanism], Tensor]
"""An edit of one head: from its q, k, v (b, 1, n, ·) and its mechanism to its output (b, 1, n, e)."""
Hook = Callable[[Tensor], Tensor]
"""A change of the points (b, n, d) at a labelled step."""
Text = str | Sequence[int] | Tensor


@runtime_checkable
class Model(Protocol):
    """A View and a way to run it: forward, with gradients, with a changed head or changed points."""

    @property
    def view(self) -> View: ...

    def trace(self, text: Any, logits: bool = False) -> Any:
        """The text as points of E (a list of texts gives a list of Traces, computed as one batch)."""
        ...

    def run(
        self,
        text: Text,
        edit: Mapping[tuple[int, int], Edit] | None = None,
        hooks: Mapping[str, Hook] | None = None,
    ) -> Tensor:
        """Logits (n, vocabulary) with heads edited and points changed; everything is undone on exit."""
        ...

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar of the logits, and its gradient at every step of the stream."""
        ...

    def ids(self, text: Text) -> Tensor:
        """Token ids of a text."""
        ...


__all__ = ["Edit", "Hook", "Model", "Text", "Trace"]
