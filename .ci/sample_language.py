"""Print a random sample of identifiers and sentences for review, seeded by the current commit.

A reader judges each entry: does it need a second reading? Identifiers are names that the package binds (functions, classes,
parameters, variables, modules). Sentences come from docstrings, messages and errors, the help of commands, the README, the
docs and a report of the default model.
"""

import argparse
import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rheoscope.messages.extraction import python_templates

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rheoscope"
MIN_WORDS = 4
"""Shorter texts are labels or formulas."""
Entry = tuple[str, str]
"""The place and the text of an entry."""


def identifiers() -> set[Entry]:
    """Every name that a file of the package binds, once per file, except names of one letter."""
    entries: set[Entry] = set()
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        names = {file.stem} | set(bound_names(ast.parse(file.read_text(encoding="utf-8"))))
        entries |= {(place, name) for name in names if len(name.strip("_")) > 1 and not name.startswith("__")}
    return entries


def bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def sentences() -> set[Entry]:
    """Every sentence for people: docstrings, templates, README, docs, help and report."""
    entries: set[Entry] = set()
    for file in sorted(SOURCE.rglob("*.py")):
        source, place = file.read_text(encoding="utf-8"), str(file.relative_to(SOURCE))
        texts = [*docstrings(ast.parse(source)), *(template for _, template in python_templates(source))]
        entries |= {(place, sentence) for text in texts for sentence in split_sentences(text)}
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = file.read_text(encoding="utf-8")
        entries |= {(str(file.relative_to(ROOT)), sentence) for sentence in split_sentences(without_code(text))}
    for arguments in (
        ["--help"],
        ["analyse", "--help"],
        ["train", "--help"],
        ["The keys to the cabinet are on the table"],
    ):
        entries |= {(f"rheoscope {arguments[0][:12]}", sentence) for sentence in split_sentences(output_of(arguments))}
    return entries


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").split(">>>")[0]


def without_code(markdown: str) -> str:
    """Markdown without fenced code, tables and raw HTML."""
    prose = re.sub(r"```.*?```|<[^>]+>", " ", markdown, flags=re.DOTALL)
    return "\n".join(line for line in prose.splitlines() if not line.lstrip().startswith("|"))


def output_of(arguments: list[str]) -> str:
    """The output of a command, without the frames of tables."""
    command = [sys.executable, "-m", "rheoscope", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / ".venv", check=False, timeout=300)
    return re.sub(r"[─│╭╮╰╯┏┓┗┛━┃┡┩╇]+", "\n\n", process.stdout)


def split_sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without list markers and headings.

    >>> list(split_sentences("A head is two operators. Each one acts on E."))
    ['A head is two operators.', 'Each one acts on E.']
    """
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n#+ ", text):
        flat = re.sub(r"\s+", " ", paragraph).strip(" -*#")
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", flat):
            if len(sentence.split()) >= MIN_WORDS:
                yield sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--identifiers", type=int, default=150)
    parser.add_argument("--sentences", type=int, default=60)
    parser.add_argument("--seed", help="default: the hash of the current commit")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    generator = random.Random(options.seed or commit)
    print(f"seed {options.seed or commit}")
    for title, entries, count in (
        ("identifiers", identifiers(), options.identifiers),
        ("sentences", sentences(), options.sentences),
    ):
        sample = generator.sample(sorted(entries), min(count, len(entries)))
        print(f"\n{count} of {len(entries):,} {title}")
        for number, (place, entry) in enumerate(sample, 1):
            print(f"{number:3}. {entry}  [{place}]")


if __name__ == "__main__":
    main()
