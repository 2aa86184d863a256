"""Edits as values: which head, which of its operators, what happens to it; several of them as one change a layer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from rheoscope.covers.head_replacement import OperatorEdit
from rheoscope.covers.replacements import CONTENT, RELEVANCE, find_replacement
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
    {"name": "symmetric", "title": "the symmetric part", "takes": None, "parts": ["M", "F", "both"]},
    {"name": "skew", "title": "the skew part", "takes": None, "parts": ["M"]},
    {"name": "rank", "title": "the best copy of rank r", "takes": "rank", "parts": ["M", "F", "both"]},
    {"name": "offset0", "title": "M(0) at every offset", "takes": None, "parts": ["M"]},
    {"name": "scale", "title": "times a number", "takes": "factor", "parts": ["M", "F", "both"]},
    {"name": "ablate", "title": "its mean over the text", "takes": None, "parts": ["both"]},
)
"""What can be done to a head, as the page offers it."""
SURGERY_NAMES = {"offset0": "at_zero"}
"""Names of the page that surgery calls otherwise."""
MAX_VALUE = 100.0


@dataclass(frozen=True)
class Edit:
    """One change of one head: `operation` on M (what it looks for), on F (what it carries) or on both.

    Every operator is replaced between tokens less the mean of their cloud, as `rs.surgery` does it.
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
    """Refuse an edit that this model has no place for, before anything runs."""
    for edit in edits:
        view.heads_of(edit.layer, edit.head)
        operation = next(candidate for candidate in OPERATIONS if candidate["name"] == edit.operation)
        if edit.part not in operation["parts"] and edit.operation != "ablate":
            raise RheoscopeError(
                f"{edit.operation} is an operation on {' or '.join(operation['parts'])}, got {edit.part!r}"
            )
        if (operation["takes"] is None) == (edit.value is not None):
            takes = "no value" if operation["takes"] is None else f"a value, its {operation['takes']}"
            raise RheoscopeError(f"{edit.operation} takes {takes}, got {edit.value!r}")
        if edit.value is not None and not abs(edit.value) <= max(MAX_VALUE, view.width):
            raise RheoscopeError(f"a value lies within ±{max(MAX_VALUE, view.width):.0f}, got {edit.value!r}")


@torch.no_grad()
def edits_per_head(view: View, edits: Sequence[Edit]) -> dict[LayerHead, OperatorEdit]:
    """What every edited head does instead, edits of one head one after the other; silenced heads do nothing else."""
    silenced = silenced_heads(edits)
    by_head = {}
    for layer_head in dict.fromkeys((edit.layer, edit.head) for edit in edits):
        head_edits = [edit for edit in edits if (edit.layer, edit.head) == layer_head]
        if layer_head not in silenced:
            by_head[layer_head] = _combine_head_edits(view, layer_head, head_edits)
    return by_head


def silenced_heads(edits: Sequence[Edit]) -> list[LayerHead]:
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
        raise RheoscopeError("a rank is taken of M itself; type the rank before the other edits of this head")
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
    """All edits as one change a layer; what silenced heads give is not said, since every text has its own. Times 1 is none."""
    by_head, silenced = edits_per_head(view, edits), silenced_heads(edits)
    layer_edits = {}
    for layer in sorted({edit.layer for edit in edits}):
        operator_edits = [
            operator_edit
            for layer_head, operator_edit in by_head.items()
            if layer_head[0] == layer and (operator_edit.form or operator_edit.content is not None)
        ]
        silenced_in_layer = [head for silenced_layer, head in silenced if silenced_layer == layer]
        if operator_edits or silenced_in_layer:
            layer_edits[layer] = LayerEdits(operator_edits, silenced_in_layer)
    return layer_edits
