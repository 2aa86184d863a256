"""A model under edits as a model: whatever runs it, on whichever text, runs the edited one; its operators are the edited ones."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.ablation import mean_outputs
from rheoscope.covers.text_batches import kept_tokens
from rheoscope.running.head_edits import by_layer
from rheoscope.running.runner import Running
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model import Edits, Hooks, Rewrite, Text, Texts
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.studio.edited_heads import Change, OfText, centred, edited_heads, held, unread, why_unread
from rheoscope.studio.edits import Edit, changes, checked

Further = Callable[[Tensor, Tensor, Tensor, Tensor, Mechanism, Tensor], tuple[Tensor, Tensor | None]]
"""What changes an edited layer further, as a `Rewrite` does; it sees queries, keys, values and outputs with their further columns."""
Layers = dict[int, Heads]
"""The edited layers."""


def with_blocks(view: View, blocks: Layers) -> View:
    """A View with other heads in some layers."""
    return replace(view, blocks=tuple(blocks.get(layer, heads) for layer, heads in enumerate(view.blocks)))


@dataclass(frozen=True, eq=False, repr=False)
class EditedTraces(Traces):
    """Texts in an edited model: each has a View of its own, since edits are centred by its mean."""

    views: tuple[View, ...] = ()

    def _one(self, at: int, n: int) -> Trace:
        return replace(super()._one(at, n), view=self.views[at])

    def _some(self, at: slice) -> "EditedTraces":
        some = super()._some(at)
        assert isinstance(some, EditedTraces)
        return replace(some, views=self.views[at])


@dataclass(frozen=True, eq=False, repr=False)
class Edited(Running):
    """A model (`own`) whose heads have other operators. Further edits and hooks act on it as on any model.

    An edit is centred by x̄, the mean of each text where the edited model reads it. So a text is first put through the model as it
    is, which says which tokens are massive and what silenced heads give, and then through the edited model, which says x̄. Both are
    remembered: from then on the text runs in a model whose weights carry the edit, x̄ held. The View of a Trace has them too; that
    of the model itself, which knows no text, has M and F alone.
    """

    own: Running
    change: dict[int, Change]
    _texts: dict[tuple[int, ...], Layers] = field(default_factory=dict)

    def of_text(self, ids: Tensor) -> Layers:
        """The edited layers for one text, remembered."""
        row = tuple(ids.tolist())
        if row not in self._texts:
            self._texts[row] = self._looked_at(list(row))
        return self._texts[row]

    @torch.no_grad()
    def _looked_at(self, row: list[int]) -> Layers:
        before, view, found = self.own.trace(row), self.own.view, Layers()
        kept = kept_tokens(before)
        outputs = mean_outputs(before, kept) if any(one.silent for one in self.change.values()) else None

        def look(layer: int, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor | None]:
            own, change = view.blocks[layer], self.change[layer]
            mean = own.norm.hat(exact(x))[0, kept].mean(0)
            text = OfText(mean, None if outputs is None else outputs[layer], len(row) - 1)
            heads = centred(own, self.view.blocks[layer], change, text)
            new, beside = rewritten(own, [heads], change, None, x, *rest)
            found[layer] = held(own, heads, new[0])
            return new, beside

        self.own.trace(row, edit={layer: Rewrite(partial(look, layer)) for layer in self.change})
        return found

    def seen(self, ids: Tensor) -> View:
        """The View that a Trace of this text has."""
        blocks = self.of_text(ids).items()
        return with_blocks(
            self.own.view, {at: _read(self.own.view.blocks[at], self.change[at], one) for at, one in blocks}
        )

    def under(self, batch: Sequence[Tensor], edit: Edits | None = None, given: int = 0) -> Edits:
        """Edits of the model as it is that carry out these edits, and then `edit`, on texts side by side.

        The first `given` layers are not computed again, so what these edits do there is done already.
        """
        texts, merged = [self.of_text(ids) for ids in batch], dict[Any, Any](edit or {})
        for layer, change in self.change.items():
            mine = {at: merged.pop(at) for at in list(merged) if (at if isinstance(at, int) else at[0]) == layer}
            if layer >= given or mine:
                then = further(self.own.view, layer, mine)
                heads = [one[layer] for one in texts]
                merged[layer] = Rewrite(partial(rewritten, self.own.view.blocks[layer], heads, change, then))
        return merged

    def trace(
        self, text: Text | Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Any:
        many = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
        batch: Any = text if many else [text]
        ids = [self.ids(one) for one in batch]
        found = self.own.trace(batch, logits, self.under(ids, edit), hooks)
        parts = {one.name: getattr(found, one.name) for one in fields(found) if one.init}
        views = tuple(map(self.seen, ids))
        if edit is None and hooks is None:
            self._put_midpoints(found, views)
        traces = EditedTraces(**parts | {"view": self.view}, views=views)
        return traces if many else traces[0]

    @torch.no_grad()
    def _put_midpoints(self, traces: Traces, views: Sequence[View]) -> None:
        """The point after attention of a parallel block, which the model never reads, with what further values write there."""
        for layer, change in self.change.items():
            at = traces.middle[layer]
            if change.contents and traces.steps[at] in traces.not_read:
                for trace, view in zip(traces, views, strict=True):
                    trace.points[at] = trace.read_by(layer) + view.blocks[layer].added(exact(trace.read_by(layer)))

    def run(self, text: Text, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        return self.own.run(text, self.under([self.ids(text)], edit), hooks)

    def run_batch(
        self, ids: Tensor, edit: Edits | None = None, hooks: Hooks | None = None, given: Sequence[Any] = ()
    ) -> Tensor:
        return self.own.run_batch(ids, self.under(list(ids), edit, len(given)), hooks, given)

    def passed(self, ids: Tensor) -> list[Any]:
        with self.own.changed(self.under(list(ids)), None):
            return self.own.passed(ids)

    def gradients(self, text: Text, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with self.own.changed(self.under([self.ids(text)]), None):
            return self.own.gradients(text, of)

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
    change = changes(model.view, edits)
    why = RheoscopeError("an edited head is centred by the mean of a text; type model.trace(text).view")
    blocks = {layer: unread(edited_heads(model.view.blocks[layer], one), why) for layer, one in change.items()}
    view = with_blocks(model.view, blocks)
    return Edited(model.network, model.tokenizer, model.description, view, model, change)


def _read(own: Heads, change: Change, heads: Heads) -> Heads:
    why = why_unread(own, change)
    return heads if why is None else unread(heads, why)


# An edited layer while the model runs


def further(view: View, layer: int, edit: dict[Any, Any]) -> Further | None:
    """What else changes an edited layer: a Rewrite, or edits of the layer or of its heads."""
    if not edit:
        return None
    if isinstance(edit.get(layer), Rewrite):
        return edit[layer].change
    change = by_layer(view.blocks, edit)[layer]
    return lambda x, q, k, v, mechanism, out: (change(q, k, v, mechanism, out), None)


def rewritten(
    own: Heads,
    heads: Sequence[Heads],
    change: Change,
    then: Further | None,
    x: Float[Tensor, "b n d"],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Float[Tensor, "b h n e"],
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b n d"] | None]:
    """The edited heads of every text attend anew, every other stays as the model computed it; then what changes them further."""
    read = [one.read(row[None]) for one, row in zip(heads, x, strict=True)]
    q, k, v = (torch.cat(side) for side in zip(*read, strict=True))
    at, e, first = torch.arange(x.shape[1], device=x.device), out.shape[-1], heads[0].mechanism
    if first.position.moves:  # as the running model has them
        q, k = (
            torch.cat([one.mechanism.position.place(row[None], at) for one, row in zip(heads, side, strict=True)])
            for side in (q, k)
        )
    mechanism = replace(mechanism, score=first.score)
    new, same = mechanism.attend(q, k, v).clone(), sorted(set(range(own.count)) - change.attending_anew)
    new[:, same, :, :e] = out[:, same].to(new)
    if change.silent:
        told = torch.stack([one.b_V[change.silent, None, :e] for one in heads if one.b_V is not None])
        new[:, change.silent, :, :e] = told.to(new)
    new, beside = (new, None) if then is None else then(x, q, k, v, mechanism, new)
    if new.shape[-1] > e:
        more = written(own, heads[0], x, new)
        beside = more if beside is None else beside + more
    return new[..., :e], beside


def written(
    own: Heads, heads: Heads, x: Float[Tensor, "b n d"], out: Float[Tensor, "b h n wide"]
) -> Float[Tensor, "b n d"]:
    """What further columns of values add to every token; a norm after attention gives it the scale that it gives to the others."""
    e, out = own.W_O.shape[-2], own.gated(out, x)
    moved = (out[..., e:] @ heads.W_O[:, e:]).sum(1)
    if own.after is None:
        return moved
    total = (out[..., :e] @ own.W_O).sum(1)
    return moved * own.after.scale(total if own.b_O is None else total + own.b_O)
