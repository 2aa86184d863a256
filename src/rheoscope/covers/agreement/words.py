"""Text about agreement: does attention follow similarity, which heads do, and which pairs of tokens do they change?"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.covers.key_groups import key_group_means
from rheoscope.messages.message import Message, join, plural
from rheoscope.messages.numbers import format_fixed, format_number
from rheoscope.picture.blocks import Block, Cell, Lines, Table
from rheoscope.picture.token_labels import display_token
from rheoscope.shapes import RheoscopeError
from rheoscope.space.results import Results
from rheoscope.space.training_quantity import TrainingQuantity
from rheoscope.space.words import OwnReport, ReportSection, Words
from rheoscope.statistics.statement import Statement, from_units

if TYPE_CHECKING:
    import xarray

FDR_LEVEL = 0.05
COLUMNS = {
    "agreement": Message("agreement"),
    "null_sd": Message("null sd"),
    "agreement_untrained": Message("untrained"),
    "agreement_raw": Message("raw"),
    "position_baseline": Message("position"),
}
HEAD_COLUMNS = {
    "agreement_raw": Message("raw"),
    "agreement": Message("agreement"),
    "agreement_untrained": Message("untrained"),
    "z": Message("z"),
}
HEAD_LISTS = {
    "similar": Message("Attends to similar tokens"),
    "opposite": Message("Attends to dissimilar tokens"),
    "random": Message("Does not differ from random heads"),
}
"""What the heads of each list do."""
MAX_LISTED_HEADS = 8
"""The number of heads of a list that are named."""
NOT_COMPUTED = Message("not computed")
HeadList = list[tuple[int, int]]


def position_vs_similarity(results: Results) -> Statement | None:
    agreement = results.datasets.get("agreement")
    if agreement is None:
        return None
    position_effect, similarity_effect = (
        key_group_means(results, agreement[name]) for name in ("position_baseline", "agreement")
    )
    comparison = (
        Message("Scores depend more on distance than on similarity")
        if np.nanmean(position_effect - similarity_effect) > 0
        else Message("Scores depend less on distance than on similarity")
    )
    text = Message(
        "{comparison}: mean rank correlation {position} with distance, {similarity} with similarity given distance and norm.",
        comparison=comparison,
        position=format_fixed(np.nanmean(position_effect)),
        similarity=format_fixed(np.nanmean(similarity_effect)),
    )
    return from_units(text, "agreement", position_effect - similarity_effect, 0.0)


def sampling_note(agreement: "xarray.Dataset") -> Message | None:
    """The sample of queries on a long text, and its error."""
    if "agreement_error" not in agreement:
        return None
    return Message(
        "On this long text, agreement samples {n} queries (± {error} per head).",
        n=agreement.attrs["sampled_queries"],
        error=format_number(float(agreement.agreement_error.mean())),
    )


# Which heads


def head_lists(agreement: "xarray.Dataset") -> dict[str, HeadList]:
    """The heads of each list, the clearest first: significantly above the null, significantly below it, and the rest."""
    if "z" not in agreement:
        return {name: [] for name in HEAD_LISTS}
    significant, z, values = (
        x.ravel() for x in (agreement.q_value.values <= FDR_LEVEL, agreement.z.values, agreement.agreement.values)
    )
    criteria = {
        "similar": (significant & (z > 0), -values),
        "opposite": (significant & (z < 0), values),
        "random": (np.isfinite(z) & ~significant, np.abs(z)),
    }
    n_heads = agreement.sizes["head"]
    return {
        name: [
            (int(index) // n_heads, int(index) % n_heads)
            for index in np.argsort(sort_key, kind="stable")
            if selected[index]
        ]
        for name, (selected, sort_key) in criteria.items()
    }


def clearest_heads(agreement: "xarray.Dataset", max_per_list: int) -> HeadList:
    """The clearest heads of every list."""
    return [head for heads in head_lists(agreement).values() for head in heads[:max_per_list]]


def required_agreement(results: Results) -> "xarray.Dataset":
    """The result of `agreement`, which picks the heads that are shown."""
    if not results.has("agreement"):
        raise RheoscopeError(Message("agreement has no result, so no head can be picked"))
    return results.datasets["agreement"]


def least_similar_head(agreement: "xarray.Dataset") -> tuple[int, int]:
    """The head with the lowest agreement."""
    layer, head = np.unravel_index(int(np.nanargmin(agreement.agreement.values)), agreement.agreement.shape)
    return int(layer), int(head)


def most_similar_head(agreement: "xarray.Dataset") -> tuple[int, int]:
    """The head with the largest z, or with the largest agreement if there is no null."""
    has_z = "z" in agreement and bool(agreement.z.notnull().any())
    values = agreement["z" if has_z else "agreement"].values
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head)


# Sections of the report


def blocks(results: Results) -> list[Block]:
    """The table of layers and a summary in sentences."""
    if not results.has("agreement"):
        return []
    summary = [*summary_lines(results), *head_list_lines(results)]
    return [layer_table(results), Lines(Message("Similarity in this text"), summary)]


def layer_table(results: Results) -> Table:
    """One row per layer: medians over heads, the number of heads above and below the null, and the types of heads."""
    agreement, head_types = results.datasets["agreement"], results.datasets.get("head_types")
    columns = {name: title for name, title in COLUMNS.items() if name in agreement}
    header = [
        Cell(Message("layer")),
        *(Cell(title, str(agreement[name].attrs["definition"])) for name, title in columns.items()),
        Cell(Message("similar"), Message("heads that attend to similar tokens more than a random head would")),
        Cell(Message("opposite"), Message("heads that attend to similar tokens less than a random head would")),
    ]
    rows = []
    for layer in range(agreement.sizes["layer"]):
        medians = [format_number(float(agreement[name][layer].median())) for name in columns]
        type_counts = Counter([] if head_types is None else sorted(map(str, head_types.type.values[layer])))
        types_text = ", ".join(f"{count} {name.replace('_', '-')}" for name, count in type_counts.items())
        rows.append([*map(Cell, (f"L{layer}", *medians, *_significant_counts(agreement, layer), types_text))])
    text_columns = frozenset({0, len(header)})
    heading = Message("Does attention follow similarity in E? Medians over the heads of a layer")
    types = Cell(Message("types"), Message("number of heads of each type"))
    return Table(heading, [*header, types], rows, text_columns)


def _significant_counts(agreement: "xarray.Dataset", layer: int) -> tuple[str, str]:
    if "z" not in agreement:
        return Message("none"), Message("none")
    signs = np.sign(agreement.z.values[layer]) * (agreement.q_value.values[layer] <= FDR_LEVEL)
    return str(int((signs > 0).sum())), str(int((signs < 0).sum()))


def summary_lines(results: Results) -> list[str]:
    """How many heads follow similarity, how strongly, and how much an untrained model does."""
    agreement = results.datasets["agreement"]
    heads_by_list, draws = head_lists(agreement), int(agreement.attrs["draws"])
    mean, raw, position, embedding = (
        format_number(float(agreement[name].mean()))
        for name in ("agreement", "agreement_raw", "position_baseline", "agreement_embedding")
    )
    count_line = Message(
        "{similar} of {total} heads attend to similar tokens more than random heads of the same spectrum, {opposite} less. "
        "{random} do not differ from them ({draws}, false discovery rate 5 %).",
        similar=len(heads_by_list["similar"]),
        total=agreement.agreement.size,
        opposite=len(heads_by_list["opposite"]),
        random=len(heads_by_list["random"]),
        draws=plural("{n} draw per head", "{n} draws per head", n=draws),
    )
    strength_line = Message(
        "The mean rank correlation of score and similarity is {mean} given distance and norm, and {raw} without these controls. "
        "With distance alone it is {position}, with similarity at the embedding {embedding}.",
        mean=mean,
        raw=raw,
        position=position,
        embedding=embedding,
    )
    lines: list[str] = [count_line, strength_line] if "z" in agreement else [strength_line]
    return [*lines, untrained_line(agreement)] if "agreement_untrained" in agreement else lines


def untrained_line(agreement: "xarray.Dataset") -> Message:
    """The mean agreement of the same architecture at initial weights."""
    controlled, raw = (float(agreement[f"{name}_untrained"].mean()) for name in ("agreement", "agreement_raw"))
    return Message(
        "The same architecture at initial weights: {controlled} given distance and norm, {raw} without these controls.",
        controlled=format_number(controlled),
        raw=format_number(raw),
    )


def pair_texts(results: Results, layer: int, head: int, n_pairs: int) -> dict[str, Message]:
    """The pairs of tokens that the queries of a head separate most ("separated") and merge most ("merged")."""
    dataset = results.datasets.get(f"distorted_pairs L{layer}.H{head}")
    if dataset is None:
        return {"separated": NOT_COMPUTED, "merged": NOT_COMPUTED}
    names = ("earlier_token_text", "earlier_token", "later_token_text", "later_token")
    return {
        kind: join(
            "; ",
            [
                Message(
                    "{first} ({i}) and {second} ({j})",
                    first=display_token(str(first)),
                    i=int(i),
                    second=display_token(str(second)),
                    j=int(j),
                )
                for first, i, second, j in zip(
                    *(dataset.sel(kind=kind)[name].values[:n_pairs] for name in names), strict=True
                )
            ],
        )
        for kind in ("separated", "merged")
    }


def head_list_lines(results: Results) -> list[Message]:
    """One line per list: its clearest heads, and the pairs of tokens that the first of them changes most."""
    agreement, lines = results.datasets["agreement"], []
    for name, heads in head_lists(agreement).items():
        if not heads:
            continue
        head_names: list[str] = [
            f"L{layer}.H{head} {format_number(float(agreement.agreement[layer, head]))}"
            for layer, head in heads[:MAX_LISTED_HEADS]
        ]
        if len(heads) > MAX_LISTED_HEADS:
            head_names.append(Message("and {n} more", n=len(heads) - MAX_LISTED_HEADS))
        pairs = pair_texts(results, *heads[0], n_pairs=2)
        lines.append(
            Message(
                "{list} ({count}): {heads}. L{layer}.H{head} separates (near in E, far in its image): {separated}. "
                "It merges (far in E, near in its image): {merged}.",
                list=HEAD_LISTS[name],
                count=plural("{n} head", "{n} heads", n=len(heads)),
                heads=join(", ", head_names),
                layer=heads[0][0],
                head=heads[0][1],
                **pairs,
            )
        )
    return lines


def head_table(results: Results) -> list[Block]:
    """The clearest heads of every list with their numbers, and the pair of tokens that each changes most."""
    if not results.has("agreement"):
        return []
    agreement = results.datasets["agreement"]
    columns = {name: title for name, title in HEAD_COLUMNS.items() if name in agreement}
    header = [
        Cell(Message("head")),
        *(Cell(title, str(agreement[name].attrs["definition"])) for name, title in columns.items()),
    ]
    rows = []
    for name, heads in head_lists(agreement).items():
        for layer, head in heads[:MAX_LISTED_HEADS]:
            pairs = pair_texts(results, layer, head, 1)
            values = [format_number(float(agreement[column][layer, head])) for column in columns]
            row = (f"L{layer}.H{head}", *values, HEAD_LISTS[name], pairs["separated"], pairs["merged"])
            rows.append([*map(Cell, row)])
    text_columns = frozenset({0, *range(len(header), len(header) + 3)})
    header += [Cell(Message("behaviour")), Cell(Message("separates most")), Cell(Message("merges most"))]
    heading = Message("Heads, and the pairs of tokens that they separate or merge")
    return [Table(heading, header, rows, text_columns)] if rows else []


TRAINING_QUANTITIES = (
    TrainingQuantity(
        3,
        "agreement",
        "agreement",
        "agreement",
        "null_mean",
        Message("partial rank correlation of scores and similarity in E, mean over heads"),
        {"draws": 8},
    ),
)
MIN_TOKENS = 10
"""The smallest text in which a query has 8 other keys."""


def main_sentence(dataset: "xarray.Dataset") -> Message:
    """How many heads attend to similar tokens more than random heads do."""
    reads_similarity = (dataset.q_value <= 0.05) & (dataset.agreement > dataset.null_mean)
    return Message(
        "{n} of {total} heads attend to similar tokens more than random heads would (mean partial correlation {mean}).",
        n=int(reads_similarity.sum()),
        total=reads_similarity.size,
        mean=format_number(float(dataset.mean_agreement)),
    )


WORDS = Words(
    sentence=main_sentence,
    training_quantities=TRAINING_QUANTITIES,
    findings=(position_vs_similarity,),
    sections=(
        ReportSection("covers", 0, blocks, needs=("head_types", "distortion")),
        ReportSection("covers", 1, head_table, page_only=True),
    ),
    report=OwnReport(
        "covers",
        Message("Covers: {text}"),
        has_findings=True,
        next_step=Message("how every head deforms this text"),
        can_describe=lambda results: results.n_ordinary_tokens >= MIN_TOKENS,
    ),
    sampling_note=sampling_note,
)
