"""Several stored models: tables and SQL, what they have in common, published findings, pictures and the page of the atlas."""

import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import rheoscope as rs
from rheoscope.catalogue import all_claims, published_findings
from rheoscope.report.atlas_entry import AtlasEntry
from rheoscope.report.atlas_pictures import curves_picture, heads_picture
from rheoscope.report.atlas_sizes import SizeTrend, size_trends
from rheoscope.report.atlas_summary import size_lines, summary_blocks
from rheoscope.report.atlas_tables import (
    CloudTraits,
    atlas_tables,
    cloud_traits,
    compare_with_published,
    query_atlas,
    side_cards,
)
from rheoscope.report.forest_plot import signed_number
from rheoscope.report.published_tables import finding_tables
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
    return ModelCurves(
        facts, pd.DataFrame(rows, columns=["field", "place", "depth", "mean", "sd", "n"]), pd.DataFrame()
    )


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


def common(cards: list[Any], **traits: CloudTraits) -> dict[str, list[str]]:
    """The sentences about these cards, by heading."""
    result, traits_by_name = rs.atlas(cards), cloud_traits(entries()) | traits
    return {
        str(block.heading): list(map(str, block.lines))
        for block in summary_blocks(result, traits_by_name, size_trends(result, traits_by_name))
    }


def with_answers(**answers: str) -> list[Any]:
    """The same card under these names, with these answers to `symmetry`. All other claims are unclear."""
    card = side_cards(entries()[0])[0]
    return [
        card.assign(
            answer=card.answer.where(card.claim == "symmetry", "unclear").where(card.claim != "symmetry", answer)
        ).assign_attrs(model=name)
        for name, answer in answers.items()
    ]


def traits_of(name: str, is_causal: bool = True, is_post_norm: bool = False, parameters: int = 10) -> CloudTraits:
    return CloudTraits(name, is_causal, is_post_norm, parameters)


def test_no_sentence_rests_on_a_single_model() -> None:
    """Also not on the two clouds of one model."""
    card = side_cards(entries()[0])[0]
    without_rest = side_cards(entries()[2])[0].drop_sel(claim="rest")
    rest = next(str(claim.statement) for claim in all_claims() if claim.name == "rest")
    assert rest in common([card, without_rest])["Measured on fewer than two models, so the atlas says nothing"]
    for blocks in (
        common([card]),
        common(with_answers(p="yes", q="yes"), p=traits_of("pair", is_causal=False), q=traits_of("pair")),
    ):
        assert list(blocks) == ["Measured on fewer than two models, so the atlas says nothing"]


def test_a_shared_answer_is_stated_with_its_number_and_its_effects() -> None:
    (line,) = common(with_answers(a="no", c="no"))["What holds for all models"]
    effect = signed_number(float(side_cards(entries()[0])[0].estimate.sel(claim="symmetry")))
    assert line.endswith(f": no in all 2, which are causal (effects {effect} to {effect})")
    (line,) = common(with_answers(a="no", b="no", c="no"))["What holds for all models"]
    assert ": no in all 3 (effects" in line


@pytest.mark.parametrize(
    ("traits", "expected"),
    [
        ({"is_causal": (True, True, False, False)}, "the direction of attention: causal yes (2 models), bidirectional no (2 models)"),
        ({"is_post_norm": (True, True, False, False)}, "the place of norms: norms after yes (2 models), norms before no (2 models)"),
        ({"parameters": (9_000_000, 8_000_000, 1_000_000, 2_000_000)}, "size: no up to 2.0 million parameters (2 models), yes from"),
        ({"parameters": (9_000_000, 1_000_000, 8_000_000, 2_000_000)}, "Neither the direction of attention, the place of norms nor size"),
    ],
)  # fmt: skip
def test_a_disagreement_names_what_separates_the_answers(traits: dict[str, Any], expected: str) -> None:
    names = "pqrs"
    traits_by_name = {
        name: traits_of(name, **{trait: values[index] for trait, values in traits.items()})
        for index, name in enumerate(names)
    }
    blocks = common(with_answers(p="yes", q="yes", r="no", s="no"), **traits_by_name)
    line = next(line for line in blocks["Where models disagree or stay unclear"] if "symmetric" in line)
    assert expected in line
    assert ": no 2 (effects" in line or ": yes 2 (effects" in line
    if "is_causal" in traits:
        assert ": yes in all 2 (effects" in blocks["What holds for all causal models"][0]
        assert ": no in all 2 (effects" in blocks["What holds for all bidirectional models"][0]


