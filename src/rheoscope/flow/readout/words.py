"""What each layer says comes next: the target's probability and rank, and the likeliest tokens."""

from rheoscope.picture.blocks import Block, Cell, Table
from rheoscope.picture.token_labels import display_token
from rheoscope.space.results import Results
from rheoscope.space.step import Step

N_LIKELIEST = 4


def blocks(results: Results) -> list[Block]:
    """A row for the embedding and for the end of every layer."""
    if "readout" not in results.datasets:
        return []
    lens = results.datasets["readout"]
    target_text = display_token(results.token_strings([int(lens.attrs["target"])])[0])
    definitions = {
        name: str(lens[name].attrs["definition"]) for name in ("probability", "rank", "entropy", "top_tokens")
    }
    header = [
        Cell("after"),
        Cell("p(target)", definitions["probability"]),
        Cell("rank", definitions["rank"]),
        Cell("entropy", f"{definitions['entropy']}, in nats"),
        Cell("likeliest next tokens", definitions["top_tokens"]),
    ]
    rows = []
    for point in map(str, lens.point.values):
        step = Step.parse(point)
        if not (step.is_embed or step.is_end_of_layer):
            continue
        row = lens.sel(point=point)
        token_texts = results.token_strings([int(token) for token in row.top_tokens.values[:N_LIKELIEST]])
        likeliest = [
            f"{display_token(token_text)} {float(p):.2f}"
            for token_text, p in zip(token_texts, row.top_probabilities.values, strict=False)
        ]
        numbers = f"{float(row.probability):.3f}", f"{int(row['rank'])}", f"{float(row.entropy):.2f}"
        step_name = "embed" if step.is_embed else f"L{step.layer}"
        rows.append([Cell(step_name), *map(Cell, numbers), Cell("  ".join(likeliest))])
    heading = f"What each layer says comes next; the target is {target_text}"
    return [Table(heading, header, rows, frozenset({0, 4}))]
