"""Options with several values, and lists that are typed in parts."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from rheoscope.commands.variadic_options import VariadicCommand

app = typer.Typer()


@app.command(cls=VariadicCommand)
def print_arguments(
    recipe: str = "none",
    mechanisms: Annotated[str, typer.Option(metavar="A,B,…")] = "",
    look: Annotated[str, typer.Option("--look", "-l", metavar="0,100,…")] = "",
    data: Annotated[list[str] | None, typer.Option("--data")] = None,
    seeds: int = 1,
) -> None:
    print(recipe, mechanisms, look, data, seeds)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("", "none   None 1"),
        ("--mechanisms tied,metric --data a b --seeds 3", "none tied,metric  ['a', 'b'] 3"),
        ("--mechanisms tied --data a --mechanisms metric --data b", "none tied,metric  ['a', 'b'] 1"),
        ("-l 0 --mechanisms tied --look 5 --recipe x", "x tied 0,5 None 1"),
        ("--mechanisms=tied --data a --mechanisms metric", "none tied,metric  ['a'] 1"),
        ("--data a b --mechanisms tied", "none tied  ['a', 'b'] 1"),
        ("--seeds 2 --seeds 3", "none   None 3"),
    ],
)
def test_repeated_and_variadic_options_are_joined(arguments: str, output: str) -> None:
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 0, done.output
    assert done.output.strip() == output


def test_an_option_without_its_value_is_refused() -> None:
    done = CliRunner().invoke(app, ["--seeds", "2", "--mechanisms"])
    assert done.exit_code == 2
    assert "'--mechanisms' requires an argument" in done.output
