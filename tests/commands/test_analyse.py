"""Any analysis as a command: its settings are options, typed and read as its signature says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from rheoscope.commands.analyse import build_command
from rheoscope.report.setting_options import option_for_setting, typeable_options
from tests.report.cases import TEXT, model


def typed(name: str, *words: str) -> Any:
    with pytest.raises(SystemExit) as end:
        build_command(name)(list(words))
    return end.value.code


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_setting_is_an_option_or_cannot_be_typed(name: str) -> None:
    one = analysis_by_name(name)
    options, bare = typeable_options(one), set(one.settings) - set(typeable_options(one))
    assert {"seed", "draws", "top", "heads", "layer", "head", "token", "target", "space"} & set(one.settings) <= set(
        options
    )
    for setting in bare:  # a Dataset, a Trace, tokens for several texts, a value of this package
        assert one.settings[setting].default in (None, ()) or not isinstance(
            one.settings[setting].default, int | float | str
        )


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_analysis_shows_its_question_and_its_settings(name: str, capsys: pytest.CaptureFixture) -> None:
    assert typed(name, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert analysis_by_name(name).question.split()[-1] in said
    for setting in typeable_options(analysis_by_name(name)):
        assert f"--{setting.replace('_', '-')}" in said


@pytest.mark.parametrize(
    ("name", "words", "settings"),
    [
        ("transport", ["--draws", "2", "--strides", "1,2", "--keep-massive"], {"draws": 2, "strides": [1, 2], "keep_massive": True}),
        ("distorted_pairs", ["--layer", "2", "--head", "1", "--top", "3"], {"layer": 2, "head": 1, "top": 3}),
        ("surgery", ["--heads", "2.1,L3", "--M", "symmetric"], {"heads": [(2, 1), (3, 0), (3, 1), (3, 2), (3, 3)], "M": "symmetric"}),
        ("readout", ["--target", "262", "--token", "-2"], {"target": 262, "token": -2}),
        ("reversed_attention", ["--target", " on"], {"target": " on"}),
        ("attention_patching", ["--target", "#262", "--etas", "-0.1,0"], {"target": 262, "etas": [-0.1, 0.0]}),
    ],
)  # fmt: skip
def test_what_is_typed_is_what_is_asked(
    name: str, words: list[str], settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert typed(name, TEXT, *words, "--json", str(tmp_path / "a.json")) == 0, capsys.readouterr()
    found = json.loads((tmp_path / "a.json").read_text())[name]
    given = {"trace": model().trace(TEXT), "model": model(), "text": TEXT}
    wanted = analysis_by_name(name).ask(*(given[subject] for subject in analysis_by_name(name).subjects), **settings)
    for field, value in wanted.data_vars.items():
        if value.dtype.kind == "f":
            read = np.array(found["data_vars"][field]["data"], dtype=float)
            np.testing.assert_allclose(read, np.where(np.isfinite(value), value, np.nan), rtol=1e-5, atol=1e-7)


def test_types_that_can_be_typed() -> None:
    assert option_for_setting("etas", tuple[float, ...]).parse("etas", "0.1,-1", model()) == [0.1, -1.0]  # type: ignore[union-attr]
    assert option_for_setting("target", str | int | None).parse("target", None, model()) is None  # type: ignore[union-attr]
    assert option_for_setting("comparisons", dict[str, float] | None) is None


def test_a_name_that_is_not_there_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(rs.RheoscopeError, match="there is no analysis 'transprot'; expected one of frames"):
        build_command("transprot")


def test_names_of_words_are_typed_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "class.tsv").write_text("the\tarticle\non\tpreposition\nin\tpreposition\nto\tpreposition\n")
    asked = ("--labels", str(tmp_path / "class.tsv"), "--draws", "3", "--json", str(tmp_path / "a.json"))
    assert typed("purity", TEXT, *asked) == 0, capsys.readouterr()
    found = json.loads((tmp_path / "a.json").read_text())["purity"]
    assert found["coords"]["by"]["data"] == ["stem", "frequency", "class"]
