"""Every command that a message prints can be typed: the command line reads it, with a value for each placeholder."""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer

import rheoscope
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands.analysis_command import analysis_app
from rheoscope.commands.app import app
from rheoscope.commands.usage import UsageError
from tests.source_files import nodes

PACKAGE = Path(rheoscope.__file__).parent
PAGE_TEXTS = PACKAGE.parents[1] / "frontend" / "src" / "messages" / "en.ts"
ROOT = typer.main.get_command(app)
COMMAND = re.compile(
    r"""(?<![\w.'/\[-])rheoscope (?:"[^"]*"|'[^']*'|[^"'\s;,`()])(?:"[^"]*"|'[^']*'|[^"'`;(),]|,(?! ))*"""
)
"""A command: it ends before the next clause, and commas are part of it unless a space follows."""
OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")


def text_of(node: ast.AST) -> str:
    """The text of a string constant or an f-string, whose expressions become placeholders in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) if isinstance(value, ast.Constant) else "{x}" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def called_name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def shell_advice(file: Path) -> Iterator[str]:
    """What `Advice` and `Command` of a file say to type."""
    for node in nodes(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Call) and called_name(node) in ("Advice", "Command"):
            by_keyword = [argument.value for argument in node.keywords if argument.arg == "shell"]
            for argument in [*node.args[called_name(node) == "Advice" :], *by_keyword]:
                message = argument.args[0] if isinstance(argument, ast.Call) and argument.args else argument
                yield text_of(message)


def templates(file: Path) -> Iterator[str]:
    """The templates of a file that say what to type. Others name a command in a sentence, such as `the page of rheoscope studio`."""
    for node in nodes(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.Call) and called_name(node) == "Message" and node.args:
            yield from [text for text in [text_of(node.args[0])] if re.search(r"\btype ", text, re.IGNORECASE)]


def texts_of_commands(file: Path) -> Iterator[str]:
    """Strings that begin with a command and are not part of a message: the story and the reports print them as they are."""
    all_nodes = nodes(file.read_text(encoding="utf-8"))
    messages = {
        id(part)
        for node in all_nodes
        if isinstance(node, ast.Call) and called_name(node) in ("Message", "Field", "Option", "Argument")
        for part in ast.walk(node)
    }
    parts = {id(part) for node in all_nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    documentation = {id(node.value) for node in all_nodes if isinstance(node, ast.Expr)}
    for node in all_nodes:
        is_command = id(node) not in messages | parts | documentation and text_of(node).startswith("rheoscope ")
        if is_command and not re.match(r"rheoscope \{", text_of(node)):
            yield text_of(node)


FILES = sorted(PACKAGE.rglob("*.py"))
ADVICE = sorted({text for file in FILES for text in shell_advice(file) if text})
STARTING_WITH_A_COMMAND = sorted({text for file in FILES for text in texts_of_commands(file)})
TEMPLATES = sorted({text for file in FILES for text in templates(file)})


def commands_in(texts: Iterable[str]) -> list[str]:
    matches = chain.from_iterable(COMMAND.findall(text) for text in texts)
    ends = (re.split(r"(?:\.|:) (?=\S)| or (?=-)", command)[0].strip() for command in matches)
    return sorted({re.sub(r"(?<=\w)[.:]$", "", command) for command in ends})


def parse(line: str) -> None:
    """Read a command line as the program does, without running it. Placeholders such as FILE are read like any other word."""
    words = shlex.split(re.sub(r"\{[^{}]*\}", "1", line.replace("…", "")))[1:]
    command, context = ROOT, ROOT.make_context("rheoscope", words)
    while hasattr(command, "resolve_command"):
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(words), parent=context)
    if context.info_name == "analyse" and context.params["name"] in ANALYSIS_MODULES:
        typer.main.get_command(analysis_app(context.params["name"])).make_context("analyse", list(context.args))


def fault_of(line: str) -> Exception | None:
    """Why a line cannot be typed. A value may stand for one of the reader, such as a file that does not exist."""
    try:
        parse(line)
    except typer.Exit:
        return None  # such as --list
    except UsageError as error:
        is_about_a_value = isinstance(error, typer.BadParameter) and type(error).__name__ != "MissingParameter"
        return None if is_about_a_value else error
    return None


PRINTED = commands_in([*ADVICE, *TEMPLATES, *STARTING_WITH_A_COMMAND, PAGE_TEXTS.read_text(encoding="utf-8")])


@pytest.mark.parametrize("line", PRINTED)
def test_a_printed_command_can_be_typed(line: str) -> None:
    assert fault_of(line) is None


def options_of(command: Any) -> Iterator[str]:
    """The options of a command and of its subcommands."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for subcommand in getattr(command, "commands", {}).values():
        yield from options_of(subcommand)


def test_a_printed_option_exists() -> None:
    analyses = (typer.main.get_command(analysis_app(name)) for name in ANALYSIS_MODULES)
    existing = {"--help", *chain.from_iterable(map(options_of, [ROOT, *analyses]))}
    foreign = re.compile(r"pip install|ffmpeg|iconv|python -c")
    printed = {option: text for text in ADVICE if not foreign.search(text) for option in OPTION.findall(text)}
    assert {option: text for option, text in printed.items() if option not in existing} == {}


def test_the_audit_finds_commands_and_refuses_wrong_ones() -> None:
    assert commands_in(["a; type rheoscope card gpt2, or rheoscope atlas"]) == [
        "rheoscope atlas",
        "rheoscope card gpt2",
    ]
    assert len(commands_in(ADVICE)) > 15
    for wrong in ("corpus nothing", "card --nothing", "train tiny --out", "analyse energy --nothing", "corpus query"):
        assert fault_of(f"rheoscope {wrong}") is not None
