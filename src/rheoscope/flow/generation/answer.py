"""A generated answer as sums over prompt tokens, heads and other components: `Generation.explain()`."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.flow.generation.row_attribution import RowAttribution
from rheoscope.space.analysis import Field
from rheoscope.space.components import HEAD_NAME

if TYPE_CHECKING:
    import xarray

FIELDS = {
    "logit": Field(("token",), "the logit of the generated token, before a cap"),
    "mean_logit": Field(("token",), "the mean logit of the vocabulary in its place"),
    "component_attribution": Field(
        ("token", "component"),
        "contribution of the component to the logit of the generated token minus the mean logit, with the scale of the final norm fixed",
    ),
    "prompt_attribution": Field(
        ("token", "prompt_token"), "what all heads carry from the prompt token to the logit of the generated token"
    ),
    "answer_attribution": Field(
        ("token",), "what all heads carry from earlier tokens of the answer to the logit of the generated token"
    ),
    "prompt_total": Field(("prompt_token",), "sum of what all heads carry from the prompt token over the whole answer"),
    "component_total": Field(("component",), "sum of the contributions of the component over the whole answer"),
    "error": Field(
        ("token",), "largest difference between the heads of a layer and the attention that the network itself computed"
    ),
}


class AnswerSums:
    """The sums of an answer, row by row. Per generated token it keeps one number per component and per prompt token."""

    def __init__(self, n_prompt: int, reads_pairs: bool) -> None:
        self.n_prompt, self.reads_pairs, self.names = n_prompt, reads_pairs, tuple[str, ...]()
        self.rows: dict[str, list[Tensor]] = {
            name: [] for name in ("components", "mean_logits", "prompt", "answer", "errors")
        }

    def add(self, attribution: RowAttribution) -> None:
        """Append the rows of a block."""
        self.names = attribution.names
        prompt, answer = self.split(attribution)
        block = (attribution.components.mT, attribution.mean_logits, prompt, answer, attribution.errors)
        for rows, values in zip(self.rows.values(), block, strict=True):
            rows.append(values.cpu().clone())  # a slice would keep the whole row of a long text

    def split(self, attribution: RowAttribution) -> tuple[Float[Tensor, "r prompt"], Float[Tensor, " r"]]:
        """What heads carry from every prompt token, and from all earlier tokens of the answer."""
        own, cross = attribution.sources, attribution.cross_sources
        return (cross, own.sum(-1)) if self.reads_pairs else (own[:, : self.n_prompt], own[:, self.n_prompt :].sum(-1))

    def dataset(self, prompt_texts: list[str], answer_texts: list[str], attributes: dict[str, str]) -> "xarray.Dataset":
        """Everything as labelled arrays."""
        import xarray as xr

        stacked = {name: torch.cat(rows) for name, rows in self.rows.items()}
        is_used = stacked["components"].bool().any(0)
        components: Float[Tensor, "t c"] = stacked["components"][:, is_used]
        values = {
            "logit": components.sum(-1) + stacked["mean_logits"],
            "mean_logit": stacked["mean_logits"],
            "component_attribution": components,
            "prompt_attribution": stacked["prompt"],
            "answer_attribution": stacked["answer"],
            "prompt_total": stacked["prompt"].sum(0),
            "component_total": components.sum(0),
            "error": stacked["errors"],
        }
        coords = {
            "component": [name for name, used in zip(self.names, is_used.tolist(), strict=True) if used],
            "token": range(len(components)),
            "token_text": ("token", answer_texts),
            "prompt_token": range(len(prompt_texts)),
            "prompt_text": ("prompt_token", prompt_texts),
        }
        data = {name: (FIELDS[name].dims, x.numpy(), FIELDS[name].attributes()) for name, x in values.items()}
        return xr.Dataset(data, coords, attributes)


def attribution_groups(dataset: "xarray.Dataset") -> dict[str, float]:
    """The logits of the answer above the mean as a sum of groups: prompt, answer, embedding, mlp and biases.

    **Laws** They add up to sum(logit − mean_logit).
    """
    totals = dict(zip(dataset.component.values.tolist(), dataset.component_total.values.tolist(), strict=True))
    mlp = sum(value for name, value in totals.items() if name.endswith(".mlp"))
    embedding = sum(value for name, value in totals.items() if name in ("embed", "position"))
    heads = sum(value for name, value in totals.items() if is_head(name))
    groups = {
        "prompt": float(dataset.prompt_total.sum()),
        "answer": float(dataset.answer_attribution.sum()),
        "embedding": embedding,
        "mlp": mlp,
    }
    return groups | {"rest": sum(totals.values()) - heads - mlp - embedding}


def is_head(name: str) -> bool:
    """Whether a component is a head of self-attention or of cross-attention.

    >>> is_head("L0.H1"), is_head("L0.cross.H1"), is_head("L0.mlp")
    (True, True, False)
    """
    return HEAD_NAME.fullmatch(name.replace(".cross", "")) is not None
