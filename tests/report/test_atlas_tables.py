"""Several stored models: tables and SQL, what they have in common, published findings, pictures and the page of the atlas."""

import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rheoscope as rs
from rheoscope.catalogue import all_claims, published_findings
from rheoscope.report.atlas_entry import AtlasEntry
from rheoscope.report.atlas_pictures import curves_picture, heads_picture
from rheoscope.report.atlas_summary import shared_answers
from rheoscope.report.atlas_tables import atlas_tables, cloud_groups, compare_with_published, query_atlas, side_cards
from rheoscope.space.published_finding import ModelCurves
from tests.commands.cases import run_rheoscope
from tests.report.test_atlas_entry import entry

ROOT = Path(__file__).resolve().parents[2]
DEPTHS = np.linspace(0, 1, 5)


def entries() -> list[AtlasEntry]:
    return [replace(entry("llama"), model="a"), replace(entry("bert"), model="b"), replace(entry("llama"), model="c")]


@cache
def page_writer() -> Any:
    spec = importlib.util.spec_from_file_location("write_page", ROOT / "benchmarks" / "atlas" / "write_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planted(post_norm: bool = False, massive: float = 0.0, **curves: list[float]) -> ModelCurves:
    """Curves with small errors, by field with _ in place of the first dot."""
    rows = [
        {"field": name.replace("_", ".", 1), "place": f"L{index}", "depth": depth, "mean": mean, "sd": 0.1, "n": 100}
        for name, means in curves.items()
        for index, (depth, mean) in enumerate(zip(DEPTHS, means, strict=True))
    ]
    facts = {"is_causal": True, "is_post_norm": post_norm, "massive_per_text": massive, "n_texts": 1, "n_tokens": 100}
    return ModelCurves(facts, pd.DataFrame(rows, columns=["field", "place", "depth", "mean", "sd", "n"]))


def agrees(name: str, model: ModelCurves) -> bool | None:
    finding = next(finding for finding in published_findings() if finding.name == name)
    comparison = finding.compare(model)
    return None if comparison is None else comparison.agrees


# Tables


def test_tables_have_the_rows_of_all_models() -> None:
    tables = atlas_tables(entries())
    assert set(tables) == {"models", "claims", "curves", "heads"}
    for name, table in tables.items():
        assert set(table.model) == {"a", "b", "c"}, name
    claims = tables["claims"].query("model == 'a'").set_index("claim")
    assert claims.estimate.to_dict() == entry("llama").card.estimate.to_series().to_dict()


def test_sql_reads_all_tables() -> None:
    for name, table in atlas_tables(entries()).items():
        assert query_atlas(entries(), f"select count(*) as n from {name}").n.item() == len(table)
    joined = "select c.model, m.is_causal from claims c join models m using (model, cloud) where claim = 'symmetry'"
    assert query_atlas(entries(), joined).is_causal.tolist() == [True, False, True]


@pytest.mark.parametrize("sql", ["select nothing from claims", "drop table", "select * from read_csv('/etc/hosts')"])
def test_a_wrong_query_gets_one_line(sql: str) -> None:
    with pytest.raises(rs.RheoscopeError, match="the tables are models, claims, curves, heads") as error:
        query_atlas(entries(), sql)
    assert "\n" not in str(error.value)


def test_the_command_answers_a_query(tmp_path: Path) -> None:
    entry("llama").save(tmp_path / "a.json")
    outcome = run_rheoscope("atlas", "a.json", "--query", "select claim from claims where claim = 'rest'", cwd=tmp_path)
    assert outcome.words == "claim rest"
    refused = run_rheoscope("atlas", "default", "--query", "select 1", cwd=tmp_path)
    assert refused.status == 1
    assert "--query reads stored models" in refused.err


# What models have in common


def test_no_sentence_rests_on_a_single_model() -> None:
    card = side_cards(entries()[0])[0]
    without_rest = side_cards(entries()[2])[0].drop_sel(claim="rest")
    groups = cloud_groups(entries())
    (alone,) = [line for line in shared_answers(rs.atlas([card, without_rest]), groups).lines if "rest" in line]
    assert alone.endswith("measured on 1 of 2 models, so the atlas says nothing")
    (line,) = shared_answers(rs.atlas([card]), groups).lines[:1]
    assert line.endswith("measured on 1 of 1 models, so the atlas says nothing")


def test_answers_are_counted_by_group_where_they_differ() -> None:
    first, second, third = (side_cards(item)[0] for item in entries())
    fourth = second.assign_attrs(model="d")
    groups = cloud_groups(entries()) | {"d": "bidirectional"}
    yes = [card.assign(answer=card.answer.where(card.claim != "symmetry", "yes")) for card in (second, fourth)]
    no = [card.assign(answer=card.answer.where(card.claim != "symmetry", "no")) for card in (first, third)]
    index = next(i for i, claim in enumerate(all_claims()) if claim.name == "symmetry")
    assert shared_answers(rs.atlas([*no, *yes]), groups).lines[index].endswith("causal: no 2; bidirectional: yes 2")
    assert shared_answers(rs.atlas([*no, yes[0]]), groups).lines[index].endswith(": no 2, yes 1")
    assert shared_answers(rs.atlas(no), groups).lines[index].endswith("no in all 2 models")


# Published findings


def test_every_published_finding_has_a_source_and_is_compared() -> None:
    comparisons = compare_with_published(entries())
    assert list(comparisons) == list(published_findings())
    for finding, rows in comparisons.items():
        assert finding.source.startswith("https://")
        assert list(rows) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("monotone_energy", planted(energy_dissipation=[0.1, -0.2, 0.1, 0.1, 0.1]), True),
        ("monotone_energy", planted(energy_dissipation=[0.1, 0.2, 0.1, 0.1, 0.1]), False),
        ("three_phases", planted(clusters_effective_rank=[5, 9, 10, 9, 3]), True),
        ("three_phases", planted(clusters_effective_rank=[10, 9, 8, 7, 3]), False),
        ("three_phases", planted(clusters_effective_rank=[5, 9, 10, 11, 12]), False),
        ("three_phases", planted(clusters_effective_rank=[5, 5, 5.001, 5, 5]), False),
        ("escape", planted(clusters_mean_cosine_uncentred=[0.1, 0.4, 0.9, 0.8, 0.2]), True),
        ("escape", planted(clusters_mean_cosine_uncentred=[0.1, 0.4, 0.6, 0.8, 0.9]), False),
        ("spikes_and_sinks", planted(massive=1.0, massive_tokens_sink_mass=[0.01, 0.3, 0.3, 0.3, 0.1]), None),
        ("escape", planted(energy_dissipation=[0.1] * 5), None),
    ],
)
def test_planted_curves_agree_as_they_should(name: str, model: ModelCurves, expected: bool | None) -> None:
    assert agrees(name, model) == expected


