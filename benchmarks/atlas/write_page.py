"""The page of the atlas, with its figures, from the stored models.

python benchmarks/atlas/write_page.py       reads docs/results/atlas/*.json, writes docs/results/atlas.md and figures/atlas-*.png
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rheoscope as rs
from rheoscope.picture.blocks import Lines, Table
from rheoscope.picture.picture import Picture
from rheoscope.report.atlas import atlas_picture
from rheoscope.report.atlas_entry import AtlasEntry, read_entry
from rheoscope.report.atlas_pictures import curves_picture, declared_field, heads_picture
from rheoscope.report.atlas_sizes import SizeTrend, size_trends
from rheoscope.report.atlas_summary import summary_blocks
from rheoscope.report.atlas_tables import (
    cloud_name,
    cloud_traits,
    compare_with_published,
    query_atlas,
    side_cards,
)
from rheoscope.report.card_blocks import claims_of
from rheoscope.report.card_clouds import claims_by_name
from rheoscope.report.draw.paper import to_figure
from rheoscope.report.forest_plot import signed_number
from rheoscope.report.published_tables import finding_tables

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ENTRIES, PAGE, FIGURES = RESULTS / "atlas", RESULTS / "atlas.md", RESULTS / "figures"
QUERIES = (
    "select claim, answer, count(*) as models from claims group by all order by claim, models desc",
    "select model, cloud, round(avg(operators_symmetry), 3) as symmetry, round(avg(agreement_agreement), 3) as agreement "
    "from heads group by all order by symmetry desc",
)


def stored_entries(folder: Path = ENTRIES) -> list[AtlasEntry]:
    """The stored models, from the smallest to the largest."""
    return sorted(map(read_entry, folder.glob("*.json")), key=lambda entry: int(entry.clouds.parameters.max()))


def pictures(entries: Sequence[AtlasEntry]) -> dict[str, Picture]:
    """The figures of the page by name."""
    result = rs.atlas([card for entry in entries for card in side_cards(entry)])
    forest = atlas_picture(result)
    panels = [  # short titles, because a statement is longer than a panel
        replace(panel, title=claim.name) for panel, claim in zip(forest.panels, claims_of(result), strict=True)
    ]
    return {
        "claims": replace(forest, panels=tuple(panels)),
        "curves": curves_picture(entries),
        "heads": heads_picture(entries),
    }


def definitions_text(fields: Iterable[str]) -> str:
    """The definition of every field of a figure."""
    rows = []
    for name in fields:
        field = declared_field(name)
        rows.append([f"`{name}`", f"{field.definition} ({field.unit})" if field.unit else str(field.definition)])
    return markdown_table(["field", "definition"], rows)


def page_text(entries: Sequence[AtlasEntry]) -> str:
    """The page in Markdown."""
    drawings = pictures(entries)
    result = rs.atlas([card for entry in entries for card in side_cards(entry)])
    traits = cloud_traits(entries)
    trends = size_trends(result, traits)
    n_clouds, n_types = result.sizes["model"], len({kind for entry in entries for kind in entry.clouds.type})
    parts = [
        f"# The atlas: {len(entries)} models side by side",
        "**Question.** Which answers of a card hold for several models, and where do models disagree?",
        f"{len(entries)} models of {n_types} types with {n_clouds} clouds; an encoder–decoder has two. Every card has 40 or more random "
        "models and 8 untrained ones. Models of English read passages of the package, or every third or sixth of them. Models of chemistry "
        "read reactions, and the sorting model reads digits. [The models](#the-models) lists the texts and tokens of every card. Fewer "
        "texts give wider intervals, so more answers are unclear. [Cards](../guide/card.md) explains the claims, the intervals and the "
        "answers. This page is written by `python benchmarks/atlas/write_page.py` from the files in `docs/results/atlas`.",
        "## What the models have in common\n\nThe number after *all* counts clouds. A sentence needs two models, and both clouds of an "
        "encoder–decoder are one. Effects are those of the tables below.",
        *(lines_text(block) for block in summary_blocks(result, traits, trends)),
        size_text(trends),
        "## The models\n\n" + models_text(entries),
        "## The claims\n\nEffects are in units of the smallest effect of interest, and drawn at most 8 units from 0. Grey: what random "
        "models reach. The first panel has the legend.",
        "![One forest plot per claim](figures/atlas-claims.png)",
        *(claim_text(entries, str(claim)) for claim in result.claim.values),
        "## Curves over the layers\n\nMeans over texts, against relative depth.",
        "![Curves over the layers](figures/atlas-curves.png)",
        definitions_text(field for panel in drawings["curves"].panels if (field := str(panel.title))),
        "## All heads\n\nEach mark is a head.",
        "![The heads of all models](figures/atlas-heads.png)",
        definitions_text(str(axis.label) for panel in drawings["heads"].panels for axis in (panel.x, panel.y)),
        "## Published findings\n\nEach table compares the models with a finding of others. *Not measured* also stands for models that "
        "the finding is not about.",
        *(table_text(table) for table in finding_tables(compare_with_published(entries))),
        "## Ask the files yourself\n\nThe tables are `models`, `claims`, `curves` and `heads`.",
        *(query_text(entries, sql) for sql in QUERIES),
        "## What the atlas does not show\n\n- Most models are small: the page says nothing about models above "
        f"{max(entry.clouds.parameters.max() for entry in entries) / 1e6:,.0f} million parameters.\n"
        "- The passages are short, about 100 tokens. Effects of long contexts are not measured.\n"
        "- Models differ in size, data, task and family at once, so the atlas shows that they differ and not why.\n"
        "- A property that goes with an answer is a candidate and no cause. The bidirectional models have their norms after the sublayers, "
        "and two of them read reactions.\n"
        "- A comparison with a published finding uses our definitions, which are stated below each table.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def lines_text(block: Lines) -> str:
    return f"### {block.heading}\n\n" + "\n".join(f"- {line}." for line in block.lines)


def size_text(trends: Sequence[SizeTrend]) -> str:
    """The rank correlation of each effect with the number of parameters."""
    if not trends:
        return ""
    rows = [[trend.claim.name, f"{trend.rho:+.2f}", str(trend.n_models), f"{trend.p_value:.2f}"] for trend in trends]
    return (
        "Spearman's rank correlation of the effect with the number of parameters, over models. An encoder–decoder counts once, with the "
        f"mean of its clouds. p is adjusted over the claims (Holm).\n\n{markdown_table(['claim', 'ρ', 'models', 'p'], rows)}"
    )


def models_text(entries: Sequence[AtlasEntry]) -> str:
    """The size of every cloud, its texts and tokens, and the command that computed it."""
    header = ["model", "type", "layers × heads × width", "parameters", "attention", "norms", "texts", "tokens"]
    rows = []
    for entry in entries:
        for row in entry.clouds.itertuples():
            name, size = cloud_name(entry.model, row.cloud), f"{depth_text(row)} × {row.heads} × {row.width}"
            attention, norms = "causal" if row.is_causal else "bidirectional", "after" if row.is_post_norm else "before"
            texts = f"{row.n_texts}", f"{row.n_tokens:,}"
            rows.append([name, row.type, size, f"{row.parameters:,}", attention, norms, *texts])
    commands = "\n".join(entry.command for entry in entries)
    return f"{markdown_table(header, rows)}\n\n```sh\n{commands}\n```"


def depth_text(row: Any) -> str:
    """The number of layers; for layers that run several times also how often."""
    is_shared = row.distinct_layers < row.layers
    return f"{row.distinct_layers:.0f} (run {row.layers} times)" if is_shared else str(row.layers)


def claim_text(entries: Sequence[AtlasEntry], claim: str) -> str:
    """The interval and the answer of every model for one claim."""
    rows = []
    for entry in entries:
        for card in side_cards(entry):
            if claim in card.claim.values:
                row = card.sel(claim=claim)
                names = ("estimate", "low", "high", "random_mean", "threshold", "untrained_mean")
                effect, low, high, mean, limit, untrained = (signed_number(float(row[name])) for name in names)
                model, answer, n = str(card.attrs["model"]), str(row.answer.values), f"{int(row.n_units)}"
                rows.append([model, answer, effect, f"{low} to {high}", f"{mean} ± {limit}", untrained, n])
    header = ["model", "answer", "effect", "interval", "random models", "untrained", "n"]
    return f"### {claims_by_name()[claim].statement} (`{claim}`)\n\n{markdown_table(header, rows)}"


def table_text(table: Table) -> str:
    rows = [[str(cell.text) for cell in row] for row in table.rows]
    header = [str(cell.text) for cell in table.header]
    return f"### {table.heading}\n\n{markdown_table(header, rows)}\n\n{table.note}"


def query_text(entries: Sequence[AtlasEntry], sql: str) -> str:
    rows = [[str(value) for value in row] for row in query_atlas(entries, sql).itertuples(index=False)]
    names = [str(name) for name in query_atlas(entries, sql).columns]
    command = f'```sh\nrheoscope atlas docs/results/atlas/*.json --query "{sql}"\n```'
    return f"{command}\n\n{markdown_table(names, rows)}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> markdown_table(["a"], [["1"]])
    '| a |\\n|---|\\n| 1 |'
    """
    lines = [list(header), *map(list, rows)]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(header), *text[1:]])


def main() -> None:
    entries = stored_entries()
    PAGE.write_text(page_text(entries), encoding="utf-8")
    for name, picture in pictures(entries).items():
        to_figure(picture).savefig(FIGURES / f"atlas-{name}.png", dpi=90)
    print("wrote", PAGE.name)


if __name__ == "__main__":
    main()
