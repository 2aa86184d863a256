"""Text about operators: the heads of each layer as M and F, the extreme heads, and how heads differ from random ones."""

import math
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.key_groups import key_group_means
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.head_medians import head_median_table
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import Candidate, OwnReport, ReportSection, Words
from rheoscope.statistics.statement import Statement, from_draws, from_moments

if TYPE_CHECKING:
    import xarray

COLUMNS = {
    "symmetry": Message("symmetry"),
    "positive_share": Message("positive"),
    "directionality": Message("direction"),
    "stable_rank_M": Message("rank M"),
    "stable_rank_F": Message("rank F"),
    "copying": Message("copying"),
    "alignment": Message("alignment"),
}
SIGNED_FIELDS = ("symmetry", "positive_share", "directionality", "copying", "alignment")
ENERGY_GAIN = Cell(
    Message("climb"),
    Message(
        "change of the energy Λ of the layer's heads by their own updates, summed over the heads, in nats "
        "(randomly rotated heads: 0 to first order)"
    ),
)


def blocks(results: Results) -> list[Block]:
    """The table of layers, with the change of the energy if a text was analysed."""
    if not results.has("operators"):
        return []
    heading = Message("Heads as operators: median over the heads of a layer")
    table = head_median_table(results.datasets["operators"], COLUMNS, heading)
    if not results.has("energy"):
        return [table]
    energy = results.datasets["energy"]
    energy_gains = (energy.energy_after - energy.energy).sum("head").values
    rows = [[*row, Cell(format_number(float(gain)))] for row, gain in zip(table.rows, energy_gains, strict=True)]
    return [Table(table.heading, [*table.header, ENERGY_GAIN], rows)]


def extreme_heads(results: Results) -> list[Block]:
    """The heads with the smallest and the largest value of every signed field; nothing for a single head."""
    if not results.has("operators") or results.datasets["operators"].symmetry.size < 2:
        return []
    lines = []
    for name in SIGNED_FIELDS:
        values = results.datasets["operators"][name].values
        if not np.isfinite(values).any():
            continue
        ends = [divmod(int(index), values.shape[1]) for index in (np.nanargmin(values), np.nanargmax(values))]
        low, high = (f"L{layer}.H{head} {format_number(float(values[layer, head]))}" for layer, head in ends)
        lines.append(Message("{quantity}: from {low} to {high}", quantity=COLUMNS[name], low=low, high=high))
    return [Lines(Message("Range over heads"), lines)]


# Findings


OPERATOR_CLAIMS = {
    "symmetry": (
        Message("M is more symmetric than randomly rotated heads"),
        Message("M is less symmetric than randomly rotated heads"),
        Message("mean tr(MM)/tr(MMᵀ)"),
    ),
    "positive_share": (
        Message("M favours similar tokens more than randomly rotated heads"),
        Message("M favours similar tokens less than randomly rotated heads"),
        Message("mean positive share"),
    ),
    "copying": (
        Message("Heads copy more than randomly rotated heads"),
        Message("Heads copy less than randomly rotated heads"),
        Message("mean copying score"),
    ),
    "alignment": (
        Message("F is more aligned with Mᵀ than in randomly rotated heads"),
        Message("F is less aligned with Mᵀ than in randomly rotated heads"),
        Message("mean cosine"),
    ),
}
"""Field of `operators` → the claim if it is larger, the claim if it is smaller, and what the number is."""


def operator_candidate(name: str) -> Candidate:
    """The mean of a field over all heads, compared with randomly rotated heads; heads that share a key stay together."""

    def candidate(results: Results) -> Statement | None:
        dataset = results.datasets.get("operators")
        if dataset is None or f"mean_{name}_null_draws" not in dataset:
            return None
        value, null = float(dataset[name].mean()), dataset[f"mean_{name}_null_draws"].values
        larger, smaller, quantity = OPERATOR_CLAIMS[name]
        text = Message(
            "{comparison} ({quantity} {value}; null {null}).",
            comparison=larger if value > null.mean() else smaller,
            quantity=quantity,
            value=format_fixed(value),
            null=format_fixed(null.mean()),
        )
        return from_draws(text, "operators", value, null)

    return candidate


def symmetry_vs_agreement(results: Results) -> Statement | None:
    if not results.has("agreement", "operators"):
        return None
    paired_values = np.stack(
        [
            key_group_means(results, results.datasets[analysis][field])
            for analysis, field in (("agreement", "agreement"), ("operators", "symmetry"))
        ]
    )
    paired_values = paired_values[:, np.isfinite(paired_values).all(0)]
    if paired_values.shape[1] < 8 or not paired_values.std(1).all():
        return None
    rho, null_sd = (
        float(np.atleast_2d(np.corrcoef(paired_values.argsort(1).argsort(1)))[0, 1]),
        1 / math.sqrt(paired_values.shape[1] - 1),
    )
    comparison = (
        Message("Heads with a more symmetric M follow similarity more")
        if rho > 0
        else Message("Heads with a more symmetric M follow similarity less")
    )
    text = Message(
        "{comparison} (rank correlation {rho}; null 0 ± {sd}).",
        comparison=comparison,
        rho=format_fixed(rho),
        sd=format_fixed(null_sd),
    )
    return from_moments(text, "operators", rho, 0.0, null_sd)


TRAINING_QUANTITIES = (
    TrainingQuantity(
        1,
        "operators",
        "symmetry",
        "symmetry",
        "symmetry_null",
        Message("tr(MM)/tr(MMᵀ), mean over heads"),
        {"draws": 0},
    ),
    TrainingQuantity(
        2,
        "operators",
        "positive_share",
        "positive_share",
        "positive_share_null",
        Message("Σλ⁺/Σ|λ| of ½(M + Mᵀ), mean over heads"),
        {"draws": 0},
    ),
)
REPORT = OwnReport("operators", Message("Operators of {model}"))


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How symmetric M is and how far F copies, on average."""
    return Message(
        "The mean symmetry of M is {symmetry} (1: symmetric, 0: random), and the mean copying score of F is {copying} (1: it copies).",
        symmetry=format_number(float(dataset.mean_symmetry)),
        copying=format_number(float(dataset.mean_copying)),
    )


WORDS = Words(
    sentence=main_sentence,
    training_quantities=TRAINING_QUANTITIES,
    findings=(*map(operator_candidate, OPERATOR_CLAIMS), symmetry_vs_agreement),
    sections=(
        ReportSection("flow", 1, blocks, needs=("energy",)),
        ReportSection(REPORT.name, 0, blocks),
        ReportSection(REPORT.name, 1, extreme_heads),
    ),
    report=REPORT,
)
