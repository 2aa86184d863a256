"""Any analysis as a command: its settings are options, parsed by the types in its declaration."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.commands.analysis_command import build_command
from rheoscope.commands.setting_help import SHARED_SETTINGS
from rheoscope.report.setting_options import option_for_setting, typeable_options
from tests.commands.conftest import Run
from tests.report.cases import TEXT, model, small


def run_analysis(name: str, *arguments: str) -> int:
    with pytest.raises(typer.Exit) as end:
        build_command(name)(list(arguments))
    return end.value.exit_code


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_setting_is_an_option_or_cannot_be_typed(name: str) -> None:
    spec = analysis_by_name(name)
    options = typeable_options(spec)
    shared_settings = {"seed", "draws", "top", "heads", "layer", "head", "token", "target", "space"}
    assert shared_settings & set(spec.settings) <= set(options)
    for setting in set(spec.settings) - set(options):  # a Dataset, a Trace, tokens of several texts
        default = spec.settings[setting].default
        assert default in (None, ()) or not isinstance(default, int | float | str)


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_help_shows_the_question_and_the_settings(name: str, capsys: pytest.CaptureFixture) -> None:
    assert run_analysis(name, "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert analysis_by_name(name).question.split()[-1] in text
    for setting in typeable_options(analysis_by_name(name)):
        assert f"--{setting.replace('_', '-')}" in text
        if setting in SHARED_SETTINGS:
            assert SHARED_SETTINGS[setting].split()[0] in text


@pytest.mark.parametrize(
    ("name", "arguments", "settings"),
    [
        ("transport", ["--draws", "2", "--strides", "1,2", "--keep-massive"], {"draws": 2, "strides": [1, 2], "keep_massive": True}),
        ("distorted_pairs", ["--layer", "2", "--head", "1", "--top", "3"], {"layer": 2, "head": 1, "top": 3}),
        ("surgery", ["--heads", "1.1,L2", "--M", "symmetric"], {"heads": [(1, 1), (2, 0), (2, 1), (2, 2), (2, 3)], "M": "symmetric"}),
        ("readout", ["--target", "262", "--token", "-2"], {"target": 262, "token": -2}),
        ("reversed_attention", ["--target", " on"], {"target": " on"}),
        ("attention_patching", ["--target", "#262", "--etas", "-0.1,0"], {"target": 262, "etas": [-0.1, 0.0]}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("run")  # with a small default model
def test_the_command_computes_what_the_function_computes(
    name: str, arguments: list[str], settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run_analysis(name, TEXT, *arguments, "--json", str(tmp_path / "a.json")) == 0, capsys.readouterr()
    written = json.loads((tmp_path / "a.json").read_text())[name]
    subjects = {"trace": small().trace(TEXT), "model": small(), "text": TEXT}
    spec = analysis_by_name(name)
    expected = spec.ask(*(subjects[subject] for subject in spec.subjects), **settings)
    for field, value in expected.data_vars.items():
        if value.dtype.kind == "f":
            numbers = np.array(written["data_vars"][field]["data"], dtype=float)
            np.testing.assert_allclose(numbers, np.where(np.isfinite(value), value, np.nan), rtol=1e-5, atol=1e-7)


def test_lists_and_optional_settings_are_parsed() -> None:
    assert option_for_setting("etas", tuple[float, ...]).parse("etas", "0.1,-1", model()) == [0.1, -1.0]  # type: ignore[union-attr]
    assert option_for_setting("target", str | int | None).parse("target", None, model()) is None  # type: ignore[union-attr]
    assert option_for_setting("against", dict[str, float] | None) is None


def test_a_mistyped_analysis_is_refused_with_the_closest_name(run: Run) -> None:
    with pytest.raises(rs.RheoscopeError, match=r"there is no analysis 'transprot'; type rs\.transport"):
        build_command("transprot")
    outcome = run("analyse", "trajektory", TEXT)
    assert (outcome.status, outcome.err) == (
        1,
        "rheoscope: there is no analysis 'trajektory'; type rheoscope analyse trajectory\n",
    )
    assert run("analyse", "zzz").err == "rheoscope: there is no analysis 'zzz'; type rheoscope analyses\n"


def test_labels_of_words_are_read_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "class.tsv").write_text("the\tarticle\non\tpreposition\nin\tpreposition\nto\tpreposition\n")
    options = ("--labels", str(tmp_path / "class.tsv"), "--draws", "3", "--json", str(tmp_path / "a.json"))
    assert run_analysis("purity", TEXT, *options) == 0, capsys.readouterr()
    written = json.loads((tmp_path / "a.json").read_text())["purity"]
    assert written["coords"]["by"]["data"] == ["stem", "frequency", "class"]
