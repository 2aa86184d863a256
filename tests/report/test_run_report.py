"""Running a report: analyses, terminal output, files and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.report import run_report
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from rheoscope.report.run_report import OutputFiles, all_datasets
from rheoscope.report.story import TEXT_LINES
from tests.report.cases import TEXT, Parts, flow_results, model, small

SHORT = "The keys to the cabinet are"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read_json(path: str) -> Any:
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize(
    "names",
    [
        {"json": Path("a"), "csv": Path("a")},
        {"json": Path("b"), "csv": Path("a"), "html": Path("./a")},
        {"json": Path("below/../a"), "html": Path("a")},
    ],
)
def test_equal_paths_are_refused(names: dict[str, Path]) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"^two outputs have the name a; type "):
        OutputFiles(**names)


def test_covers_prints_a_row_per_layer_and_writes_the_files(capsys: pytest.CaptureFixture) -> None:
    control = rs.load(small().network, tokenizer=small().tokenizer, untrained=True, seed=3).trace(TEXT)
    files = OutputFiles(Path("c.json"), Path("tables"), Path("c.html"))
    run_report.run_report(REPORTS["covers"], small(), TEXT, {"draws": 4, "control": control}, files, explain=True)
    output = capsys.readouterr().out
    for layer in range(3):
        assert f"\nL{layer} " in output
    for phrase in (
        "similar",
        "opposite",
        "12 heads",
        "separates (near in E",
        "merges (far in E",
        "given distance and norm",
        "null sd",
        "untrained",
        "at initial weights",
        "numbers were tested",
        "wrote c.json",
        "tables in tables",
        "wrote c.html",
    ):
        assert phrase in output.replace("\n", " ")
    assert "not computed" not in output
    numbers = read_json("c.json")
    requested = {item.name for item in (*REPORTS["covers"].requests({}), *REPORTS["covers"].file_requests({}))}
    assert {key.split()[0] for key in numbers} == {*requested, "findings", "written_by"}
    assert "agreement_untrained" in numbers["agreement"]["data_vars"]
    assert Path("tables/agreement.layer_head.csv").exists()
    page = Parts(Path("c.html").read_text())
    assert "Skipped" not in page.texts["h2"]
    assert page.count("svg") > 40


def test_file_requests_run_only_for_files(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []
    inner = run_report.run_analyses

    def record_requests(subject: Subject, asks: Any, *rest: Any, **named: Any) -> Any:
        requested.extend(item.name for item in asks)
        return inner(subject, asks, *rest, **named)

    monkeypatch.setattr(run_report, "run_analyses", record_requests)
    run_report.run_report(REPORTS["covers"], small(), TEXT, {"draws": 2}, OutputFiles())
    assert requested == [item.name for item in REPORTS["covers"].requests({})]
    output = capsys.readouterr().out
    assert "Does attention follow similarity" in output
    assert "untrained" not in output
    assert "initial weights" not in output
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("plan", "text", "reason"),
    [
        (REPORTS["covers"], "The keys", "agreement needs a query with at least 8 other keys"),
        (REPORTS["surgery"], "", "the text has no tokens"),
        (report_of_analysis("clusters"), "a", "this analysis needs at least 3 tokens"),
    ],
)
def test_a_report_without_its_required_result_raises_the_reason(
    plan: Any, text: str, reason: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(rs.RheoscopeError, match=reason):
        run_report.run_report(plan, model(), text, {}, OutputFiles(json=Path("never.json")))
    assert "\n\n" not in capsys.readouterr().out  # the model and the text, no table
    assert not Path("never.json").exists()


def test_surgery_prints_every_change_and_writes_every_number(capsys: pytest.CaptureFixture) -> None:
    files = OutputFiles(json=Path("s.json"), html=Path("s.html"))
    options = {"heads": [(2, 1), (3, 2)], "M": "symmetric", "F": "rank 8"}
    run_report.run_report(REPORTS["surgery"], model(), TEXT, options, files)
    out = capsys.readouterr().out
    for line in (
        "the replacement",
        "a random change of the same norm",
        "a random change with the same effect on this text",
        "heads ablated to their mean output",
        "L2.H1 L3.H2",
    ):
        assert line in out
    numbers = read_json("s.json")["surgery"]
    assert numbers["attrs"]["M"] == "symmetric"
    assert numbers["attrs"]["F"] == "rank 8"
    assert numbers["data_vars"]["cost_low"]["data"][0] is None
    page = Parts(Path("s.html").read_text())
    assert page.count("svg") == 2
    assert page.texts["h1"][0].startswith("Surgery: The keys")
    assert f"{numbers['data_vars']['cost']['data'][0]:+.4f}" in page.texts["span"]


def test_reverse_names_the_heads_with_the_largest_gradient(capsys: pytest.CaptureFixture) -> None:
    result = rs.reversed_attention(small(), small().trace(SHORT), " on")
    layer, head = divmod(int(result.norm.values.argmax()), 4)
    files = OutputFiles(json=Path("r.json"), html=Path("r.html"))
    run_report.run_report(REPORTS["reverse"], small(), SHORT, {"target": " on", "token": -1}, files)
    out = capsys.readouterr().out
    assert f"L{layer}.H{head}" in out
    assert "−log p(·on) after ·are" in out
    numbers = read_json("r.json")
    assert {"reversed_attention", "attention_patching", "head_types"} <= set(numbers)
    assert numbers["reversed_attention"]["data_vars"]["loss"]["data"] == pytest.approx(float(result.loss))
    page = Parts(Path("r.html").read_text())
    assert f"L{layer}.H{head}" in page.texts["span"]
    assert "Gradient of the loss by the scores" in page.texts["h2"]


def test_two_texts_are_printed_and_written(capsys: pytest.CaptureFixture) -> None:
    files = OutputFiles(Path("both.json"), Path("tables"), Path("both.html"))
    run_report.compare_texts(REPORTS["flow"], small(), (SHORT, "The key\x1b[31m"), {}, files, fast=True)
    output = capsys.readouterr().out
    assert output.index("the difference") < output.index(f"Text 1: {SHORT}") < output.index("Text 2: The key�[31m")
    assert output.index("Text 2: ") < output.index("agreement was skipped", output.index("Text 2: "))
    assert "\x1b" not in output
    numbers = read_json("both.json")
    assert numbers["readout"]["attrs"]["text"] == SHORT
    assert numbers["compared"]["readout"]["attrs"]["text"] == "The key\x1b[31m"
    item, second_table = (Path("tables", *folder, "readout.point.csv").read_text() for folder in ((), ("compared",)))
    assert item != second_table
    assert "Text 2" in Parts(Path("both.html").read_text()).texts["h2"]


def test_fast_leaves_out_nulls_with_a_note(capsys: pytest.CaptureFixture) -> None:
    files = OutputFiles(json=Path("fast.json"))
    run_report.run_report(REPORTS["flow"], small(), SHORT, {}, files, fast=True, full=True)
    output, error = capsys.readouterr()
    assert output.count("Nothing was tested: null distributions were not drawn (--fast).") == 1
    assert error == ""
    numbers = read_json("fast.json")
    assert "findings" not in numbers
    assert numbers["transport"]["attrs"]["draws"] == 0


def test_the_default_report_takes_a_free_name(capsys: pytest.CaptureFixture) -> None:
    Path("report.html").write_text("mine")
    run_report.run_report(report_of_analysis("massive_tokens"), small(), SHORT, {}, OutputFiles(default_page=True))
    assert "wrote report-2.html" in capsys.readouterr().out
    assert Path("report.html").read_text() == "mine"


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("report.html").write_text("mine")
    with pytest.raises(rs.RheoscopeError, match=r"report.html is a file; type "):
        OutputFiles(html=Path("report.html/below.html"))
    monkeypatch.setattr(run_report, "DEFAULT_REPORT_PATH", Path("report.html/below.html"))
    with pytest.raises(
        rs.RheoscopeError,
        match=r"is a file; .*type --no-html, or --html OTHER_DIR/report.html",
    ):
        OutputFiles(default_page=True)


def test_numbers_are_collected_only_for_files_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[object] = []
    monkeypatch.setattr(run_report, "all_datasets", lambda results: collected.append(results) or dict(results.datasets))
    plan = report_of_analysis("massive_tokens")
    run_report.run_report(plan, small(), SHORT, {}, OutputFiles(html=Path("a.html")))
    assert (Path("a.html").is_file(), collected) == (True, [])
    run_report.run_report(plan, small(), SHORT, {}, OutputFiles(json=Path("a.json")))
    assert len(collected) == 1


def test_files_contain_findings_and_the_story() -> None:
    numbers = all_datasets(flow_results())
    assert set(numbers) - set(flow_results().datasets) == {"findings", "story"}
    assert numbers["findings"].attrs["tested"] > 5
    assert numbers["story"].line.values.tolist() == [line.name for line in TEXT_LINES]
    weight_results = run_analyses(Subject(model()), REPORTS["operators"].requests({}))
    assert list(all_datasets(weight_results)) == ["operators"]