def test_two_properties_that_go_together_are_both_named() -> None:
    traits_by_name = {name: traits_of(name, is_causal=name in "pq", is_post_norm=name in "rs") for name in "pqrs"}
    blocks = common(with_answers(p="yes", q="yes", r="no", s="no"), **traits_by_name)
    line = next(line for line in blocks["Where models disagree or stay unclear"] if "symmetric" in line)
    assert "causal yes" in line
    assert "norms after no" in line
    assert line.endswith("These models do not separate the properties")


def test_one_model_on_a_side_explains_nothing() -> None:
    traits_by_name = {name: traits_of(name, is_causal=name != "r") for name in "pqr"}
    blocks = common(with_answers(p="yes", q="yes", r="no"), **traits_by_name)
    line = next(line for line in blocks["Where models disagree or stay unclear"] if "symmetric" in line)
    assert "Too few models have each clear answer" in line


def test_an_unclear_answer_has_its_reason() -> None:
    card = side_cards(entries()[0])[0].sel(claim=["symmetry"])
    far = {"estimate": 1.0, "low": 0.9, "high": 1.1, "answer": "unclear"}
    wide = {"estimate": 0.0, "low": -1.0, "high": 1.0, "answer": "unclear"}
    cards = [
        card.assign({name: ("claim", [value]) for name, value in values.items()}).assign_attrs(model=name)
        for name, values in (("p", far), ("q", wide))
    ]
    (line,) = common(cards, p=traits_of("p"), q=traits_of("q"))["Where models disagree or stay unclear"]
    assert "Random models reach as far in p. The interval contains the smallest effect in q" in line


def test_size_is_a_rank_correlation_over_models() -> None:
    """Six models whose effect grows with their size, and a second cloud of the last one. SciPy is the twin."""
    card, names = side_cards(entries()[0])[0].sel(claim=["symmetry"]), "pqrstuv"
    effects = [0.1, 0.2, 0.3, 0.4, 0.6, 0.4, 0.9]
    cards = [
        card.assign(estimate=("claim", [effect]), answer=("claim", ["yes"])).assign_attrs(model=name)
        for name, effect in zip(names, effects, strict=True)
    ]
    traits_by_name = {
        name: traits_of(min(name, "u"), parameters=10 ** "pqrstu".index(min(name, "u"))) for name in names
    }
    (trend,) = size_trends(rs.atlas(cards), traits_by_name)
    expected = spearmanr(range(6), [0.1, 0.2, 0.3, 0.4, 0.6, 0.65])
    assert (trend.n_models, trend.rho) == (6, pytest.approx(expected.statistic))
    assert size_trends(rs.atlas(cards[:5]), traits_by_name) == []
    (line,) = common(cards, **traits_by_name)["What goes with size"]
    assert line.endswith("have rank correlation +1.00 over 6 models (adjusted p 0.000)")


def test_the_largest_correlation_with_size_is_named_if_none_is_clear() -> None:
    weak, strong = (SizeTrend(all_claims()[0], rho, 6, 1.0) for rho in (-0.03, -0.6))
    (line,) = size_lines([weak, strong])
    assert "the largest correlation -0.60 over 6 models, adjusted p 1.00" in line


# Published findings


def test_every_published_finding_has_a_source_and_is_compared() -> None:
    comparisons = compare_with_published(entries())
    assert list(comparisons) == list(published_findings())
    for finding, rows in comparisons.items():
        assert finding.source.startswith("https://")
        assert list(rows) == ["a", "b", "c"]
    for table, rows in zip(finding_tables(comparisons), comparisons.values(), strict=True):
        answers = [str(row[1].text) for row in table.rows]
        n_agree, n_compared = answers.count("agrees"), answers.count("agrees") + answers.count("disagrees")
        assert str(table.note).startswith(f"{n_agree} of {n_compared} agree. ")
        assert len(answers) == len(rows)


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
        ("spikes_and_sinks", planted(massive=1.0), None),
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
    ("post_norm", "massive", "received", "expected"),
    [
        (False, 1.0, 0.9, True),
        (False, 0.0, 0.9, None),
        (False, 1.0, 0.2, None),
        (True, 0.0, 0.9, True),
        (True, 1.0, 0.9, False),
        (True, 1.0, 0.2, True),
    ],
)
def test_spikes_and_sinks_go_with_norms_before(
    post_norm: bool, massive: float, received: float, expected: bool | None
) -> None:
    heads = pd.DataFrame({"head_statistics.max_received_share": [received, received, 0.05, 0.05]})
    model = replace(planted(post_norm, massive), heads=heads)
    assert agrees("spikes_and_sinks", model) is expected
    short = replace(model, facts={**model.facts, "n_tokens": 4})  # uniform attention gives the first of four tokens .52
    assert agrees("spikes_and_sinks", short) is (True if post_norm else None)


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
