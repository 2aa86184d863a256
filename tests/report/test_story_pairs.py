"""The story of an encoder-decoder: what the decoder reads from the source, and how both clouds move."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_page import report_page
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.run_report import OutputFiles, run_report
from rheoscope.report.story import STORY_LINES, line_blocks, story_dataset
from rheoscope.space.results import Results
from tests.report.cases import flow_results
from tests.running.test_pair_sides import SOURCE, TARGET, pair

PAIR_LINES = {line.name for line in STORY_LINES if line.reads_source}


@cache
def target_results(name: str) -> Results:
    model = rs.target_model(pair(name), SOURCE)
    return run_analyses(Subject(model, TARGET, model.trace(TARGET)), REPORTS["flow"].requests({}))


def sentence(results: Results, line: str) -> str:
    return str(story_dataset(results).sentence.sel(line=line).item())


@pytest.mark.parametrize("name", ["t5", "translator"])
def test_the_story_names_the_head_and_the_source_token_that_it_reads(name: str) -> None:
    results = target_results(name)
    lens = results.datasets["readout"]
    best = lens.isel(cross_head=int(np.argmax(lens.source_path_share.values)))
    key = int(best.source_weight.values.argmax())
    text = sentence(results, "from_source")
    assert text.startswith(f"{best.cross_head.item()} reads “{SOURCE[key]}” at {key} (")
    assert f"{100 * float(lens.cross_path_share):.0f} % of the path of “{TARGET[-1]}”" in text
    assert text.endswith(f"equal weights would be 1/{len(SOURCE)}")


def test_the_story_has_the_path_of_both_clouds() -> None:
    results = target_results("t5")
    source = rs.trajectory(rs.source_model(pair("t5")).trace(SOURCE))
    straightness = f"{float(source.straightness.mean()):.2f}".lstrip("0")
    assert f"straightness {straightness} (" in sentence(results, "source_path")
    assert sentence(results, "source_path") != sentence(results, "movement")


def test_every_analysis_of_a_pair_has_a_result_or_a_reason() -> None:
    model = rs.target_model(pair("t5"), SOURCE)
    results = run_analyses(Subject(model, TARGET, model.trace(TARGET)), REPORTS["flow"].all_requests({}))
    assert results.failed_keys == ()
    assert all("\n" not in str(reason) for reason in results.reasons.values())
    html = report_page(REPORTS["flow"], results).to_html()
    assert "The source" in html
    assert "reads from the source" in html


def test_a_model_of_one_text_has_no_line_about_a_source() -> None:
    assert {"from_source", "source_path"} == PAIR_LINES
    assert not PAIR_LINES & set(story_dataset(flow_results()).line.values)
    assert set(story_dataset(target_results("t5")).line.values) >= PAIR_LINES
    for line in STORY_LINES:
        if line.name in PAIR_LINES:
            assert line_blocks(line)(flow_results()) == []


def test_lines_of_a_pair_offer_no_command_that_reads_no_target() -> None:
    entries = [
        entry for line in STORY_LINES for block in line_blocks(line)(target_results("t5")) for entry in block.lines
    ]
    assert len(entries) > len(PAIR_LINES)
    assert {entry.deeper for entry in entries} == {""}


def test_the_terminal_and_the_file_have_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = rs.target_model(pair("translator"), SOURCE)
    run_report(REPORTS["flow"], model, TARGET, {"space": "raw"}, OutputFiles(json=tmp_path / "pair.json"), fast=True)
    printed = capsys.readouterr().out
    assert f"source of {len(SOURCE)} tokens: 5 6 7" in printed
    assert "From source" in printed
    assert "Source path" in printed
    story = json.loads((tmp_path / "pair.json").read_text())["story"]
    assert set(json.dumps(story).replace('"', " ").replace(",", " ").split()) >= PAIR_LINES
