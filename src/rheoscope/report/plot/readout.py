"""Where the prediction forms: the likeliest tokens of every step, the answer's rank, entropy and KL."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.report.draw.notebook import in_notebook
from rheoscope.report.draw.paper import on_paper
from rheoscope.report.picture import Axis, Cells, Line, Panel, Picture, number
from rheoscope.report.plot.bars import bars
from rheoscope.report.tokens import places, shown
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

Words = Callable[[list[int]], list[str]]
"""From token ids to their texts: `model.words`."""
CAPTION = (
    "The logit lens: every step of the last token is read by the model's own final norm and unembedding. Early layers need "
    "not speak the language that the unembedding reads, so a low probability there says that the answer is not written yet, "
    "not that nothing is known."
)

WRITERS = 9
LEAST = 1e-3
"""Nats of divergence below which nothing is told apart."""


def picture_readout(dataset: "xarray.Dataset", words: Words | None = None) -> Picture:
    """The table of likeliest tokens, the answer's rank, entropy and KL, and what every place would say."""
    layers = dataset.isel(point=ends(dataset))
    told = {token: shown(text) for token, text in _texts(dataset, words).items()}
    answer = told[int(dataset.attrs["answer"])]
    return Picture(
        "Where the prediction forms",
        CAPTION,
        (
            table(layers, told),
            ranks(dataset, answer),
            uncertainty(dataset),
            divergence(dataset),
            writers(dataset, answer),
            along(dataset, told),
        ),
    )


def table(dataset: "xarray.Dataset", told: dict[int, str]) -> Panel:
    """A row a layer: its likeliest tokens, shaded by probability; the answer is ringed."""
    ids, chances = dataset.top_tokens.values, dataset.top_probabilities.values
    rows = places(dataset.point.values)
    texts = [[told[int(token)] for token in row] for row in ids]
    tips = [
        [f"after {place}: {told[int(t)]} with probability {p:.3f}" for t, p in zip(row, law, strict=True)]
        for place, row, law in zip(rows, ids, chances, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == dataset.attrs["answer"]))
    about = (
        "Each row: the tokens that a layer finds likeliest to come next, the darker the likelier; the answer is ringed."
    )
    names = tuple(f"{k + 1}." for k in range(ids.shape[1]))
    return Panel(
        "Likeliest next tokens",
        about,
        (Cells(chances, texts, tips, marked),),
        Axis("from the likeliest on", names),
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


def ranks(dataset: "xarray.Dataset", answer: str) -> Panel:
    about = f"{dataset['rank'].attrs['definition']}; 1 where the step says what the model says in the end."
    rank = Line("rank", range(dataset.sizes["point"]), dataset["rank"].values.astype(float))
    return Panel(f"Rank of the answer {answer}", about, (rank,), depth(dataset), Axis("rank", log=True))


def uncertainty(dataset: "xarray.Dataset") -> Panel:
    line = Line("entropy", range(dataset.sizes["point"]), dataset.entropy.values)
    about = f"{dataset.entropy.attrs['definition']}: how open it is what comes next."
    return Panel("Entropy", about, (line,), depth(dataset), Axis("nats", low=0.0))


def divergence(dataset: "xarray.Dataset") -> Panel:
    """On a log axis: early steps are off by hundreds of nats, late ones by hundredths. The last is 0 and has no place on it."""
    line = Line("KL", range(dataset.sizes["point"]), np.maximum(dataset.kl.values, LEAST), "second")
    about = f"{dataset.kl.attrs['definition']}; {LEAST:g} and less is drawn as {LEAST:g}, the last step has 0."
    return Panel("KL from what is said in the end", about, (line,), depth(dataset), Axis("nats", log=True))


def writers(dataset: "xarray.Dataset", answer: str) -> Panel:
    """A bar for each component that writes most into the answer's logit, the strongest on top."""
    written = dataset.attribution.values
    names, order = dataset.component.values, np.argsort(-np.abs(written), kind="stable")[:WRITERS]
    table = [(str(names[at]), float(written[at])) for at in order]
    rest = float(written.sum()) - sum(value for _, value in table)
    about = f"{dataset.attribution.attrs['definition']}. All others together: {number(rest)}."
    return bars(f"Who writes {answer}", about, table, "added to its logit")


def along(dataset: "xarray.Dataset", told: dict[int, str]) -> Panel:
    """A row a layer, a column a place of the text: what would come next there."""
    ids, chances = dataset.said.values, dataset.said_probability.values
    rows, words = places(dataset.end.values), [shown(str(word)) for word in dataset.word.values]
    texts = [[told[int(token)] for token in row] for row in ids]
    tips = [
        [
            f"after {row}, {word}: {told[int(t)]} with probability {p:.3f}"
            for word, t, p in zip(words, said, law, strict=True)
        ]
        for row, said, law in zip(rows, ids, chances, strict=True)
    ]
    marked = frozenset((int(r), int(c)) for r, c in np.argwhere(ids == ids[-1]))
    about = "What each place finds likeliest to come next, the darker the likelier; ringed where it is what the last layer says."
    height = max(1.0, (len(rows) * 19 + 50) / 236)
    cells = (Cells(chances, texts, tips, marked),)
    return Panel(
        "What every place would say", about, cells, Axis("after", tuple(words)), Axis("", tuple(rows)), 3, height
    )


def plot_readout(dataset: "xarray.Dataset", words: Words | None = None) -> "Figure":
    """The picture with matplotlib, for papers; `words=model.words` puts texts for token ids."""
    return on_paper(picture_readout(dataset, words))


def interactive_readout(dataset: "xarray.Dataset", words: Words | None = None) -> Any:
    """The picture with plotly, for notebooks; `words=model.words` puts texts for token ids."""
    return in_notebook(picture_readout(dataset, words))


def _texts(dataset: "xarray.Dataset", words: Words | None) -> dict[int, str]:
    ids = {
        *dataset.top_tokens.values.ravel().tolist(),
        *dataset.said.values.ravel().tolist(),
        int(dataset.attrs["answer"]),
    }
    return {token: f"#{token}" if words is None else words([token])[0] for token in sorted(ids)}
