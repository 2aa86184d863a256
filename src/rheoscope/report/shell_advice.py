"""Advice for the one who typed a command: what an error says in Python, as it is typed in a shell."""

import re

from rheoscope.catalogue import TABLE

SETTING = re.compile(r"\b([A-Za-z]\w*)=((?:'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\)|[^\s,;()]+|…)+)")
PYTHON = re.compile(r"\b(rs|model|trace|torch)\.\w|\w\(|=rs\.")
BESIDE = re.compile(r"(--[\w-]+(?: (?:'[^']*'|\S+?))?), (?=--)")


def in_shell(message: str, command: str = "") -> str:
    """The same message with its advice as it is typed in a shell: settings as options, an analysis as a command.

    `command` stands before the options, where they are not those of the command that was typed.

    >>> in_shell("temperature is 0 or more, got -1.0; type temperature=0.8")
    'temperature is 0 or more, got -1.0; type --temperature 0.8'
    >>> in_shell("there is no head; type heads=[(5, 1)], keep_massive=True")
    'there is no head; type --heads 5.1 --keep-massive'
    >>> in_shell("it moves; type rs.trajectory(trace) for how far")
    'it moves; type rheoscope analyse trajectory for how far'
    >>> in_shell("it has no loss; type rs.trace_under(…) for its points")
    'it has no loss; in Python type rs.trace_under(…) for its points'
    """
    said, way, advice = message.partition("; type ")
    if not way or advice.startswith("--") or "in Python" in advice:
        return message
    advice = re.sub(r"heads=model\.view\.heads_in\((\d+)\)", r"--heads L\1", advice)
    advice = re.sub(r"control=rs\.load\(…, untrained=True\)(\.trace\(text\))?", "--untrained", advice)
    advice = re.sub(r"(?<!=)\brs\.(\w+)\((?:trace|model|model\.view|…)\)", _command, advice)
    if PYTHON.search(advice):
        return f"{said}; in Python type {advice}"
    options = BESIDE.sub(r"\1 ", SETTING.sub(_option, advice))
    return f"{said}{way}{command + ' ' if command and options.startswith('--') else ''}{options}"


def _command(found: re.Match[str]) -> str:
    return f"rheoscope analyse {found[1]}" if found[1] in TABLE else found[0]


def _option(found: re.Match[str]) -> str:
    """--name value: lists between commas, heads as layer.head, a switch without a value."""
    name, value = f"--{found[1].replace('_', '-')}", found[2]
    if value == "True":
        return name
    if found[1] == "heads":
        value = ",".join(f"{layer}.{head}" for layer, head in re.findall(r"\((\d+), (\d+)\)", value)) or value
    elif value[0] in "([" and value[-1] in ")]":
        value = ",".join(part.strip() for part in value[1:-1].split(",") if part.strip())
    elif value[0] == value[-1] == "'" and " " not in value:
        value = value[1:-1]
    return f"{name} {value}"
