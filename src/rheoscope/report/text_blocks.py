"""What was run: the model, the tokens of the text, the skipped analyses, and the origin of the numbers."""

from rheoscope.catalogue import ANALYSIS_MODULES, words_by_name
from rheoscope.messages.message import Message, Verbatim, join, plural
from rheoscope.picture.blocks import Block, Facts, Lines, Tokens
from rheoscope.picture.token_labels import display_token, printable
from rheoscope.space.results import Results

MAX_TITLE_CHARS = 90
"""The longest heading; the tokens below it are the whole text."""
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
    """The text on one line, shortened to the length of a heading; the model's name without a text."""
    if results.trace is None:
        return Verbatim(results.view.facts["model"])
    text = printable(" ".join((results.trace.text or "".join(results.trace.tokens)).split()))
    return Verbatim(text if len(text) <= MAX_TITLE_CHARS else text[: MAX_TITLE_CHARS - 1].rstrip() + "…")


def model_line(results: Results) -> Message:
    """The model, its size and its certificate, on one line."""
    view = results.view
    return Message(
        "{model} · {layers}, {heads}, width {width} · {certificate}",
        model=view.facts["model"],
        layers=view.depth,
        heads=plural("{n} head", "{n:,} heads", n=view.heads),
        width=view.width,
        certificate=view.facts["certificate"],
    )


def token_count(results: Results) -> Message:
    return plural("{n} token", "{n:,} tokens", n=len(results.required_trace))


def massive_tokens_text(results: Results) -> str:
    """The massive tokens, which the clouds do not contain."""
    trace = results.required_trace
    names = [
        Message("{token} at {position}", token=display_token(trace.tokens[index]), position=index)
        for index in trace.massive_tokens()
    ]
    return join(", ", names) if names else Message("none")


def lead_text(*all_results: Results) -> Message:
    """The first paragraph of a page: the model, and the size of each text."""
    sizes = [
        Message(
            "{tokens}; massive tokens left out of the clouds: {massive}.",
            tokens=token_count(results),
            massive=massive_tokens_text(results),
        )
        for results in all_results
        if results.trace
    ]
    model = Message("{model}.", model=model_line(all_results[0]))
    help_line = Message("Dotted words have definitions; point at a plot to see its numbers.")
    return join(" ", [model, *sizes, help_line])


def token_block(results: Results, heading: str = Message("The text")) -> Tokens:
    """Every token of the text. Massive ones are marked, and the others show the numbers that analyses declare."""
    trace = results.required_trace
    massive_tokens = set(trace.massive_tokens())
    analysis_tips = {
        index: tip
        for name in ANALYSIS_MODULES
        if results.has(name)
        for index, tip in words_by_name(name).token_tips(results.datasets[name]).items()
    }
    tips = []
    for index in range(len(trace)):
        if index in massive_tokens:
            tips.append(
                Message(
                    "token {index}: massive, more than five times the median norm at some step; left out of the clouds",
                    index=index,
                )
            )
        elif index in analysis_tips:
            tips.append(Message("token {index}: {numbers}", index=index, numbers=analysis_tips[index]))
        else:
            tips.append(Message("token {index}", index=index))
    return Tokens(heading, [display_token(token) for token in trace.tokens], tips, frozenset(massive_tokens))


def source_blocks(results: Results, heading: str = Message("The source")) -> list[Tokens]:
    """Every token of the source that the decoder of an encoder-decoder reads. Empty for other models."""
    source = None if results.trace is None else results.trace.source_trace
    if source is None:
        return []
    tips = [Message("token {index}", index=index) for index in range(len(source))]
    return [Tokens(heading, [display_token(token) for token in source.tokens], tips, frozenset())]


def skipped_blocks(results: Results, heading: str = Message("Skipped")) -> list[Block]:
    """The analyses without a result, each with the reason."""
    lines = [
        Message("{analysis} was skipped: {reason}", analysis=key, reason=reason)
        for key, reason in results.reasons.items()
    ]
    return [Lines(heading, lines)] if lines else []


def provenance_block(results: Results, heading: str = Message("Origin of the numbers")) -> Facts:
    """The model, its weights and the settings of every analysis."""
    source = results.view.facts if results.trace is None else results.trace.provenance
    settings = {
        f"{key}: {name}": str(dataset.attrs[name])
        for key, dataset in results.datasets.items()
        for name in REPORTED_SETTINGS
        if name in dataset.attrs
    }
    return Facts(heading, {name: str(value) for name, value in source.items() if name != "text"} | settings)
