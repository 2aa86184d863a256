"""Write the source tree to CONTRIBUTING.md, with one line per file from its docstring."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
START, END = "<!-- tree -->", "<!-- /tree -->"


def summary(file: Path) -> str:
    """The first sentence of a file's docstring, without its full stop."""
    text = file.read_text(encoding="utf-8")
    first = re.match(r'"""[^"\\]*"""\n', text)  # parsing the whole file takes much longer
    docstring = ast.get_docstring(ast.parse(first[0] if first else text)) or ""
    return " ".join(docstring.split("\n\n")[0].split()).removesuffix(".")


def lines(folder: Path, indent: str = "  ") -> Iterator[str]:
    """A line per file and per folder, folders after files."""
    for file in sorted(folder.glob("*.py")):
        if file.name != "__init__.py":
            yield f"{indent}{file.name:<{30 - len(indent)}} {summary(file)}".rstrip()
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield f"{indent}{inner.name + '/':<{30 - len(indent)}} {summary(inner / '__init__.py')}".rstrip()
        yield from lines(inner, indent + "  ")


def tree(source: Path) -> str:
    """The tree as a block of Markdown."""
    return "\n".join([START, "```text", "src/rheoscope/", *lines(source), "```", END])


def with_tree(page: str, source: Path) -> str:
    """The page with its tree replaced by that of the source."""
    before, rest = page.split(START, 1)
    return before + tree(source) + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(with_tree(PAGE.read_text(encoding="utf-8"), ROOT / "src" / "rheoscope"), encoding="utf-8")
