"""Do points go to what comes next? Cosines with the words of a text, and whose next token a place is coupled to."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.space.safe_arithmetic import exact
from rheoscope.space.view import View
from rheoscope.statistics.nulls import permutations, successors

TABLE = 40
"""So many times faster a number is a product of matrices: with draws that are rarer among all pairs these are not all computed."""


def is_tied(view: View) -> bool:
    """Whether words are read out by the table that reads them in."""
    if view.unembed is None:
        return True
    one, other = view.unembed.mT, view.embed
    same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()  # then nobody need look
    return one.shape == other.shape and (same or torch.equal(one, other))


def words_in(view: View, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Where tokens enter the stream: their rows of the embedding."""
    return exact(view.embedded(ids)).double()


def words_out(view: View, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Where the stream must point for tokens to be predicted: their rows of the embedding where it is tied, else their columns
    of the unembedding with the gain of the final norm, which no move between the two changes."""
    if view.unembed is None or is_tied(view):
        return words_in(view, ids)
    norm, columns = view.final_norm, exact(view.unembed[:, ids.to(view.unembed.device)].mT)
    return norm.centre(columns if norm.gain is None else columns * norm.gain.to(columns.dtype)).double()


def toward_own(
    points: Float[Tensor, "p n d"], view: View, ids: Int[Tensor, " text"], places: list[int]
) -> Float[Tensor, " p"]:
    """Mean cosine of every token with its own word, both clouds seen from their means."""
    words = _directions(words_in(view, ids[places]).to(points.device))
    return (_directions(points) * words).sum(-1).mean(-1)


def toward_next(
    points: Float[Tensor, "p n d"], view: View, ids: Int[Tensor, " text"], places: list[int], draws: int, seed: int
) -> tuple[Float[Tensor, " p"], Float[Tensor, "p draw"]]:
    """Mean cosine of every token with the word that comes next, and the same with the text in other orders."""
    asked = [at for at, place in enumerate(places) if place + 1 < len(ids)]  # nothing comes after the last
    here = torch.tensor([places[at] for at in asked])
    words = words_out(view, ids).to(points.device)
    words = _unit(words - words[here + 1].mean(0))
    after = torch.cat([here[None] + 1, successors(len(ids), draws, seed)[:, here]])
    found = mean_cosines(_directions(points)[:, asked], words, after)
    return found[:, 0], found[:, 1:]


def mean_cosines(
    x: Float[Tensor, "p n d"], words: Float[Tensor, "m d"], after: Int[Tensor, "draw n"]
) -> Float[Tensor, "p draw"]:
    """Mean inner product of every token with the word that each draw gives it; of few draws without the table of all pairs."""
    if TABLE * len(after) < len(words):
        return torch.stack([(x * words[one]).sum(-1).mean(-1) for one in after], -1)
    places = torch.arange(x.shape[1])
    return torch.stack([(one @ words.mT)[places, after].mean(-1) for one in x])  # one table at a time


def next_type_share(
    partner: Int[Tensor, " n"], ids: Int[Tensor, " text"], places: list[int], draws: int, seed: int
) -> tuple[Float[Tensor, ""], Float[Tensor, " draw"]]:
    """The share of tokens whose partner's next token is of their type, and the same with partners permuted.

    A partner that ends the text has no next token and is left out.
    """
    there = torch.tensor(places)
    orders = torch.cat([torch.arange(len(places))[None], permutations(len(places), draws, seed)])
    after = there[partner.cpu()[orders]] + 1
    told: Bool[Tensor, "draw n"] = after < len(ids)
    hits = (ids.cpu()[after.clamp(max=len(ids) - 1)] == ids.cpu()[there]) & told
    share = hits.double().sum(-1) / told.sum(-1)
    return share[0], share[1:]


def _directions(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    return _unit(x - x.mean(-2, keepdim=True))


def _unit(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)
