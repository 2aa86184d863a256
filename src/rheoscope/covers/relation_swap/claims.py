"""The claim that attention weights move the prediction more than values do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.relation_swap.analysis import LayerEdits, check_unembedding, use_values, use_weights
from rheoscope.covers.text_batches import max_texts, token_kl
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.masked_means import masked_mean
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.traces import Traces

MIN_TOKENS = 2
"""The weights of a single token cannot differ, so shorter texts have no value."""
PAIRS_PER_RUN = {"cpu": 4, "cuda": 24}
"""Pairs of similar length that run together. A GPU waits for the start of every operation."""


@dataclass(frozen=True)
class SwapPair:
    """A text and its donor, and the number of tokens that both have."""

    text: int
    donor: int
    length: int


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    check_unembedding(sample.model)
    texts = [ids[:n] for traces in sample.batches for ids, n in zip(traces.ids, traces.lengths.tolist(), strict=True)]
    shares, n_done = torch.full((len(texts),), torch.nan, dtype=torch.float64, device=texts[0].device), 0
    for run in pairs_by_run(sample.model, texts):
        if run[-1].length >= MIN_TOKENS:
            sides = [pair.text for pair in run], [pair.donor for pair in run]
            model, donor_model = (sample.model_for(side) for side in sides)
            ids, donor_ids = (padded([texts[i][: run[k].length] for k, i in enumerate(side)]) for side in sides)
            lengths = torch.tensor([pair.length for pair in run], device=shares.device)
            values = kl_share_difference(model, donor_model, ids, donor_ids, lengths).to(shares)
            shares[torch.tensor(sides[0], device=shares.device)] = torch.where(lengths >= MIN_TOKENS, values, torch.nan)
        n_done += len(run)
        if sample.progress is not None:
            sample.progress(n_done, len(texts))
    return {"relation": Measured(shares)}


def pairs_by_run(model: Model, texts: Sequence[Int[Tensor, " _"]]) -> Iterator[list[SwapPair]]:
    """The pairs that run together, in the order of their lengths.

    Texts of a causal model do not see the padding after them. Those of other models run with texts of the same length only.
    """
    lengths = [len(ids) for ids in texts]
    pairs = [
        SwapPair(text, donor, min(lengths[text], lengths[donor]))
        for text, donor in enumerate(donors_by_length(lengths))
    ]
    pairs.sort(key=lambda pair: pair.length)
    is_causal, limit = not model.view.is_bidirectional, PAIRS_PER_RUN.get(model.device.type, PAIRS_PER_RUN["cpu"])
    for _, group in groupby(pairs, key=lambda pair: is_causal or pair.length):
        same_run = list(group)
        size = min(limit, max_texts(model, same_run[-1].length))
        yield from (same_run[start : start + size] for start in range(0, len(same_run), size))


def padded(texts: Sequence[Int[Tensor, " _"]]) -> Int[Tensor, "b n"]:
    """The texts as rows, followed by their last token where they are shorter."""
    longest = max(map(len, texts))
    return torch.stack([torch.cat([ids, ids[-1:].expand(longest - len(ids))]) for ids in texts])


def donors_by_length(lengths: list[int]) -> list[int]:
    """For each text the next one in the order of lengths, of which little is cut off. The longest takes the one before it.

    >>> donors_by_length([30, 10, 20])
    [2, 2, 0]
    """
    order = sorted(range(len(lengths)), key=lambda text: lengths[text])
    donors = dict(zip(order, [*order[1:], order[-2]], strict=True))
    return [donors[text] for text in range(len(lengths))]


def kl_share_difference(
    model: Model, donor_model: Model, ids: Int[Tensor, "b n"], donor_ids: Int[Tensor, "b n"], lengths: Int[Tensor, " b"]
) -> Float[Tensor, " b"]:
    """(KL_A − KL_V)/(KL_A + KL_V), with the weights A or the values V of the donors in all layers; 0 if nothing changes."""
    donors = donor_model.trace(list(donor_ids))
    logits = model.run_batch(ids)
    is_token = torch.arange(ids.shape[-1], device=logits.device) < lengths.to(logits.device)[:, None]
    kl_weights, kl_values = (
        masked_mean(token_kl(logits, model.run_batch(ids, edit=edits)).double(), is_token).clamp(min=0)
        for edits in swaps(donors)
    )
    return safe_divide(kl_weights - kl_values, kl_weights + kl_values)


def swaps(donors: Traces) -> tuple[LayerEdits, LayerEdits]:
    """The edits that use the donors' weights, and those that use their values, in every layer."""
    weights, values = {}, {}
    for layer, heads in enumerate(donors.view.layer_heads):
        q, k, v = heads.qkv(donors.layer_input(layer))
        weights[layer] = use_weights(heads.mechanism.weights(q, k))
        values[layer] = use_values(v)
    return weights, values


CLAIMS = (
    Claim(
        order=5,
        name="relation",
        statement=Message("Attention weights move the prediction more than values do"),
        parts=(
            ClaimPart(
                "relation",
                Message(
                    "(KL_A − KL_V)/(KL_A + KL_V), with the weights A or the values V of another text in all layers; KL of the prediction, "
                    "mean over positions"
                ),
                0.1,
                bounds=(-1.0, 1.0),
            ),
        ),
        reason=Message("at .1, weights have 55 % of the sum of both divergences and values 45 %"),
        null=Message("0: weights and values move the prediction equally"),
        random_models="untrained",
        measure=measure,
        needs_words=True,
        document="A",
    ),
)