@pytest.mark.parametrize(
    ("own", "following", "expected"),
    [
        ([0.9, 0.7, 0.4, 0.2, 0.1], [0.0, 0.1, 0.2, 0.3, 0.4], True),
        ([0.9, 0.7, 0.4, 0.4, 0.5], [0.0, 0.1, 0.2, 0.3, 0.4], False),
        ([0.0] * 5, [0.1] * 5, False),
    ],
)
def test_the_switch_to_the_next_token(own: list[float], following: list[float], expected: bool) -> None:
    model = planted(transport_toward_own=own, transport_toward_next=following)
    assert agrees("input_to_output", model) is expected
    assert agrees("input_to_output", replace(model, facts={**model.facts, "is_causal": False})) is None


@pytest.mark.parametrize(
    ("post_norm", "massive", "mass", "expected"),
    [
        (False, 1.0, 0.3, True),
        (False, 0.0, 0.3, None),
        (True, 0.0, 0.3, True),
        (True, 1.0, 0.3, False),
        (True, 1.0, 0.01, True),
    ],
)
def test_spikes_and_sinks_go_with_norms_before(
    post_norm: bool, massive: float, mass: float, expected: bool | None
) -> None:
    model = planted(post_norm, massive)
    rows = [{"field": "massive_tokens.sink_mass", "place": "0", "depth": 0.5, "mean": mass, "sd": 0.1, "n": 5}]
    assert agrees("spikes_and_sinks", replace(model, curves=pd.DataFrame(rows))) is expected


# Pictures and the page


def test_pictures_draw_every_model() -> None:
    curves = curves_picture(entries())
    names = [{mark.name for mark in panel.marks} for panel in curves.panels]
    assert {"a", "b", "c"} in names
    legends = [name for panel in curves.panels for name in panel.legend]
    assert sorted(legends) == ["a", "b", "c"]
    (panel,) = heads_picture(entries()).panels
    assert [len(mark.x) for mark in panel.marks] == [len(item.heads) for item in entries()]


def test_the_page_names_every_model_and_claim() -> None:
    text = page_writer().page_text(entries())
    for claim in entries()[0].card.claim.values:
        assert f"(`{claim}`)" in text
    for item in entries():
        assert text.count(f"| {item.model} |") >= len(item.card.claim)


def test_the_published_page_is_written_from_the_stored_models() -> None:
    writer = page_writer()
    assert writer.PAGE.read_text(encoding="utf-8") == writer.page_text(writer.stored_entries())
