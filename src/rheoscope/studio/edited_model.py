"""A model with edited heads, as a model: it runs, traces and differentiates with the edits applied."""

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
from rheoscope.covers.text_batches import included_tokens
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.head_edits import edits_by_layer
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from rheoscope.space.model import Edits, Hooks, Input, Rewrite, Text, Texts
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.space.view import View
from rheoscope.studio.edited_heads import (
    LayerEdits,
    TextStatistics,
    centre_on_text,
    fix_output_norm,
    projection_error,
    without_projection,
    write_edits_into_heads,
)
from rheoscope.studio.edits import Edit, check_edits, plan_layer_edits

FurtherEdit = Callable[[Tensor, Tensor, Tensor, Tensor, Mechanism, Tensor], tuple[Tensor, Tensor | None]]
"""A further edit of an edited layer, like `Rewrite`. Its arguments include the extra columns."""
EditedLayers = dict[int, Heads]
"""Layer → its edited heads."""


def with_layer_heads(view: View, layer_heads: EditedLayers) -> View:
    """A View with the heads of some layers replaced."""
    return replace(
        view, layer_heads=tuple(layer_heads.get(layer, heads) for layer, heads in enumerate(view.layer_heads))
    )


@dataclass(frozen=True, eq=False, repr=False)
class EditedTraces(Traces):
    """Traces of texts in an edited model. Each text has its own View, because its mean centres the edits."""

    text_views: tuple[View, ...] = ()

    def _make_trace(self, index: int, n_tokens: int) -> Trace:
        return replace(super()._make_trace(index, n_tokens), view=self.text_views[index])

    def _slice(self, index: slice) -> "EditedTraces":
        sliced = super()._slice(index)
        assert isinstance(sliced, EditedTraces)
        return replace(sliced, text_views=self.text_views[index])


