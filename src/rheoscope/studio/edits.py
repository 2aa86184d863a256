"""Edits of heads as values, their checks, and the operator edits that they stand for."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from rheoscope.covers.head_replacement import OperatorEdit
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
from rheoscope.messages.advice import page_setting
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Form, heads_form, scale_form, subtract_forms
from rheoscope.space.operator import Factored
from rheoscope.space.view import View
from rheoscope.studio.edited_heads import LayerEdits

OperatorPart = Literal["M", "F", "both"]
OperationName = Literal["symmetric", "skew", "rank", "offset0", "ablate", "scale"]
LayerHead = tuple[int, int]
"""Layer and head."""
OPERATIONS: tuple[dict[str, Any], ...] = (
    {"name": "symmetric", "title": Message("symmetric part"), "takes": None, "parts": ["M", "F", "both"]},
    {"name": "skew", "title": Message("skew part"), "takes": None, "parts": ["M"]},
    {"name": "rank", "title": Message("truncate to rank"), "takes": "rank", "parts": ["M", "F", "both"]},
    {"name": "offset0", "title": Message("M(0), without position"), "takes": None, "parts": ["M"]},
    {"name": "scale", "title": Message("scale by"), "takes": "factor", "parts": ["M", "F", "both"]},
    {"name": "ablate", "title": Message("ablate"), "takes": None, "parts": ["both"]},
)
"""The operations on a head that the page offers."""
SURGERY_NAMES = {"offset0": "at_zero"}
"""Names of operations that differ from those of `rs.surgery`."""
MAX_VALUE = 100.0


@dataclass(frozen=True)
class Edit:
    """One edit of one head: an `operation` on M, on F or on both.

    The edited operator acts on tokens minus the mean of their cloud, as in `rs.surgery`.
    """

    layer: int
    head: int
    operation: OperationName
    part: OperatorPart = "M"
    value: float | int | None = None

    @property
    def json_dict(self) -> dict[str, Any]:
        return asdict(self) | {"value": None if self.value is None else float(self.value)}


def check_edits(view: View, edits: Sequence[Edit]) -> None:
    """Refuse an edit that does not fit this model, before the model runs."""
    for edit in edits:
        view.heads_of(edit.layer, edit.head)
        operation = next(candidate for candidate in OPERATIONS if candidate["name"] == edit.operation)
        if edit.part not in operation["parts"] and edit.operation != "ablate":
            raise RheoscopeError(
                Message(
                    "part must be one of {parts} for {operation}, got {received!r}",
                    parts=", ".join(operation["parts"]),
                    operation=edit.operation,
                    received=edit.part,
                ),
                page_setting(f"part={operation['parts'][0]}"),
            )
        if (operation["takes"] is None) == (edit.value is not None):
            raise RheoscopeError(
                Message("{operation} takes no value, got {received}", operation=edit.operation, received=edit.value)
                if operation["takes"] is None
                else Message("{operation} needs a value: its {name}", operation=edit.operation, name=operation["takes"])
            )
        if edit.value is not None and not abs(edit.value) <= max(MAX_VALUE, view.width):
            limit = max(MAX_VALUE, view.width)
            raise RheoscopeError(
                Message("value must lie within ±{limit:.0f}, got {received}", limit=limit, received=edit.value)
            )


@torch.no_grad()
def edits_per_head(view: View, edits: Sequence[Edit]) -> dict[LayerHead, OperatorEdit]:
    """The operator edit of every edited head. Edits of one head apply in order; ablated heads are left out."""
    ablated = ablated_heads(edits)
    by_head = {}
    for layer_head in dict.fromkeys((edit.layer, edit.head) for edit in edits):
        head_edits = [edit for edit in edits if (edit.layer, edit.head) == layer_head]
        if layer_head not in ablated:
            by_head[layer_head] = _combine_head_edits(view, layer_head, head_edits)
    return by_head


def ablated_heads(edits: Sequence[Edit]) -> list[LayerHead]:
    return [(edit.layer, edit.head) for edit in edits if edit.operation == "ablate"]


def _combine_head_edits(view: View, layer_head: LayerHead, edits: Sequence[Edit]) -> OperatorEdit:
    heads = view.heads_of(*layer_head)
    form_edits = [edit for edit in edits if edit.part in ("M", "both")]
    content_edits = [edit for edit in edits if edit.part in ("F", "both")]
    form: Form = ()
    if form_edits:
        base_form = edited_form = heads_form(heads)
        for edit in form_edits:
            edited_form = _edit_form(edit, heads, edited_form)
        form = subtract_forms(edited_form, base_form)
    content = None
    if content_edits:
        base_content = edited_content = heads.F().at_least_float32()
        for edit in content_edits:
            edited_content = _edit_content(edit, heads, edited_content)
        content = edited_content + base_content * -1.0
    return OperatorEdit(layer_head[0], heads, [layer_head[1]], form, content)


def _edit_form(edit: Edit, heads: Any, form: Form) -> Form:
    if edit.operation == "scale":
        return scale_form(form, float(edit.value or 0.0))
    if edit.operation == "rank" and len(form) > 1:
        raise RheoscopeError(Message("the rank edit must come before the other edits of M of this head"))
    return _replacement_function(edit, RELEVANCE, "M")(heads, form)


def _edit_content(edit: Edit, heads: Any, content: Factored) -> Factored:
    return (
        content * float(edit.value or 0.0)
        if edit.operation == "scale"
        else _replacement_function(edit, CONTENT, "F")(heads, content)
    )


def _replacement_function(edit: Edit, table: Any, operator_name: str) -> Callable[[Any, Any], Any]:
    replacement_name = (
        f"rank {int(edit.value or 0)}"
        if edit.operation == "rank"
        else SURGERY_NAMES.get(edit.operation, edit.operation)
    )
    replacement = find_replacement(replacement_name, table, operator_name)
    return lambda heads, operator: replacement.build(heads, operator, replacement.rank)


@torch.no_grad()
def plan_layer_edits(view: View, edits: Sequence[Edit]) -> dict[int, LayerEdits]:
    """The edits of each layer, without those that change nothing. The mean output of an ablated head depends on the text."""
    by_head, ablated = edits_per_head(view, edits), ablated_heads(edits)
    layer_edits = {}
    for layer in sorted({edit.layer for edit in edits}):
        operator_edits = [
            operator_edit
            for layer_head, operator_edit in by_head.items()
            if layer_head[0] == layer and (operator_edit.form or operator_edit.content is not None)
        ]
        ablated_in_layer = [head for ablated_layer, head in ablated if ablated_layer == layer]
        if operator_edits or ablated_in_layer:
            layer_edits[layer] = LayerEdits(operator_edits, ablated_in_layer)
    return layer_edits
