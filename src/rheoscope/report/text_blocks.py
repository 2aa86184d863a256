"""What was run: the model, the text in its tokens, what was left out, and where the numbers come from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rheoscope.messages.numbers import plural
from rheoscope.picture.blocks import Block, Facts, Lines, Tokens
from rheoscope.picture.picture import number
from rheoscope.picture.token_labels import printable, shown
from rheoscope.space.results import Answers

if TYPE_CHECKING:
    import xarray

TITLE = 90
"""Letters of the text that a heading can carry; the tokens below it are the whole text."""
SETTINGS = ("space", "grain", "draws", "seed", "angle", "nearest", "sampled_queries", "rows", "strides")


def title(answers: Answers) -> str:
    """The text on one line, cut where a heading ends; the model's name where there is no text."""
    if answers.trace is None:
        return str(answers.view.facts["model"])
    text = printable(" ".join((answers.trace.text or "".join(answers.trace.tokens)).split()))
    return text if len(text) <= TITLE else text[: TITLE - 1].rstrip() + "…"


def model_line(answers: Answers) -> str:
    """The model, its size and its certificate, on one line."""
    view = answers.view
    size = f"{plural(view.layers, 'layer')}, {plural(view.heads, 'head')}, width {view.width}"
    return f"{view.facts['model']} · {size} · {view.facts['certificate']}"


def massive(answers: Answers) -> str:
    """Which tokens are left out of the clouds."""
    trace = answers.text
    return ", ".join(f"{at} {shown(trace.tokens[at])}" for at in trace.massive()) or "none"


def lead(*texts: Answers) -> str:
    """What was run, and how large each text is, for the top of a page."""
    sizes = [
        f"{plural(len(one.text), 'token')}; massive tokens left out of the clouds: {massive(one)}."
        for one in texts
        if one.trace
    ]
    definitions = "Definitions are under the dotted words, numbers under the pictures."
    return " ".join([f"{model_line(texts[0])}.", *sizes, definitions])


def tokens(answers: Answers, heading: str = "The text") -> Tokens:
    """Every token in its place; massive ones are marked, the others tell how they moved."""
    trace, path = answers.text, answers.found.get("trajectory")
    large = set(trace.massive())
    moved = {} if path is None else {int(token): told for token, *told in _columns(path)}
    tips = []
    for at in range(len(trace)):
        tip = f"token {at}"
        if at in large:
            tip += ": massive, longer than five times the median at some step; left out of the clouds"
        elif path is not None:
            length, straight, null = map(number, moved[at])
            tip += f": path {length}, straightness {straight} (null {null})"
        tips.append(tip)
    return Tokens(heading, [shown(token) for token in trace.tokens], tips, frozenset(large))


def _columns(path: "xarray.Dataset") -> Iterator[tuple[float, ...]]:
    """Every token with its path length, its straightness and the null of it."""
    columns = path.token, path.path_length, path.straightness, path.straightness_null
    return zip(*(column.values.tolist() for column in columns), strict=True)


def left_out(answers: Answers, heading: str = "Left out") -> list[Block]:
    """What has no answer, and why."""
    lines = [f"{name} is left out: {reason}" for name, reason in answers.left_out.items()]
    return [Lines(heading, lines)] if lines else []


def provenance(answers: Answers, heading: str = "Where the numbers come from") -> Facts:
    """What made the numbers: model and weights, settings."""
    source = answers.view.facts if answers.trace is None else answers.trace.provenance
    settings = {
        f"{key}: {name}": str(dataset.attrs[name])
        for key, dataset in answers.found.items()
        for name in SETTINGS
        if name in dataset.attrs
    }
    return Facts(heading, {name: str(value) for name, value in source.items() if name != "text"} | settings)
