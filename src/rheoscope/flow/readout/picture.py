"""Where the prediction forms: the likeliest tokens of every step, the target's rank, entropy and KL."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bar_panel
from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, format_value
from rheoscope.picture.token_labels import TokenLabels, display_token, step_names
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The logit lens: every step of the last token is read by the model's own final norm and unembedding. Early layers need "
    "not speak the language that the unembedding reads, so a low probability there says that the target is not written yet, "
    "not that nothing is known."
)

MAX_WRITERS = 9
MIN_KL = 1e-3
"""Nats of divergence below which nothing is told apart."""


def picture(dataset: "xarray.Dataset", token_strings: TokenLabels | None = None) -> Picture:
    """The table of likeliest tokens, the target's rank, entropy and KL, and what every place finds likeliest."""
    layer_dataset = dataset.isel(point=layer_ends(dataset))
    text_by_id = {token: display_token(text) for token, text in _texts_by_id(dataset, token_strings).items()}
    target_text = text_by_id[int(dataset.attrs["target"])]
    return Picture(
        "Where the prediction forms",
        CAPTION,
        (
            prediction_table(layer_dataset, text_by_id),
            rank_panel(dataset, target_text),
            entropy_panel(dataset),
            kl_panel(dataset),
            writer_bars(dataset, target_text),
            position_table(dataset, text_by_id),
        ),
    )


def prediction_table(dataset: "xarray.Dataset", text_by_id: dict[int, str]) -> Panel:
    """A row a layer: its likeliest tokens, shaded by probability; the target is ringed."""
    ids, probabilities = dataset.top_tokens.values, dataset.top_probabilities.values
    rows = step_names(dataset.point.values)
    texts = [[text_by_id[int(token)] for token in row] for row in ids]
    tips = [
        [
            f"after {step_name}: {text_by_id[int(t)]} with probability {p:.3f}"
            for t, p in zip(row, row_probabilities, strict=True)
        ]
        for step_name, row, row_probabilities in zip(rows, ids, probabilities, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == dataset.attrs["target"]))
    description = "Each row: the tokens that a layer finds likeliest to come next, likelier in stronger colours; the target is ringed."
    return Panel(
        "Likeliest next tokens",
        description,
        (Cells(probabilities, texts, tips, marked, name="probability"),),
        Axis("from the likeliest on", tuple(f"{k + 1}." for k in range(ids.shape[1]))),
        Axis("", tuple(rows)),
        columns=2,
        height=max(1.9, (len(rows) * 19 + 50) / 236),
    )


def layer_ends(dataset: "xarray.Dataset") -> list[int]:
    """The embedding, and the end of every layer."""
    steps = [Step.parse(str(step)) for step in dataset.point.values]
    return [index for index, step in enumerate(steps) if step.is_embed or step.is_end_of_layer]


def depth_axis(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(step_names(dataset.point.values)), tuple(layer_ends(dataset)))


def rank_panel(dataset: "xarray.Dataset", target_text: str) -> Panel:
    description = f"{dataset['rank'].attrs['definition']}; 1 where the step finds it likeliest."
    rank = Line("rank", range(dataset.sizes["point"]), dataset["rank"].values.astype(float))
    return Panel(f"Rank of the target {target_text}", description, (rank,), depth_axis(dataset), Axis("rank", log=True))


def entropy_panel(dataset: "xarray.Dataset") -> Panel:
    line = Line("entropy", range(dataset.sizes["point"]), dataset.entropy.values)
    description = f"{dataset.entropy.attrs['definition']}: how open it is what comes next."
    return Panel("Entropy", description, (line,), depth_axis(dataset), Axis("nats", low=0.0))


def kl_panel(dataset: "xarray.Dataset") -> Panel:
    """On a log axis: early steps are off by hundreds of nats, late ones by hundredths. The last is 0 and has no place on it."""
    line = Line("KL", range(dataset.sizes["point"]), np.maximum(dataset.kl.values, MIN_KL), "second")
    description = f"{dataset.kl.attrs['definition']}; {MIN_KL:g} and less is drawn as {MIN_KL:g}, the last step has 0."
    return Panel(
        "KL from what is predicted in the end", description, (line,), depth_axis(dataset), Axis("nats", log=True)
    )


def writer_bars(dataset: "xarray.Dataset", target_text: str) -> Panel:
    """A bar for each component that writes most into the target's logit, the strongest on top."""
    contributions = dataset.attribution.values
    names, order = dataset.component.values, np.argsort(-np.abs(contributions), kind="stable")[:MAX_WRITERS]
    entries = [(str(names[index]), float(contributions[index])) for index in order]
    remainder = float(contributions.sum()) - sum(value for _, value in entries)
    description = f"{dataset.attribution.attrs['definition']}. All others together: {format_value(remainder)}."
    return bar_panel(f"Who writes {target_text}", description, entries, "added to its logit")


def position_table(dataset: "xarray.Dataset", text_by_id: dict[int, str]) -> Panel:
    """A row a layer, a column a place of the text: what would come next there."""
    ids, probabilities = dataset.likeliest.values, dataset.likeliest_probability.values
    rows, token_texts = (
        step_names(dataset.end.values),
        [display_token(str(token_text)) for token_text in dataset.token_text.values],
    )
    texts = [[text_by_id[int(token)] for token in row] for row in ids]
    tips = [
        [
            f"after {row}, {token_text}: {text_by_id[int(t)]} with probability {p:.3f}"
            for token_text, t, p in zip(token_texts, tokens, row_probabilities, strict=True)
        ]
        for row, tokens, row_probabilities in zip(rows, ids, probabilities, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == ids[-1]))
    description = "What each place finds likeliest to come next, likelier in stronger colours; ringed where the last layer says the same."
    height = max(1.0, (len(rows) * 19 + 50) / 236)
    cells = (Cells(probabilities, texts, tips, marked, name="probability"),)
    return Panel(
        "What every place finds likeliest",
        description,
        cells,
        Axis("after", tuple(token_texts)),
        Axis("", tuple(rows)),
        3,
        height,
    )


def _texts_by_id(dataset: "xarray.Dataset", token_strings: TokenLabels | None) -> dict[int, str]:
    ids = {
        *dataset.top_tokens.values.ravel().tolist(),
        *dataset.likeliest.values.ravel().tolist(),
        int(dataset.attrs["target"]),
    }
    return {token: f"#{token}" if token_strings is None else token_strings([token])[0] for token in sorted(ids)}
