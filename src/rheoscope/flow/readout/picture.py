"""Where the prediction forms: the likeliest tokens of every step, the target's rank, entropy and KL."""

from typing import TYPE_CHECKING

import numpy as np

from rheoscope.picture.bars import bars
from rheoscope.picture.picture import Axis, Cells, Line, Panel, Picture, number
from rheoscope.picture.token_labels import Words, places, shown
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The logit lens: every step of the last token is read by the model's own final norm and unembedding. Early layers need "
    "not speak the language that the unembedding reads, so a low probability there says that the target is not written yet, "
    "not that nothing is known."
)

WRITERS = 9
LEAST = 1e-3
"""Nats of divergence below which nothing is told apart."""


def picture(dataset: "xarray.Dataset", words: Words | None = None) -> Picture:
    """The table of likeliest tokens, the target's rank, entropy and KL, and what every place finds likeliest."""
    layers = dataset.isel(point=ends(dataset))
    texts = {token: shown(text) for token, text in _texts(dataset, words).items()}
    target = texts[int(dataset.attrs["target"])]
    return Picture(
        "Where the prediction forms",
        CAPTION,
        (
            table(layers, texts),
            ranks(dataset, target),
            uncertainty(dataset),
            divergence(dataset),
            writers(dataset, target),
            along(dataset, texts),
        ),
    )


def table(dataset: "xarray.Dataset", names: dict[int, str]) -> Panel:
    """A row a layer: its likeliest tokens, shaded by probability; the target is ringed."""
    ids, chances = dataset.top_tokens.values, dataset.top_probabilities.values
    rows = places(dataset.point.values)
    texts = [[names[int(token)] for token in row] for row in ids]
    tips = [
        [f"after {place}: {names[int(t)]} with probability {p:.3f}" for t, p in zip(row, law, strict=True)]
        for place, row, law in zip(rows, ids, chances, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == dataset.attrs["target"]))
    about = "Each row: the tokens that a layer finds likeliest to come next, likelier in stronger colours; the target is ringed."
    return Panel(
        "Likeliest next tokens",
        about,
        (Cells(chances, texts, tips, marked, name="probability"),),
        Axis("from the likeliest on", tuple(f"{k + 1}." for k in range(ids.shape[1]))),
        Axis("", tuple(rows)),
        columns=2,
        height=max(1.9, (len(rows) * 19 + 50) / 236),
    )


def ends(dataset: "xarray.Dataset") -> list[int]:
    """The embedding, and the end of every layer."""
    steps = [Step.parse(str(step)) for step in dataset.point.values]
    return [at for at, step in enumerate(steps) if step.is_embed or step.is_end_of_layer]


def depth(dataset: "xarray.Dataset") -> Axis:
    return Axis("", tuple(places(dataset.point.values)), tuple(ends(dataset)))


def ranks(dataset: "xarray.Dataset", target: str) -> Panel:
    about = f"{dataset['rank'].attrs['definition']}; 1 where the step finds it likeliest."
    rank = Line("rank", range(dataset.sizes["point"]), dataset["rank"].values.astype(float))
    return Panel(f"Rank of the target {target}", about, (rank,), depth(dataset), Axis("rank", log=True))


def uncertainty(dataset: "xarray.Dataset") -> Panel:
    line = Line("entropy", range(dataset.sizes["point"]), dataset.entropy.values)
    about = f"{dataset.entropy.attrs['definition']}: how open it is what comes next."
    return Panel("Entropy", about, (line,), depth(dataset), Axis("nats", low=0.0))


def divergence(dataset: "xarray.Dataset") -> Panel:
    """On a log axis: early steps are off by hundreds of nats, late ones by hundredths. The last is 0 and has no place on it."""
    line = Line("KL", range(dataset.sizes["point"]), np.maximum(dataset.kl.values, LEAST), "second")
    about = f"{dataset.kl.attrs['definition']}; {LEAST:g} and less is drawn as {LEAST:g}, the last step has 0."
    return Panel("KL from what is predicted in the end", about, (line,), depth(dataset), Axis("nats", log=True))


def writers(dataset: "xarray.Dataset", target: str) -> Panel:
    """A bar for each component that writes most into the target's logit, the strongest on top."""
    written = dataset.attribution.values
    names, order = dataset.component.values, np.argsort(-np.abs(written), kind="stable")[:WRITERS]
    table = [(str(names[at]), float(written[at])) for at in order]
    rest = float(written.sum()) - sum(value for _, value in table)
    about = f"{dataset.attribution.attrs['definition']}. All others together: {number(rest)}."
    return bars(f"Who writes {target}", about, table, "added to its logit")


def along(dataset: "xarray.Dataset", names: dict[int, str]) -> Panel:
    """A row a layer, a column a place of the text: what would come next there."""
    ids, chances = dataset.likeliest.values, dataset.likeliest_probability.values
    rows, words = places(dataset.end.values), [shown(str(word)) for word in dataset.word.values]
    texts = [[names[int(token)] for token in row] for row in ids]
    tips = [
        [
            f"after {row}, {word}: {names[int(t)]} with probability {p:.3f}"
            for word, t, p in zip(words, tokens, law, strict=True)
        ]
        for row, tokens, law in zip(rows, ids, chances, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == ids[-1]))
    about = "What each place finds likeliest to come next, likelier in stronger colours; ringed where the last layer says the same."
    height = max(1.0, (len(rows) * 19 + 50) / 236)
    cells = (Cells(chances, texts, tips, marked, name="probability"),)
    return Panel(
        "What every place finds likeliest", about, cells, Axis("after", tuple(words)), Axis("", tuple(rows)), 3, height
    )


def _texts(dataset: "xarray.Dataset", words: Words | None) -> dict[int, str]:
    ids = {
        *dataset.top_tokens.values.ravel().tolist(),
        *dataset.likeliest.values.ravel().tolist(),
        int(dataset.attrs["target"]),
    }
    return {token: f"#{token}" if words is None else words([token])[0] for token in sorted(ids)}
