"""Do tokens move toward the next token? Cosines with token vectors, and the next tokens of coupled partners."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.space.predictions import next_token_logits
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.view import View
from rheoscope.statistics.nulls import random_permutations, random_successors

TABLE_SPEEDUP = 40
"""The speedup of a matrix product over gathered inner products. With few draws, gathering is faster."""


def is_tied(view: View) -> bool:
    """Whether the unembedding is the transposed embedding."""
    if view.unembed is None:
        return True
    unembedding, embedding = view.unembed.mT, view.embed
    # comparing addresses first avoids comparing the values
    same_storage = unembedding.data_ptr() == embedding.data_ptr() and unembedding.stride() == embedding.stride()
    return unembedding.shape == embedding.shape and (same_storage or torch.equal(unembedding, embedding))


def embedding_condition(tied: bool) -> Message:
    """Whether the embedding and the unembedding share their vectors, as a phrase."""
    return Message("tied embeddings") if tied else Message("untied embeddings")


def is_mispredicted(
    view: View, points: Float[Tensor, "text d"], ids: Int[Tensor, " text"], positions: Int[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Whether a token has a next token and the model's top prediction at its last point is another one."""
    with torch.no_grad():
        top_tokens = next_token_logits(view, points.to(view.embed.dtype)).argmax(-1).cpu()
    has_next = positions + 1 < len(ids)
    return has_next & (top_tokens[positions] != ids.cpu()[(positions + 1).clamp(max=len(ids) - 1)])


def prediction_accuracy(
    is_wrong: Bool[Tensor, " n"], positions: Int[Tensor, " n"], text_length: int
) -> Float[Tensor, ""]:
    """The share of tokens with a next token whose next token is the model's top prediction; NaN without such tokens.

    >>> float(prediction_accuracy(torch.tensor([True, False, False]), torch.tensor([0, 1, 2]), 3))
    0.5
    """
    return 1 - is_wrong.sum().double() / (positions + 1 < text_length).sum()


def mispredicted_share(
    partner: Int[Tensor, " n"], ids: Int[Tensor, " text"], positions: Int[Tensor, " n"], is_wrong: Bool[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The next-type share among mispredicted partners, and its exact mean over permutations of these pairs; NaN without any."""
    next_ids = ids.cpu()[(positions + 1).clamp(max=len(ids) - 1)]
    is_hit = ids.cpu()[positions][:, None] == next_ids
    wrong_pairs = is_wrong[partner.cpu()]
    share, null = pair_share(is_hit, partner.cpu(), wrong_pairs, wrong_pairs, is_wrong)
    return share, null


def pair_share(
    is_hit: Bool[Tensor, "n n"],
    partner: Int[Tensor, " n"],
    pairs: Bool[Tensor, " n"],
    tokens: Bool[Tensor, " n"],
    partners: Bool[Tensor, " n"],
) -> Float[Tensor, "2"]:
    """The share of hits among `pairs`, and its exact mean over all assignments of `partners` to `tokens`.

    Every token meets every partner equally often, so the mean over permutations is the mean over all pairs of both.
    """
    hits = is_hit.gather(1, partner[:, None])[:, 0]
    return torch.stack([hits[pairs].double().mean(), is_hit[tokens][:, partners].double().mean()])


def embedding_vectors(view: View, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """The embedding rows of the tokens."""
    return at_least_float32(view.token_embeddings(ids)).double()


def readout_vectors(view: View, ids: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """The directions of the stream that predict the tokens.

    These are the embedding rows if the embedding is tied, else the columns of the unembedding with the gain of the final norm.
    """
    if view.unembed is None or is_tied(view):
        return embedding_vectors(view, ids)
    norm, columns = view.final_norm, at_least_float32(view.unembed[:, ids.to(view.unembed.device)].mT)
    return norm.centre(columns if norm.gain is None else columns * norm.gain.to(columns.dtype)).double()


def cosine_with_own_token(
    points: Float[Tensor, "p n d"], view: View, ids: Int[Tensor, " text"], positions: list[int]
) -> Float[Tensor, " p"]:
    """Mean cosine of the tokens with their own embedding rows, both centred."""
    own_vectors = _centred_directions(embedding_vectors(view, ids[positions]).to(points.device))
    return (_centred_directions(points) * own_vectors).sum(-1).mean(-1)


def cosine_with_next_token(
    points: Float[Tensor, "p n d"], view: View, ids: Int[Tensor, " text"], positions: list[int], draws: int, seed: int
) -> tuple[Float[Tensor, " p"], Float[Tensor, "p draw"]]:
    """Mean cosine of the tokens with the vectors of their next tokens, and the same for permuted texts."""
    rows_with_next = [row for row, position in enumerate(positions) if position + 1 < len(ids)]
    positions_with_next = torch.tensor([positions[row] for row in rows_with_next])
    token_vectors = readout_vectors(view, ids).to(points.device)
    token_vectors = _normalise(token_vectors - token_vectors[positions_with_next + 1].mean(0))
    next_positions = torch.cat(
        [positions_with_next[None] + 1, random_successors(len(ids), draws, seed)[:, positions_with_next]]
    )
    cosines = mean_cosines(_centred_directions(points)[:, rows_with_next], token_vectors, next_positions)
    return cosines[:, 0], cosines[:, 1:]


def mean_cosines(
    x: Float[Tensor, "p n d"], vectors: Float[Tensor, "m d"], targets: Int[Tensor, "draw n"]
) -> Float[Tensor, "p draw"]:
    """Mean inner product of the tokens with their target vectors, per draw. Few draws avoid the table of all pairs."""
    if TABLE_SPEEDUP * len(targets) < len(vectors):
        return torch.stack([(x * vectors[target]).sum(-1).mean(-1) for target in targets], -1)
    rows = torch.arange(x.shape[1])
    return torch.stack(
        [(cloud @ vectors.mT)[rows, targets].mean(-1) for cloud in x]
    )  # one cloud at a time limits memory


def next_type_share(
    partner: Int[Tensor, " n"], ids: Int[Tensor, " text"], positions: list[int], draws: int, seed: int
) -> tuple[Float[Tensor, ""], Float[Tensor, " draw"]]:
    """The share of tokens whose partner is followed by a token of their type, and the same for permuted partners.

    A partner at the end of the text has no next token. Its token is left out of numerator and denominator, so that the share
    can reach 1.
    """
    position_index = torch.tensor(positions)
    orders = torch.cat([torch.arange(len(positions))[None], random_permutations(len(positions), draws, seed)])
    next_positions = position_index[partner.cpu()[orders]] + 1
    has_next: Bool[Tensor, "draw n"] = next_positions < len(ids)
    hits = (ids.cpu()[next_positions.clamp(max=len(ids) - 1)] == ids.cpu()[position_index]) & has_next
    fractions = hits.double().sum(-1) / has_next.sum(-1)
    return fractions[0], fractions[1:]


def _centred_directions(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    return _normalise(x - x.mean(-2, keepdim=True))


def _normalise(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-30)
