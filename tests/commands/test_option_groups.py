"""Groups of options: every field is an option, and the command gets the group as one value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rheoscope.commands.app import app
from rheoscope.commands.help_text import lay_out_help
from rheoscope.commands.option_groups import ModelOptions, NamedModel, OutputOptions, with_option_groups


@dataclass(frozen=True)
class Colours:
    dark: bool = False
    shade: Annotated[int, typer.Option(min=0)] = 3


def make_app() -> tuple[typer.Typer, list[tuple[object, ...]]]:
    calls: list[tuple[object, ...]] = []
    group = typer.Typer()

    @group.command()
    @with_option_groups
    def paint(name: str, size: int = 1, *, colours: Colours, output: OutputOptions) -> None:
        calls.append((name, size, colours, output))

    return group, calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["wall"], ("wall", 1, Colours(), OutputOptions())),
        (["wall", "--dark", "--size", "2"], ("wall", 2, Colours(dark=True), OutputOptions())),
        (
            ["--shade", "0", "--json", "a.json", "wall"],
            ("wall", 1, Colours(shade=0), OutputOptions(json=Path("a.json"))),
        ),
    ],
)
def test_every_field_of_a_group_is_an_option(arguments: list[str], expected: tuple[object, ...]) -> None:
    group, calls = make_app()
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 0, result.output
    assert calls == [expected]


def test_the_bounds_of_a_field_hold() -> None:
    group, calls = make_app()
    assert CliRunner().invoke(group, ["wall", "--shade", "-1"]).exit_code == 2
    assert not calls


def test_a_field_that_is_overridden_keeps_its_place() -> None:
    assert [*NamedModel.__dataclass_fields__] == [*ModelOptions.__dataclass_fields__]
    assert NamedModel.__dataclass_fields__["model"].type != ModelOptions.__dataclass_fields__["model"].type


def test_examples_have_a_line_each_and_paragraphs_have_no_line_breaks() -> None:
    command = typer.main.get_command(app).commands["race"].commands["run"]  # type: ignore[attr-defined]
    paragraphs = command.help.split("\n\n")
    assert all("\n" not in paragraph for paragraph in paragraphs[:-1])
    assert all(line.startswith("rheoscope ") for line in paragraphs[-1].splitlines()[1:])
    assert lay_out_help(command.help.partition("\n\n")[0]) == paragraphs[0]
