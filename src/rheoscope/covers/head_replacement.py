"""A layer whose M or F is another while the model runs: the change is computed from the points that the model itself reads.

The change of M becomes further columns of queries and keys (`space/bilinear_form.py`), that of F further columns of values, whose mix is
added where attention writes. Weights are never touched.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from rheoscope.attention.definition import for_every_head
from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.head_selection import Chosen
from rheoscope.covers.replacements import CONTENT, RELEVANCE, named
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import Columns, Form, columns, less, own_form, with_columns
from rheoscope.space.head import Heads
from rheoscope.space.model import Rewrite
from rheoscope.space.operator import Factored
from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.view import View
from rheoscope.statistics.nulls import rotations


@dataclass(frozen=True, eq=False)
class Operation:
    """One layer: the change of the form and of the content of its `chosen` heads, centred or not.

    With `like`, every head's change is scaled until it is as large on the text's cloud as that one.
    """

    layer: int
    heads: Heads
    chosen: list[int]
    form: Form = ()
    content: Factored | None = None
    centred_form: bool = True
    centred_content: bool = True
    like: "Operation | None" = None


@dataclass(frozen=True, eq=False)
class Plan:
    """What the heads of a layer have, and what shall stand in its place: forms, and contents where F changes."""

    layer: int
    heads: Heads
    chosen: list[int]
    forms: tuple[Form, Form]
    contents: tuple[Factored, Factored] | None
    centred_form: bool
    centred_content: bool

    def operation(self, form: Form, content: Factored | None) -> Operation:
        return Operation(self.layer, self.heads, self.chosen, form, content, self.centred_form, self.centred_content)


@torch.no_grad()
def plans(view: View, chosen: Chosen, M: str | None, F: str | None) -> list[Plan]:
    """What changes in every layer, by the names of what stands in the place of M and of F."""
    if M is None and F is None:
        raise RheoscopeError("nothing to change; type M='symmetric' or F='symmetric'")
    relevance, content = named(M or "identity", RELEVANCE, "M"), named(F or "identity", CONTENT, "F")
    found = []
    for layer, some in chosen.items():
        heads = view.blocks[layer]
        form: Form = () if M is None else own_form(heads)
        forms = form, () if M is None else relevance.make(heads, form, relevance.rank)
        own = None if content is CONTENT["identity"] else heads.F().exact()
        contents = None if own is None else (own, content.make(heads, own, content.rank))
        found.append(Plan(layer, heads, some, forms, contents, relevance.centred, content.centred))
    return found


def edit(plan: Plan, generator: Generator) -> Operation:
    """The replacement itself."""
    old, new = plan.forms
    return plan.operation(less(new, old), None if plan.contents is None else _difference(*plan.contents))


def same_size(plan: Plan, generator: Generator) -> Operation:
    """The change turned at random on both sides: of the same singular values at every offset, along other directions."""
    old, new = plan.forms
    content = None if plan.contents is None else _turned_content(_difference(*plan.contents), generator)
    return plan.operation(turned(less(new, old), generator), content)


def same_on_cloud(plan: Plan, generator: Generator) -> Operation:
    """The change turned at random, and scaled until its scores (or displacements) on each text are as large as the edit's."""
    return replace(same_size(plan, generator), like=edit(plan, generator))


def same_spectrum(plan: Plan, generator: Generator) -> Operation:
    """The replacement turned at random on both sides: its singular values at every offset, and nothing else of it."""
    old, new = plan.forms
    content = None
    if plan.contents is not None:
        content = _difference(plan.contents[0], _turned_content(plan.contents[1], generator))
    return plan.operation(less(turned(new, generator), old), content)


def _difference(old: Factored, new: Factored) -> Factored:
    return new + old * -1.0


def turned(form: Form, generator: Generator) -> Form:
    """O M(δ) Pᵀ at every offset, O and P random orthogonal maps of E, the same for all heads of a layer."""
    if not form:
        return form
    one, other = (_rotation(form[0].left, generator) for _ in range(2))
    return tuple(replace(term, left=one @ term.left, right=other @ term.right) for term in form)


def _turned_content(F: Factored, generator: Generator) -> Factored:
    one, other = (_rotation(F.left, generator) for _ in range(2))
    return Factored(one @ F.left, F.right @ other.mT)


def _rotation(like: Float[Tensor, "h d r"], generator: Generator) -> Float[Tensor, "d d"]:
    return rotations(1, like.shape[-2], generator, like.dtype)[0].to(like.device)


# While the model runs