@dataclass(frozen=True, eq=False, repr=False)
class EditedModel(RunnableModel):
    """A model (`base_model`) with edited heads. Further edits and hooks apply to it as to any model.

    An edit is centred on x̄, the mean of the text at the input of the edited layer. So a text runs twice at first. The base
    model determines the massive tokens and the mean outputs of ablated heads. The edited model then determines x̄. Both are
    cached, and x̄ is held fixed from then on. The View of a Trace contains the edits for its text. The View of the model has
    no text, so only M and F can be read from it.
    """

    base_model: RunnableModel
    edits_per_layer: dict[int, LayerEdits]
    _layer_cache: dict[tuple[int, ...], EditedLayers] = field(default_factory=dict)

    def layers_for_text(self, ids: Tensor) -> EditedLayers:
        """The edited layers for one text, cached."""
        token_ids = tuple(ids.tolist())
        if token_ids not in self._layer_cache:
            self._layer_cache[token_ids] = self._compute_layers(list(token_ids))
        return self._layer_cache[token_ids]

    @torch.no_grad()
    def _compute_layers(self, token_ids: list[int]) -> EditedLayers:
        base_trace, view, edited_layers = self.base_model.trace(token_ids), self.base_model.view, EditedLayers()
        included = included_tokens(base_trace)
        mean_head_outputs = (
            mean_outputs(base_trace, included)
            if any(layer_edits.ablated_heads for layer_edits in self.edits_per_layer.values())
            else None
        )

        def centre_layer(layer: int, x: Tensor, *attention_args: Any) -> tuple[Tensor, Tensor | None]:
            base_heads, layer_edits = view.layer_heads[layer], self.edits_per_layer[layer]
            x_mean = base_heads.norm.normalise(at_least_float32(x))[0, included].mean(0)
            statistics = TextStatistics(
                x_mean, None if mean_head_outputs is None else mean_head_outputs[layer], len(token_ids) - 1
            )
            heads = centre_on_text(base_heads, self.view.layer_heads[layer], layer_edits, statistics)
            new_outputs, extra_write = run_edited_layer(base_heads, [heads], layer_edits, None, x, *attention_args)
            edited_layers[layer] = fix_output_norm(base_heads, heads, new_outputs[0])
            return new_outputs, extra_write

        self.base_model.trace(
            token_ids, edit={layer: Rewrite(partial(centre_layer, layer)) for layer in self.edits_per_layer}
        )
        return edited_layers

    def view_for_text(self, ids: Tensor) -> View:
        """The View of a Trace of this text."""
        edited_layers = self.layers_for_text(ids).items()
        return with_layer_heads(
            self.base_model.view,
            {
                layer: _readable_heads(self.base_model.view.layer_heads[layer], self.edits_per_layer[layer], heads)
                for layer, heads in edited_layers
            },
        )

    def merged_edits(self, batch: Sequence[Tensor], edit: Edits | None = None, n_computed: int = 0) -> Edits:
        """Edits of the base model that apply the edits of this model and then `edit`, for a batch of texts.

        The first `n_computed` layers are not computed again, so their edits are left out.
        """
        layers_of_texts, merged = [self.layers_for_text(ids) for ids in batch], dict[Any, Any](edit or {})
        for layer, layer_edits in self.edits_per_layer.items():
            further_edits = {
                edit_key: merged.pop(edit_key)
                for edit_key in list(merged)
                if (edit_key if isinstance(edit_key, int) else edit_key[0]) == layer
            }
            if layer >= n_computed or further_edits:
                further_edit = make_further_edit(self.base_model.view, layer, further_edits)
                heads = [edited_layers[layer] for edited_layers in layers_of_texts]
                merged[layer] = Rewrite(
                    partial(run_edited_layer, self.base_model.view.layer_heads[layer], heads, layer_edits, further_edit)
                )
        return merged

    def trace(
        self, text: Input | Texts, logits: bool = False, edit: Edits | None = None, hooks: Hooks | None = None
    ) -> Any:
        is_batch = isinstance(text, list | tuple) and bool(text) and not isinstance(text[0], Integral)
        batch: Any = text if is_batch else [text]
        ids = [self.ids(text_item) for text_item in batch]
        base_traces = self.base_model.trace(batch, logits, self.merged_edits(ids, edit), hooks)
        field_values = {item.name: getattr(base_traces, item.name) for item in fields(base_traces) if item.init}
        views = tuple(map(self.view_for_text, ids))
        if edit is None and hooks is None:
            self._fill_midpoints(base_traces, views)
        traces = EditedTraces(**field_values | {"view": self.view}, text_views=views)
        return traces if is_batch else traces[0]

    @torch.no_grad()
    def _fill_midpoints(self, traces: Traces, views: Sequence[View]) -> None:
        """Recompute the points after attention of parallel blocks, which the model itself does not compute, with the edits."""
        for layer, layer_edits in self.edits_per_layer.items():
            step_index = traces.mid_steps[layer]
            if layer_edits.content_edits and traces.steps[step_index] in traces.unread_steps:
                for trace, view in zip(traces, views, strict=True):
                    trace.points[step_index] = trace.layer_input(layer) + view.layer_heads[layer].attention_update(
                        at_least_float32(trace.layer_input(layer))
                    )

    def run(self, text: Text, edit: Edits | None = None, hooks: Hooks | None = None) -> Tensor:
        return self.base_model.run(text, self.merged_edits([self.ids(text)], edit), hooks)

    def run_batch(
        self, ids: Tensor, edit: Edits | None = None, hooks: Hooks | None = None, block_outputs: Sequence[Any] = ()
    ) -> Tensor:
        return self.base_model.run_batch(
            ids, self.merged_edits(list(ids), edit, len(block_outputs)), hooks, block_outputs
        )

    def block_outputs(self, ids: Tensor) -> list[Any]:
        with self.base_model.apply_edits(self.merged_edits(list(ids)), None):
            return self.base_model.block_outputs(ids)

    def gradients(self, text: Text, objective: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with self.base_model.apply_edits(self.merged_edits([self.ids(text)]), None):
            return self.base_model.gradients(text, objective)

    def forward_logits(self, ids: Tensor, is_token: Tensor | None) -> Tensor:
        return self.base_model.forward_logits(ids, is_token)

    def forward_points(self, ids: Tensor, is_token: Tensor | None) -> None:
        self.base_model.forward_points(ids, is_token)

    def edit_heads(self, edit: Edits) -> AbstractContextManager[None]:
        return self.base_model.edit_heads(edit)

    def encode(self, text: str) -> list[int]:
        return self.base_model.encode(text)

    def decode(self, token_id: int) -> str:
        return self.base_model.decode(token_id)

    def vocabulary_entry(self, token_id: int) -> str:
        return self.base_model.vocabulary_entry(token_id)


def with_edits(model: RunnableModel, edits: Sequence[Edit]) -> RunnableModel:
    """The model with all edits applied. Without edits it is the model itself."""
    check_edits(model.view, edits)
    if not edits:
        return model
    edits_per_layer = plan_layer_edits(model.view, edits)
    error = RheoscopeError(
        Message("an edited head is centred on the mean of a text, and this View has no text"),
        Advice("model.trace(text).view"),
    )
    edited_layers = {
        layer: without_projection(write_edits_into_heads(model.view.layer_heads[layer], layer_edits), error)
        for layer, layer_edits in edits_per_layer.items()
    }
    view = with_layer_heads(model.view, edited_layers)
    return EditedModel(model.network, model.tokenizer, model.description, view, model, edits_per_layer)


def _readable_heads(base_heads: Heads, layer_edits: LayerEdits, heads: Heads) -> Heads:
    error = projection_error(base_heads, layer_edits)
    return heads if error is None else without_projection(heads, error)


# An edited layer while the model runs


def make_further_edit(view: View, layer: int, edit: dict[Any, Any]) -> FurtherEdit | None:
    """The further edits of an edited layer as one function: a Rewrite, or edits of the layer or its heads."""
    if not edit:
        return None
    if isinstance(edit.get(layer), Rewrite):
        return edit[layer].edit
    layer_edit = edits_by_layer(view.layer_heads, edit)[layer]
    return lambda x, q, k, v, mechanism, out: (layer_edit(q, k, v, mechanism, out), None)


def run_edited_layer(
    base_heads: Heads,
    heads: Sequence[Heads],
    layer_edits: LayerEdits,
    further_edit: FurtherEdit | None,
    x: Float[Tensor, "b n d"],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Float[Tensor, "b h n e"],
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b n d"] | None]:
    """Recompute attention with the edited heads of every text, keep all other heads, then apply the further edit."""
    projections = [text_heads.qkv(text_rows[None]) for text_heads, text_rows in zip(heads, x, strict=True)]
    q, k, v = (torch.cat(projection) for projection in zip(*projections, strict=True))
    positions, e, edited_mechanism = torch.arange(x.shape[1], device=x.device), out.shape[-1], heads[0].mechanism
    if edited_mechanism.position.changes_tokens:  # a running model passes rotated queries and keys
        q, k = (
            torch.cat(
                [
                    text_heads.mechanism.position.encode(text_rows[None], positions)
                    for text_heads, text_rows in zip(heads, projection, strict=True)
                ]
            )
            for projection in (q, k)
        )
    mechanism = replace(mechanism, score=edited_mechanism.score)
    outputs, unchanged_heads = (
        mechanism.attend(q, k, v).clone(),
        sorted(set(range(base_heads.n_heads)) - layer_edits.reweighted_heads),
    )
    outputs[:, unchanged_heads, :, :e] = out[:, unchanged_heads].to(outputs)
    if layer_edits.ablated_heads:
        ablated_outputs = torch.stack(
            [text_heads.b_V[layer_edits.ablated_heads, None, :e] for text_heads in heads if text_heads.b_V is not None]
        )
        outputs[:, layer_edits.ablated_heads, :, :e] = ablated_outputs.to(outputs)
    outputs, extra_write = (outputs, None) if further_edit is None else further_edit(x, q, k, v, mechanism, outputs)
    if outputs.shape[-1] > e:
        content_write = extra_content_write(base_heads, heads[0], x, outputs)
        extra_write = content_write if extra_write is None else extra_write + content_write
    return outputs[..., :e], extra_write


def extra_content_write(
    base_heads: Heads, heads: Heads, x: Float[Tensor, "b n d"], out: Float[Tensor, "b h n wide"]
) -> Float[Tensor, "b n d"]:
    """The update by the extra columns of the values. A norm after attention scales it like the other columns."""
    e, out = base_heads.W_O.shape[-2], base_heads.apply_gate(out, x, all_outputs=out)
    displacement = (out[..., e:] @ heads.W_O[:, e:]).sum(1)
    if base_heads.output_norm is None:
        return displacement
    total = (out[..., :e] @ base_heads.W_O).sum(1)
    return displacement * base_heads.output_norm.scale(total if base_heads.b_O is None else total + base_heads.b_O)
