"""A comparison of two models as sentences and tables: what changed, heads, depth, predictions and matches."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message, Verbatim, join, plural
from rheoscope.messages.numbers import format_percent, format_small_percent
from rheoscope.picture.blocks import Block, Cell, Drawing, Facts, Lines, Table
from rheoscope.picture.picture import format_value
from rheoscope.picture.token_labels import display_token, step_names
from rheoscope.report.draw_result import picture_of

if TYPE_CHECKING:
    import xarray

MAX_HEADS, MAX_TOKENS, MAX_TEXTS = 10, 8, 5
"""The number of heads, tokens and texts in a table. Files and --json have all of them."""
EQUAL_WEIGHTS = 1e-6
"""Distances of operators below this are rounding errors of float32 weights."""
HEAD_COLUMNS = {
    "stream_change": Message("stream"),
    "M_distance": Message("M"),
    "M_distance_max": Message("M, any offset"),
    "F_distance": Message("F"),
    "attention": Message("attention"),
    "displacement": Message("update"),
    "displacement_cosine": Message("cosine"),
    "logit_change": Message("logit"),
    "realised_attention": Message("attention, own points"),
    "realised_displacement": Message("update, own points"),
}


def comparison_blocks(dataset: "xarray.Dataset", has_picture: bool = True) -> list[Block]:
    """All blocks of a comparison, the sentences first."""
    blocks: list[Block] = [summary(dataset)]
    if ("M_distance" in dataset or "F_distance" in dataset) and bool((dataset.change > 0).any()):
        blocks.append(head_table(dataset))
    if "divergence" in dataset:
        blocks.append(depth_table(dataset))
    if "token_divergence" in dataset:
        blocks.append(token_table(dataset))
    if "top_first" in dataset.coords:
        blocks.append(prediction_table(dataset))
    if "matched_layer" in dataset:
        blocks += [layer_match_table(dataset), head_match_table(dataset)]
    if "symmetry_first" in dataset and "symmetry_second" in dataset:
        blocks.append(invariant_table(dataset))
    picture = picture_of(dataset) if has_picture and dataset.data_vars else None
    drawings: list[Block] = [Drawing(picture)] if picture is not None and picture.panels else []
    return [*blocks, *drawings]


def title(dataset: "xarray.Dataset") -> Message:
    """Both models by name."""
    return Message("{first} and {second}", first=model_name(dataset, "first"), second=model_name(dataset, "second"))


def model_name(dataset: "xarray.Dataset", side: str) -> str:
    """The name of a model. Two models of the same name are numbered."""
    recorded = dataset.attrs[f"model_{side}"]
    name = recorded if isinstance(recorded, Message) else Verbatim(recorded)
    if dataset.attrs["model_first"] != dataset.attrs["model_second"]:
        return name
    return Message("{model} (1)", model=name) if side == "first" else Message("{model} (2)", model=name)


def provenance_block(dataset: "xarray.Dataset") -> Facts:
    """Both models, their weights, and the settings."""
    facts = {name: value for name, value in dataset.attrs.items() if name not in ("analysis", "question", "reasons")}
    return Facts(Message("Origin of the numbers"), {str(name): str(value) for name, value in facts.items()})


# Sentences


def summary(dataset: "xarray.Dataset") -> Lines:
    """What changed, in at most a few sentences."""
    lines = [
        *reason_sentences(dataset),
        *weight_sentences(dataset),
        *head_sentences(dataset),
        *flow_sentences(dataset),
        *prediction_sentences(dataset),
        *match_sentences(dataset),
    ]
    return Lines(title(dataset), lines)


def reason_sentences(dataset: "xarray.Dataset") -> list[Message]:
    return [Message("Not everything is compared: {reason}.", reason=reason) for reason in dataset.attrs["reasons"]]


def weight_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """How many heads have another M or F."""
    if dataset.attrs.get("weights_first") == dataset.attrs.get("weights_second"):
        return [Message("Both models have the same weights.")]
    names = [name for name in ("M_distance_max", "F_distance") if name in dataset]
    if not names:
        return []
    largest = np.max([dataset[name].values for name in names], 0)
    n_changed = int((largest > EQUAL_WEIGHTS).sum())
    if not n_changed:
        return [Message("No head has another M or F.")]
    layers = [f"L{layer}" for layer in np.flatnonzero((largest > EQUAL_WEIGHTS).any(1))]
    return [
        Message(
            "{n} of {total} heads have another M or F, in {layers}. The median distance is {median}, the largest {largest} ({head}).",
            n=n_changed,
            total=largest.size,
            layers=Message("all layers") if len(layers) == len(largest) else join(", ", layers),
            median=format_value(float(np.median(largest[largest > EQUAL_WEIGHTS]))),
            largest=format_value(float(largest.max())),
            head="L{}.H{}".format(*np.unravel_index(largest.argmax(), largest.shape)),
        )
    ]


def head_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """The head that changes the stream most, and the MLPs next to it."""
    if "stream_change" not in dataset or not float(dataset.stream_change.max()):
        return []
    name = str(dataset.ranked_head.values[0])
    change = float(dataset.stream_change.isel(head_place(name)))
    sentences = [
        Message(
            "{head} changed most: on the same points, its update differs by {percent} of the length of the points that it writes to.",
            head=name,
            percent=format_small_percent(change),
        )
    ]
    if "mlp" in dataset and float(dataset.mlp.max()) > EQUAL_WEIGHTS:
        sentences.append(
            Message(
                "On the same points, the updates of MLPs differ by {low} to {high} of their size.",
                low=format_small_percent(float(dataset.mlp.min())),
                high=format_small_percent(float(dataset.mlp.max())),
            )
        )
    return sentences


def flow_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """The first step at which the flows differ by more than the threshold."""
    if "divergence" not in dataset:
        return []
    threshold, values = format_value(dataset.attrs["threshold"]), dataset.divergence.values
    first_step = int(dataset.first_step)
    if first_step < 0:
        return [
            Message(
                "The flows never differ by more than {threshold}; after the last layer they differ by {last}.",
                threshold=threshold,
                last=format_value(float(values[-1])),
            )
        ]
    return [
        Message(
            "The flows first differ by more than {threshold} after {step} ({value}). After the last layer they differ by {last}.",
            threshold=threshold,
            step=step_names(dataset.step.values)[first_step],
            value=format_value(float(values[first_step])),
            last=format_value(float(values[-1])),
        )
    ]


def prediction_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """KL divergence, the likeliest tokens, and the difference of the losses."""
    if "kl" not in dataset:
        return []
    sentences = [
        Message(
            "The predictions differ by {kl} nats per token{interval}. The likeliest token is the same after {share} of the tokens.",
            kl=format_value(float(dataset.kl)),
            interval=interval_text(dataset, "kl"),
            share=format_percent(float(dataset.same_token)),
        )
    ]
    if "loss_difference" in dataset:
        sentences.append(
            Message(
                "The loss changes by {difference} nats per token{interval}, from {first} to {second}.",
                difference=signed(float(dataset.loss_difference)),
                interval=interval_text(dataset, "loss_difference"),
                first=format_value(float(dataset.loss_first)),
                second=format_value(float(dataset.loss_second)),
            )
        )
    if int(dataset.attrs["texts"]) > 1:
        sentences.append(Message("Intervals: {method}.", method=dataset.attrs["intervals"]))
    return sentences


def match_sentences(dataset: "xarray.Dataset") -> list[Message]:
    """How many layers are most similar to the one at the same relative depth."""
    if "matched_layer" not in dataset:
        return []
    n_same = int((dataset.matched_layer.values == dataset.same_depth_layer.values).sum())
    return [
        plural(
            "{same} of {n} layer is most similar to the layer at the same relative depth.",
            "{same} of {n} layers are most similar to the layer at the same relative depth.",
            n=dataset.sizes["layer"],
            same=n_same,
        ),
        Message(
            "The median head has a counterpart of similarity {median} (RSA of its updates).",
            median=format_value(float(dataset.head_similarity.median())),
        ),
    ]


def interval_text(dataset: "xarray.Dataset", name: str) -> str:
    """The interval of a scalar in parentheses; empty without one."""
    if f"{name}_low" not in dataset or not np.isfinite(dataset[f"{name}_low"]):
        return ""
    ends = [signed(float(dataset[f"{name}_{end}"])) for end in ("low", "high")]
    return Message(" (95 % interval {low} to {high})", low=ends[0], high=ends[1])


def signed(value: float) -> str:
    """A number with a true minus sign.

    >>> signed(-0.25)
    '−0.25'
    """
    return format_value(value).replace("-", "−")


# Tables


def number_cell(field: "xarray.DataArray", low: "xarray.DataArray | None", high: "xarray.DataArray | None") -> Cell:
    """A number with its interval as the small addition."""
    small = ""
    if low is not None and high is not None and np.isfinite(low):
        small = Message("{low} to {high}", low=signed(float(low)), high=signed(float(high)))
    return Cell(signed(float(field)), small_text=small)


def cells(dataset: "xarray.Dataset", name: str, **place: int) -> Cell:
    """The number of a field at a place, with its interval if it has one."""
    low, high = (
        dataset[f"{name}_{end}"].isel(place) if f"{name}_{end}" in dataset else None for end in ("low", "high")
    )
    return number_cell(dataset[name].isel(place), low, high)


INTERVAL_CAPTION = Message("small: 95 % interval over texts")


def small_caption(dataset: "xarray.Dataset") -> str:
    return INTERVAL_CAPTION if int(dataset.attrs["texts"]) > 3 else ""


def head_table(dataset: "xarray.Dataset") -> Table:
    """The heads that changed most. The number by which they are ranked comes first."""
    names = [name for name in HEAD_COLUMNS if name in dataset]
    if "M_distance_max" in names and np.array_equal(dataset.M_distance, dataset.M_distance_max):
        names.remove("M_distance_max")
    names.sort(key=lambda name: name != dataset.attrs["rank"])
    header = [
        Cell(Message("head")),
        *(Cell(HEAD_COLUMNS[name], str(dataset[name].attrs["definition"])) for name in names),
    ]
    n_shown = min(int((dataset.change > 0).sum()), MAX_HEADS)
    rows = [head_row(dataset, name, names) for name in map(str, dataset.ranked_head.values[:n_shown])]
    note = Message("Behaviour is compared on the points of the first model, which both heads read.")
    return Table(
        Message("Heads, the most changed first"),
        header,
        rows,
        small_caption=small_caption(dataset),
        note=note if "stream_change" in dataset else "",
    )


def head_row(dataset: "xarray.Dataset", name: str, fields: list[str]) -> list[Cell]:
    """The numbers of a head. The first one has its interval."""
    place = head_place(name)
    others = (Cell(signed(float(dataset[field].isel(place)))) for field in fields[1:])
    return [Cell(name), cells(dataset, fields[0], **place), *others]


def head_place(name: str) -> dict[str, int]:
    """The indices of a head.

    >>> head_place("L3.H1")
    {'layer': 3, 'head': 1}
    """
    layer, head = name.removeprefix("L").split(".H")
    return {"layer": int(layer), "head": int(head)}


def depth_table(dataset: "xarray.Dataset") -> Table:
    """One row per layer: how far the points differ after attention and after the MLP."""
    steps = list(map(str, dataset.step.values))
    definition = str(dataset.divergence.attrs["definition"])
    header = [
        Cell(Message("layer")),
        Cell(Message("after attention"), definition),
        Cell(Message("after the MLP"), definition),
    ]
    has_shapes, has_mlps = "shape_change" in dataset, "mlp" in dataset
    header += [Cell(Message("shape of the cloud"), str(dataset.shape_change.attrs["definition"]))] if has_shapes else []
    header += [Cell(Message("MLP"), str(dataset.mlp.attrs["definition"]))] if has_mlps else []

    def row(name: str, mid: str, end: str, layer: int | None) -> list[Cell]:
        numbers = [
            cells(dataset, "divergence", step=steps.index(step)) if step in steps else Cell("") for step in (mid, end)
        ]
        numbers += [cells(dataset, "shape_change", step=steps.index(end))] if has_shapes else []
        numbers += [Cell("") if layer is None else cells(dataset, "mlp", layer=layer)] if has_mlps else []
        return [Cell(name), *numbers]

    rows = [row("embed", "", "embed", None)]
    rows += [row(f"L{i}", f"L{i}.resid_mid", f"L{i}.resid_post", i) for i in range(dataset.sizes["layer"])]
    return Table(Message("Where the flows diverge"), header, rows, small_caption=small_caption(dataset))


def token_table(dataset: "xarray.Dataset") -> Table:
    """The tokens whose predictions differ most, or else whose points do, with the step at which they diverge."""
    last, has_kl = dataset.token_divergence.isel(step=-1), "token_kl" in dataset
    definition = str(dataset.token_first_step.attrs["definition"])
    header = [
        Cell(Message("token")),
        Cell(Message("diverges after"), definition),
        Cell(Message("after the last layer"), str(dataset.token_divergence.attrs["definition"])),
    ]
    header += [Cell(Message("KL"), str(dataset.token_kl.attrs["definition"]))] if has_kl else []
    names = [*step_names(dataset.step.values), Message("never")]  # the index of a token that never diverges is −1
    order = np.argsort(-(dataset.token_kl if has_kl else last).values, kind="stable")[:MAX_TOKENS]
    rows = []
    for position in order.tolist():
        token = display_token(str(dataset.token_text.values[position]))
        numbers = [last[position], *([dataset.token_kl[position]] if has_kl else [])]
        rows.append(
            [
                Cell(Message("{token} at {position}", token=token, position=position)),
                Cell(names[int(dataset.token_first_step[position])]),
                *(Cell(signed(float(number))) for number in numbers),
            ]
        )
    return Table(Message("Tokens, the most different first"), header, rows, frozenset({0, 1}))


def prediction_table(dataset: "xarray.Dataset") -> Table:
    """The likeliest next tokens of both models after each text."""
    header = [
        Cell(Message("text")),
        Cell(model_name(dataset, "first"), str(dataset.top_tokens_first.attrs["definition"])),
        Cell(model_name(dataset, "second"), str(dataset.top_tokens_second.attrs["definition"])),
        Cell(Message("KL"), str(dataset.text_kl.attrs["definition"])),
    ]
    has_loss = "text_loss_difference" in dataset
    header += [Cell(Message("loss"), str(dataset.text_loss_difference.attrs["definition"]))] if has_loss else []
    rows = []
    for index, text in enumerate(map(str, dataset.text.values[:MAX_TEXTS])):
        tops = [Cell(top_tokens(dataset, side, index)) for side in ("first", "second")]
        numbers = [Cell(signed(float(dataset.text_kl[index])))]
        numbers += [Cell(signed(float(dataset.text_loss_difference[index])))] if has_loss else []
        rows.append([Cell(Verbatim(shortened(text))), *tops, *numbers])
    return Table(Message("The next token after each text"), header, rows, frozenset({0, 1, 2}))


def top_tokens(dataset: "xarray.Dataset", side: str, index: int) -> str:
    """The likeliest tokens with their probabilities in one cell."""
    tokens, shares = dataset[f"top_{side}"].values[index], dataset[f"top_probabilities_{side}"].values[index]
    return Verbatim(
        ", ".join(
            f"{display_token(str(token))} {format_percent(float(share))}"
            for token, share in zip(tokens, shares, strict=True)
        )
    )


def shortened(text: str, n_characters: int = 40) -> str:
    """The end of a text, which the prediction continues.

    >>> shortened("a long text", 6)
    '… text'
    """
    line = " ".join(text.split())
    return line if len(line) <= n_characters else f"…{line[-(n_characters - 1) :]}"


def layer_match_table(dataset: "xarray.Dataset") -> Table:
    """One row per layer of the first model: the layer at the same depth and the most similar one."""
    header = [
        Cell(Message("layer")),
        Cell(Message("same depth"), str(dataset.same_depth_layer.attrs["definition"])),
        Cell(Message("similarity"), str(dataset.depth_similarity.attrs["definition"])),
        Cell(Message("most similar"), str(dataset.matched_layer.attrs["definition"])),
        Cell(Message("similarity"), str(dataset.matched_similarity.attrs["definition"])),
    ]
    rows = [
        [
            Cell(f"L{layer}"),
            Cell(f"L{int(dataset.same_depth_layer[layer])}"),
            cells(dataset, "depth_similarity", layer=layer),
            Cell(f"L{int(dataset.matched_layer[layer])}"),
            cells(dataset, "matched_similarity", layer=layer),
        ]
        for layer in range(dataset.sizes["layer"])
    ]
    return Table(Message("Layers of both models"), header, rows, small_caption=small_caption(dataset))


def head_match_table(dataset: "xarray.Dataset") -> Table:
    """The heads of the first model, those without a counterpart first."""
    header = [
        Cell(Message("head")),
        Cell(Message("most similar")),
        Cell(Message("similarity"), str(dataset.head_similarity.attrs["definition"])),
    ]
    rows = []
    for name in map(str, dataset.ranked_head.values[:MAX_HEADS]):
        place = head_place(name)
        match = f"L{int(dataset.matched_head_layer.isel(place))}.H{int(dataset.matched_head.isel(place))}"
        rows.append([Cell(name), Cell(match), cells(dataset, "head_similarity", **place)])
    return Table(Message("Heads, the least similar first"), header, rows, small_caption=small_caption(dataset))


def invariant_table(dataset: "xarray.Dataset") -> Table:
    """Medians over heads of numbers that need no common coordinates."""
    titles = {
        "symmetry": Message("symmetry of M"),
        "stable_rank_M": Message("stable rank of M"),
        "stable_rank_F": Message("stable rank of F"),
    }
    header = [
        Cell(Message("median over heads")),
        Cell(model_name(dataset, "first")),
        Cell(model_name(dataset, "second")),
    ]
    rows = [
        [Cell(label), *(Cell(signed(float(dataset[f"{name}_{side}"].median()))) for side in ("first", "second"))]
        for name, label in titles.items()
        if f"{name}_first" in dataset and f"{name}_second" in dataset
    ]
    return Table(Message("Weights that need no common coordinates"), header, rows)
