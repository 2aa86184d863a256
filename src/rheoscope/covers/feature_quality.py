"""How well a sparse dictionary describes a model on texts: its error, its sparsity, and the loss with its reconstruction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.text_batches import next_token_losses
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.running.features import Features
from rheoscope.running.progress import tick
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.trace import Trace
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def feature_quality(model: RunnableModel, texts: Sequence[Any], features: Features) -> "xarray.Dataset":
    """How well a dictionary describes the points of these texts, and the loss of the model with its reconstruction.

    **Question** How much of what the model uses do the features hold?

    **Formula** explained variance 1 − Σ‖error‖²/Σ‖x − x̄‖², with the mean x̄ over all tokens. The spliced loss is that of the model
    if the reconstruction replaces x, the ablated loss if x̄ does. The recovered share is (ablated − spliced)/(ablated − original).

    **Returns** `explained_variance`, `active` features per token, `inactive_share` of the features that no token activates, `loss`,
    `loss_spliced`, `loss_ablated`, `loss_increase` and `loss_recovered`, with 95 % intervals over texts for means over tokens.

    **Laws** A dictionary without an error has explained variance 1 and no increase of the loss.

    >>> import rheoscope as rs
    >>> texts = ["The keys to the cabinet are on the table", "She lived in London", "In 1912 the ship sank", "A cat sat on it"]
    >>> quality = rs.feature_quality(rs.load(), texts, rs.Features.load())
    >>> bool(0 < quality.explained_variance < 1), bool(quality.loss <= quality.loss_spliced)
    (True, True)
    """
    features.check(model.view)
    if not texts or not model.view.predicts_next_token:
        raise RheoscopeError(
            Message("the quality of a dictionary needs texts and a model that predicts the next token"),
            Advice("rs.feature_quality(rs.load(), ['…', '…'], features)"),
        )
    traces = [model.trace(text) for text in texts]
    vectors = [features.writes.vectors(trace, list(range(len(trace)))) for trace in traces]
    mean = torch.cat(vectors).mean(0)
    rows, is_active = [], torch.zeros(len(features), dtype=torch.bool, device=mean.device)
    for index, (trace, x) in enumerate(zip(traces, vectors, strict=True)):
        tick(index, len(traces))
        total = features.decompose(trace, list(range(len(trace))))
        is_active |= (total.activations > 0).any(0)
        rows.append(text_sums(model, trace, features, total.activations, total.error, x - mean))
    sums = {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}
    values = pooled_values(sums) | {"inactive_share": (~is_active).double().mean()}
    attributes: dict[str, Any] = {"intervals": describe_intervals("texts", len(texts)), "texts": len(texts)}
    attributes |= {name: str(value) for name, value in model.view.facts.items()}
    return FEATURE_QUALITY.label(values, {}, attributes | features.provenance)


def text_sums(
    model: RunnableModel,
    trace: Trace,
    features: Features,
    activations: Float[Tensor, "n m"],
    error: Float[Tensor, "n d"],
    centred: Float[Tensor, "n d"],
) -> dict[str, float]:
    """The sums over the tokens of one text from which all values follow."""
    label = str(trace.steps[features.writes.last_step(trace)])
    losses = {
        "loss": model.run(trace),
        "loss_spliced": model.run(trace, hooks={label: lambda x: x - error.to(x)}),
        "loss_ablated": model.run(trace, hooks={label: lambda x: x - centred.to(x)}),
    }
    return {
        "tokens": float(len(trace)),
        "predicted": float(len(trace) - 1),
        "active": float((activations > 0).sum()),
        "error": float(error.double().square().sum()),
        "variance": float(centred.double().square().sum()),
    } | {name: float(next_token_losses(logits, trace.ids).double().sum()) for name, logits in losses.items()}


def pooled_values(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """All values with their intervals from the sums of every text."""
    tokens, predicted, variance = sums["tokens"], sums["predicted"], sums["variance"]
    ratios = {
        "explained_variance": (variance - sums["error"], variance),
        "active": (sums["active"], tokens),
        "loss": (sums["loss"], predicted),
        "loss_spliced": (sums["loss_spliced"], predicted),
        "loss_ablated": (sums["loss_ablated"], predicted),
        "loss_increase": (sums["loss_spliced"] - sums["loss"], predicted),
        "loss_recovered": (sums["loss_ablated"] - sums["loss_spliced"], sums["loss_ablated"] - sums["loss"]),
    }
    values: dict[str, Tensor] = {}
    for name, (numerator, denominator) in ratios.items():
        low, high = bootstrap_t_interval(numerator, denominator)
        values |= {name: numerator.sum() / denominator.sum(), f"{name}_low": low, f"{name}_high": high}
    return values


FEATURE_QUALITY = Analysis(
    name="feature_quality",
    question="How well does the dictionary describe the points of these texts?",
    ask=feature_quality,
    needs="model",
    fields={
        **with_interval(
            "explained_variance",
            Field((), "share of the variance of the points that the features and the constant explain"),
        ),
        **with_interval("active", Field((), "mean number of active features per token")),
        **with_interval("loss", Field((), "loss of the model per token", unit="nats")),
        **with_interval(
            "loss_spliced", Field((), "loss if the reconstruction replaces the points of the site", unit="nats")
        ),
        **with_interval("loss_ablated", Field((), "loss if their mean replaces the points of the site", unit="nats")),
        **with_interval(
            "loss_increase", Field((), "loss with the reconstruction minus loss of the model", unit="nats")
        ),
        **with_interval(
            "loss_recovered", Field((), "share of the loss by the ablation that the reconstruction avoids")
        ),
        "inactive_share": Field((), "share of the features that are active on no token of the texts"),
    },
)
