"""The claims that keeping identity is optimal, and that tokens move to where their next token is."""

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.cloud import Clouds, select_clouds
from rheoscope.flow.transport.next_token import (
    embedding_condition,
    is_mispredicted,
    is_tied,
    pair_share,
    prediction_accuracy,
)
from rheoscope.flow.transport.optimal_assignment import (
    direction_coupling,
    identity_share_null,
    identity_shares,
)
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_percent
from rheoscope.shapes import RheoscopeError
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import random_permutations

PERMUTATIONS = 40
"""Permutations of the displacements per text and layer."""
MIN_PAIRS = 8
"""The smallest number of wrongly predicted partners of a text with a value."""


def measure_identity(sample: ClaimSample) -> dict[str, Measured]:
    def measure_batch(traces: Traces) -> Measured:
        clouds, compute = _clouds(traces), partial(identity_values, seed=sample.seed)
        values = map(compute, clouds) if traces.points.is_cuda else map_on_cores(compute, clouds)
        observed, reference = torch.stack(list(values)).mT
        return Measured(observed, reference)

    return {"identity": sample.over_batches(measure_batch)}


def identity_values(clouds: Clouds, seed: int) -> Float[Tensor, "2"]:
    """The mean over layers of the identity share, and of its mean over permuted displacements; NaN below 2 tokens."""
    points, n = clouds.points.double(), len(clouds.positions)
    if n < 2:
        return points.new_full((2,), torch.nan)
    orders = random_permutations(n, PERMUTATIONS, seed).to(points.device)
    x, y = points[:-1], points[1:]
    return torch.stack([identity_shares(x, y).mean(), identity_share_null(x, y, orders).mean()])


def measure_next_token(sample: ClaimSample) -> dict[str, Measured]:
    view = sample.model.view
    if view.is_bidirectional:
        raise RheoscopeError(
            Message("expected a causal model, in which a token has a next token, got a bidirectional one"),
            Advice("rs.load()"),
        )
    parts: list[Float[Tensor, "text 4"]] = []

    def measure_batch(traces: Traces) -> Measured:
        values = torch.stack([next_token_values(clouds) for clouds in _clouds(traces)]).to(traces.points.device)
        parts.append(values)
        return Measured(values[:, 0], values[:, 1])

    share = sample.over_batches(measure_batch)
    beyond = torch.cat(parts)
    return {"share": share, "beyond_predictions": Measured(beyond[:, 2], beyond[:, 3])}


def next_token_values(clouds: Clouds) -> Float[Tensor, "4"]:
    """The next-type share with its mean over permuted partners, for all pairs and for wrongly predicted partners."""
    ids, n = clouds.trace.ids.cpu(), len(clouds.positions)
    if n < 2:
        return torch.full((4,), torch.nan, dtype=torch.float64)
    points = clouds.points[[0, -1]].double()
    partner, positions = direction_coupling(points[0], points[1]), torch.tensor(clouds.positions)
    has_next = positions + 1 < len(ids)
    next_ids = ids[(positions + 1).clamp(max=len(ids) - 1)]
    is_hit = (ids[positions][:, None] == next_ids) & has_next
    is_wrong = is_mispredicted(clouds.trace.view, clouds.trace.points[-1], ids, positions)
    all_tokens = torch.ones(n, dtype=torch.bool)
    share = pair_share(is_hit, partner, has_next[partner], all_tokens, has_next)
    wrong_pairs = is_wrong[partner]
    beyond = pair_share(is_hit, partner, wrong_pairs, wrong_pairs, is_wrong)
    return torch.cat([share, beyond if int(wrong_pairs.sum()) >= MIN_PAIRS else torch.full_like(beyond, torch.nan)])


def next_token_facts(sample: ClaimSample) -> dict[str, float]:
    """Whether embeddings are tied (1 or 0), and the mean over texts of the next-token accuracy."""
    accuracies = [text_accuracy(clouds) for traces in sample.batches for clouds in _clouds(traces)]
    return {
        "tied": float(is_tied(sample.model.view)),
        "accuracy": float(torch.tensor(accuracies, dtype=torch.float64).nanmean()),
    }


def text_accuracy(clouds: Clouds) -> float:
    """The share of tokens whose next token is the model's top prediction; NaN in a text of one token."""
    ids, positions = clouds.trace.ids, torch.tensor(clouds.positions, dtype=torch.long)
    is_wrong = is_mispredicted(clouds.trace.view, clouds.trace.points[-1], ids, positions)
    return float(prediction_accuracy(is_wrong, positions, len(ids)))


def next_token_notes(numbers: Mapping[str, float]) -> tuple[Message, ...]:
    return (
        Message(
            "With {embeddings}: {share} of all tokens, {beyond} where the prediction is wrong; {accuracy} of next tokens predicted",
            embeddings=embedding_condition(bool(numbers["tied"])),
            share=format_percent(numbers["share"]),
            beyond=format_percent(numbers["beyond_predictions"]),
            accuracy=format_percent(numbers["accuracy"]),
        ),
    )


def _clouds(traces: Traces) -> list[Clouds]:
    """The embedding and the end of every layer of every text, without massive tokens."""
    return [select_clouds(trace, "raw", "layer") for trace in traces]


CLAIMS = (
    Claim(
        order=9,
        name="identity",
        statement=Message("From layer to layer, keeping every token's identity is the optimal transport"),
        parts=(
            ClaimPart(
                "identity",
                Message(
                    "share of tokens that the optimal coupling of centred directions maps to themselves, from one layer to the "
                    "next; mean over layers"
                ),
                0.1,
                is_skewed=True,
                bounds=(-1.0, 1.0),
            ),
        ),
        reason=Message("a share that is higher by .1 keeps one more token in ten in its place"),
        null=Message("displacements permuted among the tokens of a text"),
        random_models="untrained",
        measure=measure_identity,
        document="C",
    ),
    Claim(
        order=10,
        name="next_token",
        statement=Message("From the embedding to the last layer, tokens move to where their next token is"),
        parts=(
            ClaimPart(
                "share",
                Message(
                    "share of tokens whose partner is followed by a token of their type. Partners are optimally coupled centred "
                    "directions of the embedding and of the last layer"
                ),
                0.05,
                bounds=(-1.0, 1.0),
            ),
            ClaimPart(
                "beyond_predictions",
                Message(
                    "the same share among partners whose next token is not the model's top prediction; at least 8 pairs per text"
                ),
                0.05,
                bounds=(-1.0, 1.0),
            ),
        ),
        reason=Message("a share that is higher by .05 moves one more token in twenty to its next token"),
        null=Message("partners permuted among the tokens of a text, in the second part among its pairs only"),
        random_models="untrained",
        measure=measure_next_token,
        needs_words=True,
        document="C",
        facts=next_token_facts,
        notes=next_token_notes,
    ),
)
