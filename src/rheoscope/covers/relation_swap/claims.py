"""The claim that attention weights move the prediction more than values do."""

from collections import defaultdict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.covers.relation_swap.analysis import LayerEdits, check_unembedding, use_values, use_weights
from rheoscope.covers.text_batches import max_texts, mean_kl
from rheoscope.messages.message import Message
from rheoscope.space.claim import Claim, ClaimPart, ClaimSample, Measured
from rheoscope.space.model import Model
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.traces import Traces

MIN_TOKENS = 2
"""The weights of a single token cannot differ, so shorter texts have no value."""


@torch.no_grad()
def measure(sample: ClaimSample) -> dict[str, Measured]:
    check_unembedding(sample.model)
    texts = [ids[:n] for traces in sample.batches for ids, n in zip(traces.ids, traces.lengths.tolist(), strict=True)]
    texts_by_length: dict[int, list[int]] = defaultdict(list)
    donors = donors_by_length([len(ids) for ids in texts])
    for text, donor in enumerate(donors):
        texts_by_length[min(len(texts[text]), len(texts[donor]))].append(text)
    shares, n_done = torch.full((len(texts),), torch.nan, dtype=torch.float64, device=texts[0].device), 0
    for length, group in texts_by_length.items():
        for chunk in torch.tensor(group).split(max_texts(sample.model, length)):
            pair = [torch.stack([side[:length] for side in sides]) for sides in
                    ([texts[i] for i in chunk], [texts[donors[i]] for i in chunk])]  # fmt: skip
            if length >= MIN_TOKENS:
                model, donor_model = (sample.model_for(x) for x in (chunk.tolist(), [donors[i] for i in chunk]))
                shares[chunk.to(shares.device)] = kl_share_difference(model, donor_model, *pair).to(shares)
            n_done += len(chunk)
            if sample.progress is not None:
                sample.progress(n_done, len(texts))
    return {"relation": Measured(shares)}


def donors_by_length(lengths: list[int]) -> list[int]:
    """For each text the next one in the order of lengths, of which little is cut off. The longest takes the one before it.

    >>> donors_by_length([30, 10, 20])
    [2, 2, 0]
    """
    order = sorted(range(len(lengths)), key=lambda text: lengths[text])
    donors = dict(zip(order, [*order[1:], order[-2]], strict=True))
    return [donors[text] for text in range(len(lengths))]


def kl_share_difference(
    model: Model, donor_model: Model, ids: Int[Tensor, "b n"], donor_ids: Int[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """(KL_A − KL_V)/(KL_A + KL_V), with the weights A or the values V of the donors in all layers; 0 if nothing changes."""
    donors = donor_model.trace(list(donor_ids))
    logits = model.run_batch(ids)
    kl_weights, kl_values = (
        mean_kl(logits, model.run_batch(ids, edit=edits)).double().clamp(min=0) for edits in swaps(donors)
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
            ),
        ),
        reason=Message("at .1, weights have 55 % of the sum of both divergences and values 45 %"),
        null=Message("0: weights and values move the prediction equally"),
        random_models="untrained",
        measure=measure,
        document="A",
    ),
)
