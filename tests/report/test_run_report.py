"""How a command runs: it asks, tells as it knows, writes what was asked for, and says what it could not."""

import json
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.report import run_report
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_plans import REPORTS, report_of_analysis
from rheoscope.report.run_report import OutputFiles, all_datasets
from tests.report.cases import TEXT, Parts, model, small, told

SHORT = "The keys to the cabinet are"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


@pytest.mark.parametrize(
    "named",
    [
        {"json": Path("a"), "csv": Path("a")},
        {"json": Path("b"), "csv": Path("a"), "html": Path("./a")},
        {"json": Path("below/../a"), "html": Path("a")},
    ],
)
def test_equal_paths_are_refused(named: dict[str, Path]) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"^two outputs have the name a; choose a different name for each"):
        OutputFiles(**named)


def test_the_command_covers_tells_a_row_a_layer_and_writes_what_was_asked(capsys: pytest.CaptureFixture) -> None:
    control = rs.load(untrained=True).trace(TEXT)
    files = OutputFiles(Path("c.json"), Path("tables"), Path("c.html"))
    run_report.run_report(REPORTS["covers"], model(), TEXT, {"draws": 4, "control": control}, files, explain=True)
    said = capsys.readouterr().out
    for layer in range(6):
        assert f"\nL{layer} " in said
    for word in (
        "similar",
        "opposite",
        "24 heads",
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
        assert word in said.replace("\n", " ")
    assert "not computed" not in said
    numbers = read("c.json")
    asked = {one.name for one in (*REPORTS["covers"].requests({}), *REPORTS["covers"].file_requests({}))}
    assert {key.split()[0] for key in numbers} == {*asked, "findings", "written_by"}
    assert "agreement_untrained" in numbers["agreement"]["data_vars"]
    assert Path("tables/agreement.layer_head.csv").exists()
    page = Parts(Path("c.html").read_text())
    assert "Skipped" not in page.texts["h2"]
    assert page.count("svg") > 40


def test_what_no_file_asks_for_is_not_computed(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    inner = run_report.run_analyses

    def listening(subject: Subject, asks: Any, *rest: Any) -> Any:
        asked.extend(one.name for one in asks)
        return inner(subject, asks, *rest)

    monkeypatch.setattr(run_report, "run_analyses", listening)
    run_report.run_report(REPORTS["covers"], small(), TEXT, {"draws": 2}, OutputFiles())
    assert asked == [one.name for one in REPORTS["covers"].requests({})]
    said = capsys.readouterr().out
    assert "Does attention follow similarity" in said
    assert "untrained" not in said
    assert "initial weights" not in said
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("job", "text", "why"),
    [
        (REPORTS["covers"], "The keys", "agreement needs a query with at least 8 other keys"),
        (REPORTS["surgery"], "", "the text has no tokens"),
        (report_of_analysis("clusters"), "a", "this analysis needs at least 3 tokens"),
    ],
)
def test_a_job_without_its_answer_stops_there_and_says_why(
    job: Any, text: str, why: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(rs.RheoscopeError, match=why):
        run_report.run_report(job, model(), text, {}, OutputFiles(json=Path("never.json")))
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
    numbers = read("s.json")["surgery"]
    assert numbers["attrs"]["M"] == "symmetric"
    assert numbers["attrs"]["F"] == "rank 8"
    assert numbers["data_vars"]["cost_low"]["data"][0] is None
    page = Parts(Path("s.html").read_text())
    assert page.count("svg") == 2
    assert page.texts["h1"][0].startswith("Surgery: The keys")
    assert f"{numbers['data_vars']['cost']['data'][0]:+.4f}" in page.texts["span"]


def test_reverse_names_the_heads_and_tokens_that_are_pulled_at(capsys: pytest.CaptureFixture) -> None:
    found = rs.reversed_attention(model(), model().trace(SHORT), " on")
    layer, head = divmod(int(found.norm.values.argmax()), 4)
    files = OutputFiles(json=Path("r.json"), html=Path("r.html"))
    run_report.run_report(REPORTS["reverse"], model(), SHORT, {"target": " on", "token": -1}, files)
    out = capsys.readouterr().out
    assert f"L{layer}.H{head}" in out
    assert "−log p(·on) after ·are" in out
    numbers = read("r.json")
    assert {"reversed_attention", "attention_patching", "head_types"} <= set(numbers)
    assert numbers["reversed_attention"]["data_vars"]["loss"]["data"] == pytest.approx(float(found.loss))
    page = Parts(Path("r.html").read_text())
    assert f"L{layer}.H{head}" in page.texts["span"]
    assert "How the loss wants scores to change" in page.texts["h2"]


def test_two_texts_are_told_below_each_other_and_written_beside(capsys: pytest.CaptureFixture) -> None:
    files = OutputFiles(Path("both.json"), Path("tables"), Path("both.html"))
    run_report.compare_texts(REPORTS["flow"], small(), (SHORT, "The key\x1b[31m"), {}, files, fast=True)
    said = capsys.readouterr().out
    assert said.index("the difference") < said.index(f"Text 1: {SHORT}") < said.index("Text 2: The key�[31m")
    assert said.index("Text 2: ") < said.index("agreement was skipped", said.index("Text 2: "))
    assert "\x1b" not in said
    numbers = read("both.json")
    assert numbers["readout"]["attrs"]["text"] == SHORT
    assert numbers["compared"]["readout"]["attrs"]["text"] == "The key\x1b[31m"
    one, other = (Path("tables", *where, "readout.point.csv").read_text() for where in ((), ("compared",)))
    assert one != other
    assert "Text 2" in Parts(Path("both.html").read_text()).texts["h2"]


def test_in_a_hurry_nulls_are_left_out_aloud(capsys: pytest.CaptureFixture) -> None:
    run_report.run_report(REPORTS["flow"], model(), SHORT, {}, OutputFiles(json=Path("fast.json")), fast=True)
    said, error = capsys.readouterr()
    assert "nulls are left out (--fast)" in said
    assert said.count("Nothing was tested: nulls are left out (--fast).") == 1
    assert error == ""
    numbers = read("fast.json")
    assert "findings" not in numbers
    assert numbers["transport"]["attrs"]["draws"] == 0


def test_a_report_that_nobody_named_takes_a_free_name(capsys: pytest.CaptureFixture) -> None:
    Path("report.html").write_text("mine")
    run_report.run_report(report_of_analysis("massive_tokens"), small(), SHORT, {}, OutputFiles(default_page=True))
    assert "wrote report-2.html" in capsys.readouterr().out
    assert Path("report.html").read_text() == "mine"


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("report.html").write_text("mine")
    with pytest.raises(rs.RheoscopeError, match=r"report.html is a file; choose another directory"):
        OutputFiles(html=Path("report.html/below.html"))
    monkeypatch.setattr(run_report, "DEFAULT_REPORT_PATH", Path("report.html/below.html"))
    with pytest.raises(
        rs.RheoscopeError,
        match=r"is a file; .*type --no-html, or --html with a path in another directory",
    ):
        OutputFiles(default_page=True)


def test_findings_stand_beside_the_numbers() -> None:
    numbers = all_datasets(told())
    assert set(numbers) - set(told().datasets) == {"findings", "verdicts"}
    assert numbers["findings"].attrs["tested"] > 5
    assert numbers["verdicts"].sizes["question"] == 7
    alone = run_analyses(Subject(model()), REPORTS["operators"].requests({}))
    assert list(all_datasets(alone)) == ["operators"]
