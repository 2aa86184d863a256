"""What each layer says comes next: the target's probability and rank, and the likeliest tokens."""

from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.picture.token_labels import shown
from rheoscope.space.results import Answers
from rheoscope.space.step import Step

LISTED = 4


def blocks(answers: Answers) -> list[Block]:
    """A row for the embedding and for the end of every layer."""
    if "readout" not in answers.found:
        return []
    lens = answers.found["readout"]
    target = shown(answers.words([int(lens.attrs["target"])])[0])
    defined = {name: str(lens[name].attrs["definition"]) for name in ("probability", "rank", "entropy", "top_tokens")}
    header = [
        Cell("after"),
        Cell("p(target)", defined["probability"]),
        Cell("rank", defined["rank"]),
        Cell("entropy", f"{defined['entropy']}, in nats"),
        Cell("likeliest next tokens", defined["top_tokens"]),
    ]
    rows = []
    for point in map(str, lens.point.values):
        step = Step.parse(point)
        if not (step.is_embed or step.is_end_of_layer):
            continue
        row = lens.sel(point=point)
        words = answers.words([int(token) for token in row.top_tokens.values[:LISTED]])
        likely = [f"{shown(word)} {float(p):.2f}" for word, p in zip(words, row.top_probabilities.values, strict=False)]
        numbers = f"{float(row.probability):.3f}", f"{int(row['rank'])}", f"{float(row.entropy):.2f}"
        after = "embed" if step.is_embed else f"L{step.layer}"
        rows.append([Cell(after), *map(Cell, numbers), Cell("  ".join(likely))])
    heading = f"What each layer says comes next; the target is {target}"
    return [Table(heading, header, rows, frozenset({0, 4}))]
