"""Edited operators as operators: the heads of a layer whose weights carry its edits, for one text.

    s'_ij = s_ij + (x̂_i − x̄) ΔM(δ) (x̂_j − x̄)ᵀ        Δ'(x_i) = Δ(x_i) + Σ_j α_ij (x̂_j − x̄) ΔF

Both are further columns of queries, keys and values, x̄ in their biases: so whatever reads heads reads edited ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.attention.feature_maps import added
from rheoscope.attention.position import At, Biases, PairBias, Placed, Position, Pulled
from rheoscope.covers.head_replacement import Operation
from rheoscope.shapes import KeyAt, RheoscopeError, RowAt, Scores
from rheoscope.space.bilinear_form import Term
from rheoscope.space.head import Heads, Norm, Projected, through
from rheoscope.space.safe_arithmetic import exact

Weights = Float[Tensor, "h d k"]
Biased = Float[Tensor, "h k"]
LONGEST = 2048
"""Tokens of a text that is not known yet, at most."""


@dataclass(frozen=True, eq=False)
class OfText:
    """What an edited layer has to know of a text: x̄, what every head gives on average where one is silenced, its last token."""

    mean: Float[Tensor, " d"]
    outputs: Float[Tensor, "h e"] | None
    last: int


@dataclass(frozen=True, eq=False)
class Turns(Position):
    """Groups of columns side by side, each turned in its own way (see `Term`); biases of scores are the model's own.

    Turning back is turning forth from the `last` token on.
    """

    own: Position
    turns: tuple[tuple[str, int], ...]
    last: int = LONGEST - 1

    moves = True

    def place(self, x: Placed, at: At) -> Placed:
        return torch.cat([self.own.place(part, where) for part, where in self._groups(x, at)], -1)

    def pull(self, at: At, dy: Placed) -> Pulled:
        pulled = [self.own.pull(where, part) for part, where in self._groups(dy, at)]
        return torch.cat([one for one, _ in pulled], -1), reduce(added, (tensors for _, tensors in pulled))

    def _groups(self, x: Placed, at: At) -> list[tuple[Tensor, Tensor]]:
        where = {"forth": at, "back": (self.last - at).clamp(min=0), "still": torch.zeros_like(at)}
        parts = x.split([width for _, width in self.turns], -1)
        return [(part, where[turn]) for part, (turn, _) in zip(parts, self.turns, strict=True)]

    def rotation(self, offset: int, width: int, like: Tensor) -> Float[Tensor, "k k"]:
        by = {"forth": offset, "back": -offset, "still": 0}
        return torch.block_diag(*(self.own.rotation(by[turn], wide, like) for turn, wide in self.turns))

    def fit(self, b: int, h: int, m: int, n: int, d: int) -> None:
        self.own.fit(b, h, m, n, self.turns[0][1])

    def bias(self, i: RowAt, j: KeyAt) -> Biases | None:
        return self.own.bias(i, j)

    def pull_bias(self, i: RowAt, j: KeyAt, r: Scores) -> dict[str, Tensor]:
        return self.own.pull_bias(i, j, r)

    def pair_bias(self, m: int, n: int) -> PairBias | None:
        return self.own.pair_bias(m, n)

    def of_heads(self, some: list[int]) -> "Turns":
        return replace(self, own=self.own.of_heads(some))


@dataclass(frozen=True, eq=False, repr=False)
class Leading(Norm):
    """A norm of queries or keys that looks at their first `width` columns: the others get the same scale."""

    width: int = 0

    def hat(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return self.centre(x) * self.scale(x)

    def centre(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
        return torch.cat([super().centre(x[..., : self.width]), x[..., self.width :]], -1)

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        return super().scale(x[..., : self.width])


@dataclass(frozen=True, eq=False, repr=False)
class Held(Norm):
    """A norm after attention at the scale `c` that it has for the tokens of one text; that is known at the text's points alone."""

    c: Float[Tensor, "n 1"] | None = None

    def normed(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
        """What the model's own norm is here."""
        if x.requires_grad:
            raise RheoscopeError(
                "F of a head is edited in this layer, and the norm after its attention is held at the scale that it has for this "
                "text, so there is no derivative through it; edit M instead, or ask the text without edits"
            )
        return x * self.scale(x) if self.bias is None else x * self.scale(x) + self.bias

    def scale(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n 1"]:
        assert self.c is not None
        return self.c


@dataclass(frozen=True, eq=False)
class Change:
    """What becomes of a layer: operations on its heads, and the heads that are silenced."""

    made: Sequence[Operation]
    silent: list[int]

    @property
    def forms(self) -> list[Operation]:
        return [one for one in self.made if one.form]

    @property
    def contents(self) -> list[Operation]:
        return [one for one in self.made if one.content is not None]

    @property
    def attending_anew(self) -> set[int]:
        """Heads whose weights are not the model's own."""
        return {head for one in self.forms for head in one.chosen}


@torch.no_grad()
def edited_heads(heads: Heads, change: Change) -> Heads:
    """The heads of a layer with a change written into their weights; for a text they are still to be centred."""
    found = _with_contents(_of_hats(heads), change)
    return _with_forms(found, change) if change.forms else found


@torch.no_grad()
def centred(own: Heads, heads: Heads, change: Change, text: OfText) -> Heads:
    """Edited heads for one text, its x̄ and what it makes silenced heads give in their biases; `own` are those before the edit."""
    k, e, position = own.W_Q.shape[-1], own.W_O.shape[-2], heads.mechanism.position
    b_V = _less_mean(heads.W_V, heads.b_V, text.mean, e)
    if text.outputs is not None:
        b_V[change.silent, :e] = text.outputs[change.silent].to(b_V)
    if isinstance(position, Turns):
        position = replace(position, last=text.last)
    found = replace(
        heads,
        b_Q=_less_mean(heads.W_Q, heads.b_Q, text.mean, k),
        b_K=_less_mean(heads.W_K, heads.b_K, text.mean, k),
        b_V=b_V,
        mechanism=replace(heads.mechanism, position=position),
    )
    return replace(found, project=partial(_projected, found))


@torch.no_grad()
def held(own: Heads, heads: Heads, outputs: Float[Tensor, "h n e"]) -> Heads:
    """Edited heads whose norm after attention, if there is one, keeps the scale that it has for the model's own columns."""
    if own.after is None or heads.W_O.shape == own.W_O.shape:
        return heads
    total = (outputs @ own.W_O).sum(0)
    c = own.after.scale(total if own.b_O is None else total + own.b_O)
    after = Held(bias=own.after.bias, eps=own.after.eps, c=c)
    gain = torch.ones_like(total[0]) if own.after.gain is None else own.after.gain.to(total)
    W_O = torch.cat([own.W_O * gain, heads.W_O[:, own.W_O.shape[-2] :]], -2)
    return replace(
        heads,
        W_O=W_O,
        b_O=None if own.b_O is None else own.b_O * gain,
        after=replace(after, own=after.normed),
    )


def _less_mean(W: Weights, b: Biased | None, mean: Float[Tensor, " d"], own: int) -> Biased:
    """The biases that take x̄ from what further columns, those after the first `own`, read."""
    return torch.cat([_there(b)[:, :own], -(mean.to(W) @ W[..., own:])], -1)


def _projected(heads: Heads, hat: Float[Tensor, "b n d"]) -> Projected:
    q = through(heads.norm, hat, heads.W_Q, heads.b_Q, heads.q_norm)
    k = through(heads.norm, hat, heads.W_K, heads.b_K, heads.k_norm)
    return q, k, through(heads.norm, hat, heads.W_V, heads.b_V, None)


def _of_hats(heads: Heads) -> Heads:
    """The same heads as maps of x̂ itself, the gain and the bias of the norm in their weights; every head with keys of its own."""
    norm = heads.norm
    sides = (heads.W_Q, heads.b_Q), (heads.W_K, heads.b_K), (heads.W_V, heads.b_V)
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (_of_hat(norm, exact(W), b, heads.count) for W, b in sides)
    bare = Norm(norm.hat, eps=norm.eps, centred=norm.centred)
    return replace(heads, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=exact(heads.W_O), b_Q=b_Q, b_K=b_K, b_V=b_V, norm=bare)


def _of_hat(
    norm: Norm, W: Float[Tensor, "g d k"], b: Float[Tensor, "g k"] | None, heads: int
) -> tuple[Weights, Biased]:
    bias = W.new_zeros(len(W), W.shape[-1]) if b is None else b.to(W)
    bias = bias if norm.bias is None else bias + norm.bias.to(W) @ W
    W = W if norm.gain is None else norm.gain.to(W)[:, None] * W
    return tuple(x.repeat_interleave(heads // len(x), 0) for x in (W, bias))  # type: ignore[return-value]


def _with_contents(heads: Heads, change: Change) -> Heads:
    """ΔF in further columns of values; a silenced head carries nothing from the tokens."""
    W, b = heads.W_V.clone(), _there(heads.b_V).clone()
    W[change.silent], b[change.silent] = 0, 0
    contents = [(one.chosen, one.content) for one in change.contents if one.content is not None]
    wide = max([F.left.shape[-1] for _, F in contents], default=0)
    left, right = W.new_zeros(*W.shape[:2], wide), W.new_zeros(len(W), wide, heads.W_O.shape[-1])
    for chosen, F in contents:
        left[chosen, :, : F.left.shape[-1]], right[chosen, : F.left.shape[-1]] = F.left[chosen], F.right[chosen]
    return replace(
        heads,
        W_V=torch.cat([W, left], -1),
        b_V=torch.nn.functional.pad(b, (0, wide)),
        W_O=torch.cat([heads.W_O, right], -2),
    )


def _with_forms(heads: Heads, change: Change) -> Heads:
    """ΔM in further columns of queries and keys; scores that are no plain dot products have those added beside them."""
    terms = _side_by_side(heads, change.forms)
    plain, own = heads.plain, heads.W_Q.shape[-1]
    left, right = (torch.cat(side, -1) for side in zip(*((one.left, one.right) for one in terms), strict=True))
    score, position, more = heads.mechanism.score, heads.mechanism.position, left.shape[-1]
    if position.moves:
        position = Turns(position, (("forth", own), *((one.turn, one.left.shape[-1]) for one in terms)))
    score = score.scaled(heads.scale) if plain else score.with_columns(more)
    return replace(
        heads,
        W_Q=torch.cat([heads.W_Q, left / heads.scale if plain else left], -1),
        W_K=torch.cat([heads.W_K, right], -1),
        b_Q=torch.nn.functional.pad(_there(heads.b_Q), (0, more)),
        b_K=torch.nn.functional.pad(_there(heads.b_K), (0, more)),
        q_norm=_leading(heads.q_norm, own, more),
        k_norm=_leading(heads.k_norm, own, more),
        mechanism=replace(heads.mechanism, score=score, position=position),
    )


def _there(bias: Tensor | None) -> Tensor:
    assert bias is not None
    return bias


def _leading(norm: Norm | None, own: int, more: int) -> Norm | None:
    if norm is None:
        return None
    gain = None if norm.gain is None else torch.cat([norm.gain, norm.gain.new_ones(more)])
    return Leading(norm.own, gain, norm.bias, norm.eps, norm.centred, own)


def _side_by_side(heads: Heads, made: Sequence[Operation]) -> list[Term]:
    """The terms of all operations, those of different heads that turn alike in the same columns."""
    found: dict[tuple[str, int, int], Term] = {}
    for one in made:
        for at, term in enumerate(one.form):
            wide = term.left.shape[-1]
            nothing = term.left.new_zeros(heads.count, term.left.shape[-2], wide)
            slot = found.setdefault((term.turn, at, wide), Term(nothing, nothing.clone(), term.turn))
            slot.left[one.chosen] = term.left[one.chosen] * term.weight
            slot.right[one.chosen] = term.right[one.chosen]
    return list(found.values())


def unread(heads: Heads, why: RheoscopeError) -> Heads:
    """The same operators M and F, which read no cloud."""

    def refuse(u: Tensor) -> Projected:
        raise RheoscopeError(*why.args)

    return replace(heads, project=refuse)


def why_unread(heads: Heads, change: Change) -> RheoscopeError | None:
    """Why an edited layer is not told by its operators alone, where it is not."""
    if change.silent and not (heads.mechanism.normaliser.sums_to_one and heads.mechanism.value.identity):
        return RheoscopeError(
            "a head is silenced in this layer, and weights here do not add up to 1, so no operators give its mean; look at "
            "another layer"
        )
    return None
