"""The groups of commands: the default command, mistyped commands, and `--lang` anywhere on the line."""

import shlex
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from typer.core import TyperGroup

from rheoscope.commands.help_text import lay_out_help
from rheoscope.commands.usage import UsageProblem
from rheoscope.messages.closest_name import closest_name
from rheoscope.messages.message import Message

DEFAULT_COMMAND = "flow"
LANGUAGE_OPTION = "--lang"


class CommandGroup(TyperGroup):
    """A group in which no argument prints the help, and a mistyped command is an error of one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in self.commands.values():
            command.help = command.help and lay_out_help(command.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise unknown_command(ctx.command_path, args, self.commands)
        return super().resolve_command(ctx, args)


class RootGroup(CommandGroup):
    """The group `rheoscope`. A text without a command runs the default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        language, rest = split_language(args)
        with suppress(UsageProblem) if ctx.resilient_parsing else nullcontext():  # resilient: for shell completion
            options = {
                name: not getattr(option, "is_flag", False)
                for option in self.commands[DEFAULT_COMMAND].params
                if option.param_type_name == "option"
                for name in option.opts
            }
            rest = insert_default_command(rest, self.commands, options)
        return super().parse_args(ctx, [*language, *rest] if rest else [])


def unknown_command(path: str, arguments: list[str], names: Collection[str]) -> UsageProblem:
    """The error for a word that is no command of a group. It advises the closest command, or the help."""
    closest = closest_name(arguments[0], names)
    advice = f"{path} --help" if closest is None else f"{path} {shlex.join([closest, *arguments[1:]])}"
    return UsageProblem(Message("{name!r} is not a command of {path}", name=arguments[0], path=path), advice)


def split_language(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The option --lang with its value, and the other arguments. Everything after `--` is text.

    >>> split_language(["The keys", "--lang", "zh", "--explain"])
    (['--lang', 'zh'], ['The keys', '--explain'])
    """
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument == LANGUAGE_OPTION or argument.startswith(f"{LANGUAGE_OPTION}="):
            end = index + (2 if argument == LANGUAGE_OPTION else 1)
            return arguments[index:end], arguments[:index] + arguments[end:]
    return [], arguments


def insert_default_command(
    arguments: list[str], command_names: Collection[str], options: Mapping[str, bool] | None = None
) -> list[str]:
    """The arguments, with `flow` inserted if the first word is a text and not a command.

    `options` maps the options of `flow` to whether they take a value, which is not the first word. A single word that
    resembles a command raises `UsageProblem`. After `--` every word is text.

    >>> insert_default_command(["The keys to the cabinet are", "--explain"], ["flow", "train"])
    ['flow', 'The keys to the cabinet are', '--explain']
    >>> insert_default_command(["--file", "train.txt"], ["flow", "train"], {"--file": True})
    ['flow', '--file', 'train.txt']
    """
    options = options or {}
    index = _first_word(arguments, options)
    if index is None:
        is_of_default = any(argument.partition("=")[0] in options for argument in arguments)
        return [DEFAULT_COMMAND, *arguments] if is_of_default else arguments
    first_word = arguments[index]
    if first_word in command_names:
        return arguments
    command = (
        None if first_word in ("-", "--") or " " in first_word else closest_name(first_word, command_names, cutoff=0.75)
    )
    if command is None:
        return [DEFAULT_COMMAND, *arguments]
    corrected = shlex.join(["rheoscope", *arguments[:index], command, *arguments[index + 1 :]])
    as_text = shlex.join(["rheoscope", "--", first_word])
    advice = Message("{corrected}, or {as_text} to analyse it as a text", corrected=corrected, as_text=as_text)
    raise UsageProblem(Message("{word!r} is not a command", word=first_word), advice)


def _first_word(arguments: list[str], options: Mapping[str, bool]) -> int | None:
    """The index of the first argument that is neither an option nor the value of an option."""
    is_value = False
    for index, argument in enumerate(arguments):
        if not is_value and (argument in ("-", "--") or not argument.startswith("-")):
            return index
        is_value = not is_value and options.get(argument, False)
    return None
