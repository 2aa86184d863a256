"""A model under edits as a model: whatever runs it, on whichever text, runs the edited one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rheoscope.covers.pieces import kept_tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Edits, Hooks, Text
from rheoscope.space.running import Running
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.studio.edits import Before, Edit, Kept, before, checked, live


@dataclass(frozen=True, eq=False, repr=False)
class Edited(Running):
    """A model (`own`) in which heads do something else. Its View is the model's, whose operators no edit changes.

    Edits are centred by the mean of each text, so a text is first put through the model as it is; that is remembered.
    """

    own: Running
    edits: tuple[Edit, ...]
    _before: dict[tuple[int, ...], Before] = field(default_factory=dict)

    @contextmanager
    def _under(self, batch: Sequence[Tensor]) -> Iterator[None]:
        """Inside, texts of these ids, side by side, run in the edited model."""
        texts = [self.before(ids) for ids in batch]
        with self.own.changed(live(self.view, texts, self.edits), None):
            yield

    def before(self, ids: Tensor) -> Before:
        """A text in the model as it is."""
        row = tuple(ids.tolist())
        if row not in self._before:
            self._before[row] = before(self.own.trace(list(row)), self.edits)
        return self._before[row]

    def _traces(self, batch: list[Tensor], texts: list[str], logits: bool) -> Traces:
        with self._under(batch):
            return super()._traces(batch, texts, logits)

    def run(self, text: Text, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        with self._under([self.ids(text)]):
            return super().run(text, edit, hooks)

    def run_batch(
        self, ids: Tensor, edit: Edits | None = None, hooks: Hooks | None = None, given: Sequence[Any] = ()
    ) -> Tensor:
        with self._under(list(ids)):
            return super().run_batch(ids, edit, hooks, given)

    def passed(self, ids: Tensor) -> list[Any]:
        with self._under(list(ids)):
            return super().passed(ids)

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with self._under([self.ids(text)]):
            return super().gradients(text, of)

    @contextmanager
    def changed(self, edit: Edits | None, hooks: Hooks | None) -> Iterator[None]:
        if edit or hooks:
            raise RheoscopeError(
                "it changes heads or points by itself, and what it would replace where an edit stands already is not defined"
            )
        yield

    def call(self, ids: Tensor, real: Tensor | None) -> Tensor:
        return self.own.call(ids, real)

    def pass_through(self, ids: Tensor, real: Tensor | None) -> None:
        self.own.pass_through(ids, real)

    def editing(self, edit: Edits) -> AbstractContextManager[None]:
        return self.own.editing(edit)

    def encode(self, text: str) -> list[int]:
        return self.own.encode(text)

    def decode(self, token: int) -> str:
        return self.own.decode(token)

    def piece(self, token: int) -> str:
        return self.own.piece(token)


def under(model: Running, edits: Sequence[Edit]) -> Running:
    """The model with all edits carried out; without any, itself."""
    checked(model.view, edits)
    if not edits:
        return model
    return Edited(model.network, model.tokenizer, model.description, model.view, model, tuple(edits))


def trace_of(model: Running, text: Text) -> tuple[Trace, Kept]:
    """The text as points of E in a model under edits or under none, and the tokens whose mean edits centre by."""
    trace = model.trace(text)
    return trace, model.before(model.ids(text)).kept if isinstance(model, Edited) else kept_tokens(trace)