def live(kept: Bool[Tensor, "*b n"], made: Iterable[Operation]) -> dict[int, Rewrite]:
    """Edits of `model.run` that carry out operations; `kept` says which tokens of each text make its own mean."""
    return {one.layer: Rewrite(partial(changed, one, kept)) for one in made if one.form or one.content is not None}


def changed(
    one: Operation,
    kept: Bool[Tensor, "*b n"],
    x: Float[Tensor, "b n d"],
    q: Float[Tensor, "b h n k"],
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    out: Float[Tensor, "b h n e"],
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b n d"] | None]:
    """The chosen heads attend anew, to further columns, and what another F adds; every other stays as the model computed it."""
    hat = one.heads.norm.hat(exact(x))
    centred, width, new = hat - _mean(hat, kept), v.shape[-1], out
    k, v = for_every_head(k, q.shape[1])[:, one.chosen], for_every_head(v, q.shape[1])[:, one.chosen]
    mechanism, q = mechanism.of_heads(one.chosen), q[:, one.chosen]
    if one.form:
        more = _columns(one, centred if one.centred_form else hat, hat)
        mechanism, q, k = with_columns(mechanism, q, k, more)
    if one.content is not None:
        carried = _carried(one, centred if one.centred_content else hat)
        v = torch.cat([v.to(carried), carried], -1)
    mixed = mechanism.attend(q, k, v.to(q.dtype))
    if one.form:
        new = out.clone()
        new[:, one.chosen] = mixed[..., :width].to(out.dtype)
    return new, None if one.content is None else _written(one, x, mixed[..., width:], new)


def _mean(hat: Float[Tensor, "b n d"], kept: Bool[Tensor, "*b n"]) -> Float[Tensor, "b 1 d"]:
    """x̄ of every text: the mean over its kept tokens."""
    share = kept.to(hat) / kept.sum(-1, keepdim=True)
    return (share[..., None] * hat).sum(-2, keepdim=True)


def _columns(one: Operation, cloud: Float[Tensor, "b n d"], hat: Float[Tensor, "b n d"]) -> Columns:
    """The change of the form as further queries and keys of the chosen heads, as large on each text as it shall be."""
    q, k = columns(one.heads, one.form, cloud, hat, one.chosen)
    if one.like is None:
        return q, k
    wanted = reach(*columns(one.heads, one.like.form, cloud, hat, one.chosen))
    return q * _ratio(wanted, reach(q, k)), k


def _carried(one: Operation, cloud: Float[Tensor, "b n d"]) -> Float[Tensor, "b c n r"]:
    """The cloud as further values, which the change of F makes displacements of."""
    assert one.content is not None
    carried = cloud[:, None] @ one.content.left[one.chosen]
    if one.like is None or one.like.content is None:
        return carried
    left, right = one.like.content.left[one.chosen], one.like.content.right[one.chosen]
    wanted, there = _size(cloud[:, None] @ left, right), _size(carried, one.content.right[one.chosen])
    return carried * _ratio(wanted, there)


def _size(carried: Float[Tensor, "b c n r"], right: Float[Tensor, "c r d"]) -> Float[Tensor, "b c"]:
    return Factored(carried, right.expand(len(carried), -1, -1, -1)).norm()


def reach(q: Float[Tensor, "*b h n r"], k: Float[Tensor, "*b h n r"]) -> Float[Tensor, "*b h"]:
    """How large scores q kᵀ are over all pairs, without what is constant along a row."""
    return Factored(q, (k - k.mean(-2, keepdim=True)).mT).norm()


def _ratio(wanted: Float[Tensor, "b c"], there: Float[Tensor, "b c"]) -> Float[Tensor, "b c 1 1"]:
    """By how much a change grows to be as large as another; one that is nothing on this cloud stays nothing."""
    return torch.where(there > 0, wanted / torch.where(there > 0, there, 1), 1)[..., None, None]


def _written(
    one: Operation, x: Float[Tensor, "b n d"], mixed: Float[Tensor, "b c n r"], out: Float[Tensor, "b h n e"]
) -> Float[Tensor, "b n d"]:
    """What another F adds to every token; a norm after attention gives it the scale that it gives to the layer."""
    assert one.content is not None
    mixed = one.heads.gated(mixed, x, one.chosen)
    moved = (mixed.to(one.content.right) @ one.content.right[one.chosen]).sum(1)
    if one.heads.after is None:
        return moved
    total = (one.heads.gated(out, x) @ one.heads.W_O).sum(1)
    return moved * one.heads.after.scale(total if one.heads.b_O is None else total + one.heads.b_O)
