"""The plot of `readout`: predictions of every layer, rank of the target, entropy, KL and attribution."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.picture.bars import bar_panel
from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, format_value
from rheoscope.picture.token_labels import TokenLabels, display_token, step_names
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "The logit lens applies the model's own final norm and unembedding to every step of the last token. Early layers need not "
    "use the directions that the unembedding reads. A low probability there means that the prediction is not yet readable, not "
    "that the layer has no information."
)

MAX_WRITERS = 9
MIN_KL = 1e-3
"""Smaller divergences are drawn at this value, in nats."""


def picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None = None) -> Picture:
    """The most likely tokens of every layer, the rank of the target, entropy, KL, attribution, and predictions by position."""
    layer_dataset = dataset.isel(point=layer_ends(dataset))
    text_by_id = {token: display_token(text) for token, text in _texts_by_id(dataset, token_strings).items()}
    target_text = text_by_id[int(dataset.attrs["target"])]
    return Picture(
        Message("Where the prediction forms"),
        CAPTION,
        (
            prediction_table(layer_dataset, text_by_id),
            rank_panel(dataset, target_text),
            entropy_panel(dataset),
            kl_panel(dataset),
            *([writer_bars(dataset, target_text)] if "attribution" in dataset else []),
            position_table(dataset, text_by_id),
        ),
    )


def prediction_table(dataset: "xarray.Dataset", text_by_id: dict[int, str]) -> Panel:
    """One row per layer: its most likely tokens, shaded by probability, with a frame around the target."""
    ids, probabilities = dataset.top_tokens.values, dataset.top_probabilities.values
    rows = step_names(dataset.point.values)
    texts = [[text_by_id[int(token)] for token in row] for row in ids]
    tips = [
        [
            Message("after {step}: {token} (probability {p:.3f})", step=step_name, token=text_by_id[int(t)], p=float(p))
            for t, p in zip(row, row_probabilities, strict=True)
        ]
        for step_name, row, row_probabilities in zip(rows, ids, probabilities, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == dataset.attrs["target"]))
    description = Message(
        "Each row shows the most likely next tokens of a layer. Stronger colours mean a higher probability. The target is framed."
    )
    return Panel(
        Message("Most likely next tokens"),
        description,
        (Cells(probabilities, texts, tips, marked, name=Message("probability")),),
        Axis(Message("rank"), tuple(f"{k + 1}." for k in range(ids.shape[1]))),
        Axis("", tuple(rows)),
        columns=2,
        height=max(1.9, (len(rows) * 19 + 50) / 236),
    )


def layer_ends(dataset: "xarray.Dataset") -> list[int]:
    """The indices of the embedding and of the end of every layer."""
    steps = [Step.parse(str(step)) for step in dataset.point.values]
    return [index for index, step in enumerate(steps) if step.is_embed or step.is_end_of_layer]


def depth_axis(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(step_names(dataset.point.values)), tuple(layer_ends(dataset)))


def rank_panel(dataset: "xarray.Dataset", target_text: str) -> Panel:
    title = Message("Rank of the target {target}", target=target_text)
    rank = Line(Message("rank"), range(dataset.sizes["point"]), dataset["rank"].values.astype(float))
    definition = dataset["rank"].attrs["definition"]
    return Panel(title, definition, (rank,), depth_axis(dataset), Axis(Message("rank"), log=True))


def entropy_panel(dataset: "xarray.Dataset") -> Panel:
    line = Line(Message("entropy"), range(dataset.sizes["point"]), dataset.entropy.values)
    definition = dataset.entropy.attrs["definition"]
    return Panel(Message("Entropy"), definition, (line,), depth_axis(dataset), Axis(Message("nats"), low=0.0))


def kl_panel(dataset: "xarray.Dataset") -> Panel:
    """KL on a log axis, because it ranges from hundreds of nats to hundredths. The last step has 0 and is drawn at `MIN_KL`."""
    line = Line("KL", range(dataset.sizes["point"]), np.maximum(dataset.kl.values, MIN_KL), "second")
    description = Message(
        "{definition}. Values below {floor:g} are drawn at {floor:g}. The last step has 0.",
        definition=dataset.kl.attrs["definition"],
        floor=MIN_KL,
    )
    title = Message("KL from the final prediction")
    return Panel(title, description, (line,), depth_axis(dataset), Axis(Message("nats"), log=True))


def writer_bars(dataset: "xarray.Dataset", target_text: str) -> Panel:
    """One bar for each of the components with the largest contributions to the target's logit, the largest on top."""
    contributions = dataset.attribution.values
    names, order = dataset.component.values, np.argsort(-np.abs(contributions), kind="stable")[:MAX_WRITERS]
    entries = [(str(names[index]), float(contributions[index])) for index in order]
    remainder = float(contributions.sum()) - sum(value for _, value in entries)
    description = Message(
        "{definition}. All other components together: {remainder}.",
        definition=dataset.attribution.attrs["definition"],
        remainder=format_value(remainder),
    )
    title = Message("Components that write {target}", target=target_text)
    return bar_panel(title, description, entries, Message("contribution to the logit"))


def position_table(dataset: "xarray.Dataset", text_by_id: dict[int, str]) -> Panel:
    """One row per layer and one column per position: the most likely next token."""
    ids, probabilities = dataset.predicted_token.values, dataset.predicted_probability.values
    rows, token_texts = (
        step_names(dataset.end.values),
        [display_token(str(token_text)) for token_text in dataset.token_text.values],
    )
    texts = [[text_by_id[int(token)] for token in row] for row in ids]
    tips = [
        [
            Message(
                "after {step}, at {context}: {token} (probability {p:.3f})",
                step=row,
                context=token_text,
                token=text_by_id[int(t)],
                p=float(p),
            )
            for token_text, t, p in zip(token_texts, tokens, row_probabilities, strict=True)
        ]
        for row, tokens, row_probabilities in zip(rows, ids, probabilities, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == ids[-1]))
    description = Message(
        "The most likely next token at each position. Stronger colours mean a higher probability. Framed tokens agree with the last layer."
    )
    height = max(1.0, (len(rows) * 19 + 50) / 236)
    cells = (Cells(probabilities, texts, tips, marked, name=Message("probability")),)
    return Panel(
        Message("Most likely next token by position"),
        description,
        cells,
        Axis(Message("token"), tuple(token_texts)),
        Axis("", tuple(rows)),
        3,
        height,
    )


def _texts_by_id(dataset: "xarray.Dataset", token_strings: TokenLabels | None) -> dict[int, str]:
    ids = {
        *dataset.top_tokens.values.ravel().tolist(),
        *dataset.predicted_token.values.ravel().tolist(),
        int(dataset.attrs["target"]),
    }
    return {token: f"#{token}" if token_strings is None else token_strings([token])[0] for token in sorted(ids)}
