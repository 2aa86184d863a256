"""The command `rheoscope`: the first screen, the default command, mistyped commands, and the language."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import rheoscope as rs
from rheoscope.commands import exit_status
from rheoscope.commands.app import app, main
from rheoscope.commands.command_group import insert_default_command, split_language
from rheoscope.commands.usage import UsageProblem
from tests.commands.cases import run_rheoscope
from tests.processes import run_in_fork, unload_packages

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def import_and_run_main() -> None:
    """Import the package, as a process of a shell does, and run the command."""
    unload_packages()
    from rheoscope.commands.app import main as imported_main

    assert imported_main is not main
    imported_main()


def test_a_process_prints_what_the_tests_in_this_process_see(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["flow", "-m", str(models / "far"), "the keys to the cabinet", "--no-html", "--fast"]
    process, outcome = run_in_fork(import_and_run_main, *arguments), run_rheoscope(*arguments)
    assert process.returncode == outcome.status == 0, process.stderr
    assert (process.stdout, process.stderr) == (outcome.out, outcome.err)


def test_a_process_fails_as_the_tests_in_this_process_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    process, outcome = run_in_fork(main, "--file", "nowhere.txt"), run_rheoscope("--file", "nowhere.txt")
    assert process.returncode == outcome.status == 1
    assert (process.stdout, process.stderr) == (outcome.out, outcome.err)
    assert process.stderr.count("\n") == 1


def test_a_process_ends_after_its_exit_handlers_and_frees_no_import() -> None:
    code = (
        "import atexit, sys; from rheoscope.commands.app import main\n"
        "class Freed:\n    def __del__(self): print('freed')\n"
        "sys.freed, register = Freed(), atexit.register\n"
        "def register_and_print(*handler): register(*handler); register(print, 'exit handler')\n"
        "atexit.register = register_and_print; sys.argv = ['rheoscope', 'nonsense', '--nonsense']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "exit handler\n")


def test_a_stack_trace_ends_a_process_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(exit_status.os, "_exit", statuses.append)
    exit_status.end_process([])
    assert statuses == []
    exit_status.end_process([3])
    assert statuses == [3]


def test_version() -> None:
    assert run_rheoscope("--version").out == f"rheoscope {rs.__version__}\n"


def test_the_first_screen_fits_and_lists_every_command() -> None:
    outcome = run_rheoscope(width=80)
    assert outcome.status == 0
    assert outcome.out == run_rheoscope("--help", width=80).out
    assert 'rheoscope "The keys to the cabinet are"' in outcome.words
    assert len(outcome.out.splitlines()) <= 60
    for name, command in COMMANDS.items():
        line = next(line for line in outcome.out.splitlines() if line.startswith(f"│ {name} "))
        assert command.help.split("\n")[0] in line


@pytest.mark.parametrize("group", ["race", "corpus"])
def test_a_group_without_a_command_prints_its_help(group: str) -> None:
    outcome = run_rheoscope(group)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == run_rheoscope(group, "--help").out
    assert "report" in outcome.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text_and_an_example(name: str) -> None:
    text = run_rheoscope(name, "--help", width=200).words
    assert f"rheoscope {name}" in text
    for option in COMMANDS[name].params:
        if option.param_type_name == "option" and option.name != "help":
            assert option.help, f"{name} {option.name}"


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['rheoscope', '--help']\n"
        "import rheoscope.commands.app as c\n"
        "c.run_command_line()\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["The keys"], ["flow", "The keys"]),
        (["train me well"], ["flow", "train me well"]),
        (["-m", "gpt2", "The keys"], ["flow", "-m", "gpt2", "The keys"]),
        (["-m", "train", "The keys"], ["flow", "-m", "train", "The keys"]),
        (["--file", "corpus.txt"], ["flow", "--file", "corpus.txt"]),
        (["--file=corpus"], ["flow", "--file=corpus"]),
        (["--explain", "train"], ["--explain", "train"]),
        (["--explain"], ["flow", "--explain"]),
        (["-"], ["flow", "-"]),
        (["--", "attention"], ["flow", "--", "attention"]),
        (["--", "trian"], ["flow", "--", "trian"]),
        (["attention", "--explain"], ["attention", "--explain"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_a_text_without_a_command_runs_flow(arguments: list[str], expected: list[str]) -> None:
    options = {"-m": True, "--file": True, "--explain": False}
    assert insert_default_command(arguments, COMMANDS, options) == expected


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["trian"], "type rheoscope train, or rheoscope -- trian to analyse it as a text"),
        (["analyze", "transport", "The keys"], "type rheoscope analyse transport 'The keys', or rheoscope -- analyze"),
        (["operatros", "-m", "gpt2"], "type rheoscope operators -m gpt2, or rheoscope -- operatros"),
    ],
)
def test_a_word_that_resembles_a_command_is_questioned(arguments: list[str], advice: str) -> None:
    with pytest.raises(UsageProblem):
        insert_default_command(arguments, COMMANDS)
    outcome = run_rheoscope(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"rheoscope: '{arguments[0]}' is not a command; {advice}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["race", "rum"], "'rum' is not a command of rheoscope race; type rheoscope race run"),
        (["race", "tiny"], "'tiny' is not a command of rheoscope race; type rheoscope race --help"),
        (["corpus", "querry", "run"], "'querry' is not a command of rheoscope corpus; type rheoscope corpus query run"),
    ],
)
def test_a_mistyped_subcommand_is_one_line(arguments: list[str], message: str) -> None:
    outcome = run_rheoscope(*arguments)
    assert (outcome.status, outcome.err) == (2, f"rheoscope: {message}\n")


def test_public_names_that_are_mistyped_are_corrected() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'trajektory'; did you mean 'trajectory'\?$"):
        _ = rs.trajektory
    with pytest.raises(AttributeError, match=r"has no attribute 'zzz'; type dir\(rheoscope\) for all names$"):
        _ = rs.zzz
    with pytest.raises(AttributeError, match=r"has no attribute '_trajectory'; type dir\(rheoscope\) for all names$"):
        _ = rs._trajectory


# The language


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a b", "--lang", "zh", "--fast"], (["--lang", "zh"], ["a b", "--fast"])),
        (["--lang=en", "a b"], (["--lang=en"], ["a b"])),
        (["a b", "--", "--lang"], ([], ["a b", "--", "--lang"])),
        (["a b", "--lang"], (["--lang"], ["a b"])),
    ],
)
def test_the_language_may_be_typed_anywhere(arguments: list[str], expected: tuple[list[str], list[str]]) -> None:
    assert split_language(arguments) == expected


def test_errors_are_in_the_language_of_the_option_or_of_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = {"there is no file {file}": "没有文件 {file}", "{problem}; type {step}": "{problem};请输入 {step}"}
    monkeypatch.setattr("rheoscope.messages.catalogue.templates", lambda language: templates)
    chinese = "rheoscope: 没有文件 nowhere.txt;请输入 --file notes.txt\n"
    english = "rheoscope: there is no file nowhere.txt; type --file notes.txt\n"
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert run_rheoscope("--file", "nowhere.txt").err == chinese
    assert run_rheoscope("--file", "nowhere.txt", "--lang", "en").err == english
    monkeypatch.setenv("LC_ALL", "C")
    assert run_rheoscope("--file", "nowhere.txt").err == english
    assert run_rheoscope("--lang", "zh", "--file", "nowhere.txt").err == chinese
    assert run_rheoscope("analyse", "scores", "--file", "nowhere.txt", "--lang=zh").err == chinese


def test_an_unknown_language_is_bad_usage() -> None:
    outcome = run_rheoscope("The keys", "--lang", "fr")
    assert outcome.status == 2
    assert "'fr' is not one of 'en', 'zh'" in outcome.err
    assert outcome.err.count("\n") == 1


def test_garbage_of_a_long_command_is_freed() -> None:
    """Cycles with tensors are freed before a tenth of a million further objects exist, and not only at the end."""
    threshold = gc.get_threshold()
    try:
        assert run_rheoscope("--version").status == 0
        assert gc.get_threshold()[0] <= 100_000
    finally:
        gc.set_threshold(*threshold)
