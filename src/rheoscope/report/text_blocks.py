"""What was run: the model, the text in its tokens, what was left out, and where the numbers come from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rheoscope.messages.numbers import pluralise
from rheoscope.picture.blocks import Block, Facts, Lines, Tokens
from rheoscope.picture.picture import format_value
from rheoscope.picture.token_labels import display_token, printable
from rheoscope.space.results import Results

if TYPE_CHECKING:
    import xarray

MAX_TITLE_CHARS = 90
"""Letters of the text that a heading can carry; the tokens below it are the whole text."""
REPORTED_SETTINGS = (
    "space",
    "grain",
    "draws",
    "seed",
    "angle",
    "n_neighbours",
    "sampled_queries",
    "max_tokens",
    "strides",
)


def report_title(results: Results) -> str:
    """The text on one line, cut where a heading ends; the model's name where there is no text."""
    if results.trace is None:
        return str(results.view.facts["model"])
    text = printable(" ".join((results.trace.text or "".join(results.trace.tokens)).split()))
    return text if len(text) <= MAX_TITLE_CHARS else text[: MAX_TITLE_CHARS - 1].rstrip() + "…"


def model_line(results: Results) -> str:
    """The model, its size and its certificate, on one line."""
    view = results.view
    size = f"{pluralise(view.layers, 'layer')}, {pluralise(view.heads, 'head')}, width {view.width}"
    return f"{view.facts['model']} · {size} · {view.facts['certificate']}"


def massive_tokens_text(results: Results) -> str:
    """Which tokens are left out of the clouds."""
    trace = results.required_trace
    return ", ".join(f"{index} {display_token(trace.tokens[index])}" for index in trace.massive_tokens()) or "none"


def lead_text(*all_results: Results) -> str:
    """What was run, and how large each text is, for the top of a page."""
    sizes = [
        f"{pluralise(len(results.required_trace), 'token')}; massive tokens left out of the clouds: {massive_tokens_text(results)}."
        for results in all_results
        if results.trace
    ]
    definitions = "Definitions are under the dotted words, numbers under the pictures."
    return " ".join([f"{model_line(all_results[0])}.", *sizes, definitions])


def token_block(results: Results, heading: str = "The text") -> Tokens:
    """Every token in its place; massive ones are marked, the others tell how they moved."""
    trace, trajectory = results.required_trace, results.datasets.get("trajectory")
    massive_tokens = set(trace.massive_tokens())
    path_numbers = {} if trajectory is None else {int(token): numbers for token, *numbers in _path_columns(trajectory)}
    tips = []
    for index in range(len(trace)):
        tip = f"token {index}"
        if index in massive_tokens:
            tip += ": massive, longer than five times the median at some step; left out of the clouds"
        elif trajectory is not None:
            length, straightness, null = map(format_value, path_numbers[index])
            tip += f": path {length}, straightness {straightness} (null {null})"
        tips.append(tip)
    return Tokens(heading, [display_token(token) for token in trace.tokens], tips, frozenset(massive_tokens))


def _path_columns(trajectory: "xarray.Dataset") -> Iterator[tuple[float, ...]]:
    """Every token with its path length, its straightness and the null of it."""
    columns = trajectory.token, trajectory.path_length, trajectory.straightness, trajectory.straightness_null
    return zip(*(column.values.tolist() for column in columns), strict=True)


def skipped_blocks(results: Results, heading: str = "Left out") -> list[Block]:
    """What has no answer, and why."""
    lines = [f"{name} is left out: {reason}" for name, reason in results.skipped.items()]
    return [Lines(heading, lines)] if lines else []


def provenance_block(results: Results, heading: str = "Where the numbers come from") -> Facts:
    """What made the numbers: model and weights, settings."""
    source = results.view.facts if results.trace is None else results.trace.provenance
    settings = {
        f"{key}: {name}": str(dataset.attrs[name])
        for key, dataset in results.datasets.items()
        for name in REPORTED_SETTINGS
        if name in dataset.attrs
    }
    return Facts(heading, {name: str(value) for name, value in source.items() if name != "text"} | settings)
