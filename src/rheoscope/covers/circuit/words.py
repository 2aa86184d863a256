"""Text about a circuit: how faithful it is, what it restores through F alone and through M alone, and its edges."""

from typing import TYPE_CHECKING

from rheoscope.covers.circuit.edges import through_name
from rheoscope.covers.patch.words import effect_text
from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_fixed
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.space.results import Results
from rheoscope.space.words import ReportSection, Words

if TYPE_CHECKING:
    import xarray


def blocks(results: Results) -> list[Block]:
    """The faithfulness of the circuit, and a table of its edges."""
    return circuit_blocks(results.datasets["circuit"]) if results.has("circuit") else []


def circuit_blocks(dataset: "xarray.Dataset") -> list[Block]:
    """The sentences and the table of one circuit."""
    heading = Message("Circuit of {n} edges among {total}", n=dataset.sizes["edge"], total=int(dataset.edges_total))
    return [
        Lines(heading, [*faithfulness_sentences(dataset), operator_sentence(dataset), search_sentence(dataset)]),
        edge_table(dataset),
    ]


def faithfulness_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """What the circuit alone restores, and what random circuits with as many edges restore."""
    faithfulness = faithfulness_sentence(dataset)
    return [faithfulness, random_sentence(dataset)] if dataset.sizes["draw"] else [faithfulness]


def faithfulness_sentence(dataset: "xarray.Dataset") -> Message:
    """What the circuit alone restores."""
    return Message(
        "The circuit alone restores {faithfulness} of the difference between the texts.",
        faithfulness=effect_text(dataset, "faithfulness"),
    )


def random_sentence(dataset: "xarray.Dataset") -> Message:
    """The range of random circuits, and how many of them are as faithful."""
    draws = dataset.faithfulness_null_draws.values
    return Message(
        "{count} of {n} random circuits with as many edges restore as much. They restore {low} to {high}.",
        count=int((draws >= float(dataset.faithfulness)).sum()),
        n=len(draws),
        low=format_fixed(float(draws.min()), 2),
        high=format_fixed(float(draws.max()), 2),
    )


def operator_sentence(dataset: "xarray.Dataset") -> Message:
    """What remains with the edges of one operator."""
    roles = list(map(str, dataset.through.values))
    return Message(
        "Through F alone it restores {F}, with the attention of the other text; through M alone {M}. {n_F} edges act through F, {n_M} "
        "through M.",
        F=effect_text(dataset, "faithfulness_F"),
        M=effect_text(dataset, "faithfulness_M"),
        n_F=roles.count("F"),
        n_M=roles.count("M"),
    )


def search_sentence(dataset: "xarray.Dataset") -> Message:
    """How many edges were tried, and how good the estimates are."""
    return Message(
        "{tried} edges were patched exactly. Their estimates correlate by {correlation} with them, and the largest error is {error}.",
        tried=int(dataset.edges_tried),
        correlation=format_fixed(float(dataset.estimate_correlation), 2),
        error=format_fixed(float(dataset.estimate_error), 2),
    )


COLUMNS = {
    Message("loss without it"): ("removal", {}),
    Message("restores"): ("effect", {"direction": "restore"}),
    Message("disrupts"): ("effect", {"direction": "disrupt"}),
}


def edge_table(dataset: "xarray.Dataset") -> Table:
    """One row per edge: what it acts through, and its effects."""
    header = [
        Cell(Message("edge")),
        Cell(Message("acts through")),
        *(Cell(title, str(dataset[field].attrs["definition"])) for title, (field, _) in COLUMNS.items()),
    ]
    rows = [
        [
            Cell(str(name)),
            Cell(through_name(str(role))),
            *(Cell(effect_text(dataset, field, edge=name, **place)) for field, place in COLUMNS.values()),
        ]
        for name, role in zip(dataset.edge.values, dataset.role.values, strict=True)
    ]
    return Table(Message("Edges of the circuit, share of the difference"), header, rows)


WORDS = Words(sentence=faithfulness_sentence, sections=(ReportSection("patch", 1, blocks),))
