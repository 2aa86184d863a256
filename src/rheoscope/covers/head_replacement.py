"""Edits that replace M or F of the heads of a layer while the model runs.

A change of M becomes extra columns of queries and keys (`space/bilinear_form.py`). A change of F becomes extra columns of
values, whose mixture is added to the output of attention. The weights of the model are never modified.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.attention.definition import repeat_kv_heads
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.head_selection import HeadsByLayer
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import (
    Columns,
    Form,
    HeadSelection,
    heads_form,
    query_key_columns,
    subtract_forms,
    with_dot_columns,
)
from rheoscope.space.head import Heads
from rheoscope.space.model import Rewrite
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.view import View
from rheoscope.statistics.nulls import random_rotations


@dataclass(frozen=True, eq=False)
class OperatorEdit:
    """The change of the form and the content of some heads of one layer, on centred tokens or not.

    With `size_reference`, the change of every head is scaled to the size of that edit on the cloud of each text.
    """

    layer: int
    heads: Heads
    head_indices: list[int]
    form: Form = ()
    content: Factored | None = None
    centred_form: bool = True
    centred_content: bool = True
    size_reference: "OperatorEdit | None" = None

    @property
    def is_of_all_heads(self) -> bool:
        return self.head_indices == list(range(self.heads.n_heads))

    @property
    def head_selection(self) -> HeadSelection:
        """The heads as an index of tensors. A list of indices would be copied to the device by every use."""
        return slice(None) if self.is_of_all_heads else self.head_indices


@dataclass(frozen=True, eq=False)
class EditPlan:
    """The old and the new forms of the heads of a layer, and their old and new contents if F changes."""

    layer: int
    heads: Heads
    head_indices: list[int]
    forms: tuple[Form, Form]
    contents: tuple[Factored, Factored] | None
    centred_form: bool
    centred_content: bool

    def make_edit(self, form: Form, content: Factored | None) -> OperatorEdit:
        return OperatorEdit(
            self.layer, self.heads, self.head_indices, form, content, self.centred_form, self.centred_content
        )


@torch.no_grad()
def plan_edits(view: View, heads_by_layer: HeadsByLayer, M: str | None, F: str | None) -> list[EditPlan]:
    """The plan of every layer, for replacements of M and F by name."""
    if M is None and F is None:
        raise RheoscopeError(Message("an edit needs a replacement of M or F, got neither"), use(M="symmetric"))
    relevance, content = (
        find_replacement(M or "identity", RELEVANCE, "M"),
        find_replacement(F or "identity", CONTENT, "F"),
    )
    edit_plans = []
    for layer, head_indices in heads_by_layer.items():
        heads = view.layer_heads[layer]
        old_form: Form = () if M is None else heads_form(heads)
        forms = old_form, () if M is None else relevance.build(heads, old_form, relevance.rank)
        old_content = None if content is CONTENT["identity"] else heads.F().at_least_float32()
        contents = None if old_content is None else (old_content, content.build(heads, old_content, content.rank))
        edit_plans.append(EditPlan(layer, heads, head_indices, forms, contents, relevance.centred, content.centred))
    return edit_plans


def replacement_edit(plan: EditPlan, generator: Generator) -> OperatorEdit:
    """The edit that replaces the old operators by the new ones."""
    old, new = plan.forms
    return plan.make_edit(subtract_forms(new, old), None if plan.contents is None else _difference(*plan.contents))


def same_size_control(plan: EditPlan, generator: Generator) -> OperatorEdit:
    """A random change with the singular values of the edit at every offset, in randomly rotated directions."""
    old, new = plan.forms
    content = None if plan.contents is None else _rotate_content(_difference(*plan.contents), generator)
    return plan.make_edit(rotate_form(subtract_forms(new, old), generator), content)


def same_cloud_size_control(plan: EditPlan, generator: Generator) -> OperatorEdit:
    """A random change, scaled so that its scores or displacements on each text are as large as those of the edit."""
    return replace(same_size_control(plan, generator), size_reference=replacement_edit(plan, generator))


def same_spectrum_control(plan: EditPlan, generator: Generator) -> OperatorEdit:
    """A random replacement with the singular values of the new operator at every offset."""
    old, new = plan.forms
    content = None
    if plan.contents is not None:
        content = _difference(plan.contents[0], _rotate_content(plan.contents[1], generator))
    return plan.make_edit(subtract_forms(rotate_form(new, generator), old), content)


def _difference(old: Factored, new: Factored) -> Factored:
    return new + old * -1.0


def rotate_form(form: Form, generator: Generator) -> Form:
    """O M(δ) Pᵀ at every offset, with random orthogonal maps O and P of E that all heads of a layer share."""
    if not form:
        return form
    left_rotation, right_rotation = (_random_rotation(form[0].left, generator) for _ in range(2))
    return tuple(replace(term, left=left_rotation @ term.left, right=right_rotation @ term.right) for term in form)


def _rotate_content(F: Factored, generator: Generator) -> Factored:
    read_rotation, write_rotation = (_random_rotation(F.left, generator) for _ in range(2))
    return Factored(read_rotation @ F.left, F.right @ write_rotation.mT)


def _random_rotation(factor: Float[Tensor, "h d r"], generator: Generator) -> Float[Tensor, "d d"]:
    return random_rotations(1, factor.shape[-2], generator, factor.dtype, factor.device)[0]


# Edits during a forward pass


def model_edits(is_included: Bool[Tensor, "*b n"], edits: Iterable[OperatorEdit]) -> dict[int, Rewrite]:
    """The edits as an argument of `model.run`. `is_included` selects the tokens that enter the mean of each text."""
    return {
        edit.layer: Rewrite(partial(edited_outputs, edit, is_included))
        for edit in edits
        if edit.form or edit.content is not None
    }


def edited_outputs(
    edit: OperatorEdit,
    is_included: Bool[Tensor, "*b n"],
    x: Float[Tensor, "b n d"],
    q: Float[Tensor, "b h n k"],
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Float[Tensor, "b h n e"],
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b n d"] | None]:
    """The outputs of the heads, recomputed with extra columns for the chosen heads, and the update of a changed F."""
    x_hat = edit.heads.norm.normalise(at_least_float32(x))
    centred_x_hat, value_width, new_out = x_hat - _token_mean(x_hat, is_included), v.shape[-1], out
    selection = edit.head_selection
    k, v = repeat_kv_heads(k, q.shape[1])[:, selection], repeat_kv_heads(v, q.shape[1])[:, selection]
    mechanism, q = mechanism if edit.is_of_all_heads else mechanism.select_heads(edit.head_indices), q[:, selection]
    if edit.form:
        extra_columns = _extra_columns(edit, centred_x_hat if edit.centred_form else x_hat, x_hat)
        mechanism, q, k = with_dot_columns(mechanism, q, k, extra_columns)
    if edit.content is not None:
        extra_values = _extra_values(edit, centred_x_hat if edit.centred_content else x_hat)
        v = torch.cat([v.to(extra_values), extra_values], -1)
    attended_values = mechanism.attend(q, k, v.to(q.dtype))
    if edit.form:
        new_out = out.clone()
        new_out[:, selection] = attended_values[..., :value_width].to(out.dtype)
    return new_out, None if edit.content is None else _content_update(
        edit, x, attended_values[..., value_width:], new_out
    )


def _token_mean(x_hat: Float[Tensor, "b n d"], is_included: Bool[Tensor, "*b n"]) -> Float[Tensor, "b 1 d"]:
    """x̄ of every text, the mean over its included tokens."""
    token_weights = is_included.to(x_hat) / is_included.sum(-1, keepdim=True)
    return (token_weights[..., None] * x_hat).sum(-2, keepdim=True)


def _extra_columns(edit: OperatorEdit, cloud: Float[Tensor, "b n d"], x_hat: Float[Tensor, "b n d"]) -> Columns:
    """The change of the form as extra columns of queries and keys, scaled to the size reference if there is one."""
    q, k = query_key_columns(edit.heads, edit.form, cloud, x_hat, edit.head_selection)
    if edit.size_reference is None:
        return q, k
    target_norm = score_norm(
        *query_key_columns(edit.heads, edit.size_reference.form, cloud, x_hat, edit.head_selection)
    )
    return q * _scale_ratio(target_norm, score_norm(q, k)), k


def _extra_values(edit: OperatorEdit, cloud: Float[Tensor, "b n d"]) -> Float[Tensor, "b c n r"]:
    """The cloud as extra columns of values, which the change of F maps to displacements."""
    assert edit.content is not None
    extra_values = cloud[:, None] @ edit.content.left[edit.head_selection]
    if edit.size_reference is None or edit.size_reference.content is None:
        return extra_values
    left, right = (
        edit.size_reference.content.left[edit.head_selection],
        edit.size_reference.content.right[edit.head_selection],
    )
    target_norm, current_norm = (
        _content_norm(cloud[:, None] @ left, right),
        _content_norm(extra_values, edit.content.right[edit.head_selection]),
    )
    return extra_values * _scale_ratio(target_norm, current_norm)


def _content_norm(values: Float[Tensor, "b c n r"], right: Float[Tensor, "c r d"]) -> Float[Tensor, "b c"]:
    return Factored(values, right.expand(len(values), -1, -1, -1)).norm()


def score_norm(q: Float[Tensor, "*b h n r"], k: Float[Tensor, "*b h n r"]) -> Float[Tensor, "*b h"]:
    """The norm of the scores q kᵀ over all pairs, after subtracting the mean of each row."""
    return Factored(q, (k - k.mean(-2, keepdim=True)).mT).norm()


def _scale_ratio(target_norm: Float[Tensor, "b c"], current_norm: Float[Tensor, "b c"]) -> Float[Tensor, "b c 1 1"]:
    """The factor that scales a change to the target norm; 1 if the change vanishes on this cloud."""
    return torch.where(current_norm > 0, target_norm / torch.where(current_norm > 0, current_norm, 1), 1)[
        ..., None, None
    ]


def _content_update(
    edit: OperatorEdit,
    x: Float[Tensor, "b n d"],
    attended_values: Float[Tensor, "b c n r"],
    out: Float[Tensor, "b h n e"],
) -> Float[Tensor, "b n d"]:
    """The update of every token by the change of F. A norm after attention scales it as it scales the layer's output."""
    assert edit.content is not None
    attended_values = edit.heads.apply_gate(attended_values, x, edit.head_indices, out)
    update = (attended_values.to(edit.content.right) @ edit.content.right[edit.head_selection]).sum(1)
    if edit.heads.output_norm is None:
        return update
    layer_output = (edit.heads.apply_gate(out, x, all_outputs=out) @ edit.heads.W_O).sum(1)
    return update * edit.heads.output_norm.scale(
        layer_output if edit.heads.b_O is None else layer_output + edit.heads.b_O
    )
