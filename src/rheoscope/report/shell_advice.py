"""Advice for the one who typed a command: what an error says in Python, as it is typed in a shell."""

import re

from rheoscope.catalogue import ANALYSIS_MODULES

SETTING_PATTERN = re.compile(
    r"\b([A-Za-z]\w*)=((?:'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\)|[^\s,;()]+|…)+)"
)
PYTHON_PATTERN = re.compile(r"\b(rs|model|trace|torch)\.\w|\w\(|=rs\.")
OPTION_COMMA_PATTERN = re.compile(r"(--[\w-]+(?: (?:'[^']*'|\S+?))?), (?=--)")


def as_cli_advice(message: str, command: str = "") -> str:
    """The same message with its advice as it is typed in a shell: settings as options, an analysis as a command.

    `command` stands before the options, where they are not those of the command that was typed.

    >>> as_cli_advice("temperature is 0 or more, got -1.0; type temperature=0.8")
    'temperature is 0 or more, got -1.0; type --temperature 0.8'
    >>> as_cli_advice("there is no head; type heads=[(5, 1)], keep_massive=True")
    'there is no head; type --heads 5.1 --keep-massive'
    >>> as_cli_advice("it moves; type rs.trajectory(trace) for how far")
    'it moves; type rheoscope analyse trajectory for how far'
    >>> as_cli_advice("it has no loss; type rs.trace_under(…) for its points")
    'it has no loss; in Python type rs.trace_under(…) for its points'
    """
    problem, separator, advice = message.partition("; type ")
    if not separator or advice.startswith("--") or "in Python" in advice:
        return message
    advice = re.sub(r"heads=model\.view\.head_indices\((\d+)\)", r"--heads L\1", advice)
    advice = re.sub(r"control=rs\.load\(…, untrained=True\)(\.trace\(text\))?", "--untrained", advice)
    advice = re.sub(r"(?<!=)\brs\.(\w+)\((?:trace|model|model\.view|…)\)", _command_of_match, advice)
    if PYTHON_PATTERN.search(advice):
        return f"{problem}; in Python type {advice}"
    options = OPTION_COMMA_PATTERN.sub(r"\1 ", SETTING_PATTERN.sub(_option_of_match, advice))
    return f"{problem}{separator}{command + ' ' if command and options.startswith('--') else ''}{options}"


def _command_of_match(match: re.Match[str]) -> str:
    return f"rheoscope analyse {match[1]}" if match[1] in ANALYSIS_MODULES else match[0]


def _option_of_match(match: re.Match[str]) -> str:
    """--name value: lists between commas, heads as layer.head, a switch without a value."""
    name, value = f"--{match[1].replace('_', '-')}", match[2]
    if value == "True":
        return name
    if match[1] == "heads":
        value = ",".join(f"{layer}.{head}" for layer, head in re.findall(r"\((\d+), (\d+)\)", value)) or value
    elif value[0] in "([" and value[-1] in ")]":
        value = ",".join(part.strip() for part in value[1:-1].split(",") if part.strip())
    elif value[0] == value[-1] == "'" and " " not in value:
        value = value[1:-1]
    return f"{name} {value}"
