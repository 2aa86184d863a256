"""The tables of stored models: one row per cloud, claim, place of a curve or head, and SQL over all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rheoscope.catalogue import published_findings
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.report.atlas_entry import CLOUD, AtlasEntry
from rheoscope.report.card_clouds import claims_by_name, side_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding

if TYPE_CHECKING:
    import pandas
    import xarray

CLAIM_FIELDS = (
    *("estimate", "low", "high", "smallest_effect", "random_mean", "threshold", "untrained_mean"),
    *("answer", "n_units", "texts_needed"),
)
TABLES = ("models", "claims", "curves", "heads")


def side_cards(entry: AtlasEntry) -> "list[xarray.Dataset]":
    """The card of every cloud of a model, with the claims of one text: two for an encoder–decoder, whose names have the side."""
    claims = claims_by_name()
    sides = dict.fromkeys(side_of(claims[str(name)]) for name in entry.card.claim.values)
    cards = []
    for side in sides:
        names = [str(name) for name in entry.card.claim.values if side_of(claims[str(name)]) == side]
        card = entry.card.sel(claim=names).assign_coords(claim=[name.removeprefix(f"{side}.") for name in names])
        cards.append(card.assign_attrs(model=cloud_name(entry.model, side)))
    return cards


def cloud_name(model: str, side: str) -> str:
    """The name of a cloud: that of its model, and the side of an encoder–decoder.

    >>> cloud_name("t5", "source"), cloud_name("gpt2", "")
    ('t5, source', 'gpt2')
    """
    return f"{model}, {side}" if side else model


def atlas_tables(entries: Sequence[AtlasEntry]) -> "dict[str, pandas.DataFrame]":
    """models, claims, curves and heads of all entries. Each has the columns `model` and `cloud`."""
    import pandas as pd

    claims = []
    for entry in entries:
        for side, card in zip(entry.clouds[CLOUD], side_cards(entry), strict=True):
            rows = card[[name for name in CLAIM_FIELDS if name in card]].to_dataframe().reset_index()
            claims.append(rows.assign(model=entry.model, cloud=side))
    tables = {"claims": pd.concat(claims, ignore_index=True)}
    for table, field in (("models", "clouds"), ("curves", "curves"), ("heads", "heads")):
        parts = [getattr(entry, field).assign(model=entry.model) for entry in entries]
        tables[table] = pd.concat(parts, ignore_index=True).rename(columns=lambda name: name.replace(".", "_"))
    return {name: tables[name] for name in TABLES}


def query_atlas(entries: Sequence[AtlasEntry], sql: str) -> "pandas.DataFrame":
    """SQL over the tables `models`, `claims`, `curves` and `heads`, by DuckDB."""
    try:
        import duckdb
    except ImportError as error:
        raise RheoscopeError(
            Message("SQL queries need the package duckdb"), Advice("", "pip install 'rheoscope[corpus]'")
        ) from error
    try:
        with duckdb.connect(config={"enable_external_access": "false"}) as connection:
            for name, table in atlas_tables(entries).items():
                connection.register(name, table)
            return connection.sql(sql).df()
    except (duckdb.Error, AttributeError) as error:
        raise RheoscopeError(
            Message(
                "DuckDB rejected the query: {reason}; the tables are {tables}",
                reason=str(error).splitlines()[0],
                tables=", ".join(TABLES),
            ),
            Advice("", "--query 'select model, answer from claims'"),
        ) from None


def cloud_curves(entry: AtlasEntry) -> Mapping[str, ModelCurves]:
    """The facts, curves and heads of every cloud of a model, by the name of the cloud."""
    facts: list[dict[str, Any]] = entry.clouds.to_dict("records")
    return {
        cloud_name(entry.model, row[CLOUD]): ModelCurves(
            row, *(table[table[CLOUD] == row[CLOUD]] for table in (entry.curves, entry.heads))
        )
        for row in facts
    }


@dataclass(frozen=True)
class CloudTraits:
    """The properties of a cloud's model that may explain its answers. An encoder–decoder has two clouds with the same `model`."""

    model: str
    is_causal: bool
    is_post_norm: bool
    parameters: int


def cloud_traits(entries: Sequence[AtlasEntry]) -> dict[str, CloudTraits]:
    """The traits of every cloud by its name."""
    return {
        name: CloudTraits(
            model=entry.model,
            is_causal=bool(curves.facts["is_causal"]),
            is_post_norm=bool(curves.facts["is_post_norm"]),
            parameters=int(curves.facts["parameters"]),
        )
        for entry in entries
        for name, curves in cloud_curves(entry).items()
    }


def compare_with_published(entries: Sequence[AtlasEntry]) -> dict[PublishedFinding, dict[str, Comparison | None]]:
    """Every published finding → cloud → whether it agrees, and with which numbers. None where it was not measured."""
    clouds = {name: curves for entry in entries for name, curves in cloud_curves(entry).items()}
    return {
        finding: {name: finding.compare(curves) for name, curves in clouds.items()} for finding in published_findings()
    }
