"""Everything that the studio can say, as templates, found where it is written: declarations, sentences, pictures, errors.

A template is an English text whose gaps are {0}, {1}, …; {n} is a gap that holds a number. Gaps side by side are one.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from rheoscope.catalogue import TABLE, analysis
from rheoscope.picture.field_panels import in_words
from rheoscope.picture.head_map import COLOURS
from rheoscope.picture.head_map import said as kind_said
from rheoscope.report.verdicts import QUESTIONS
from rheoscope.studio.edits import OPERATIONS

ROOT = Path(__file__).parents[2] / "src" / "rheoscope"
NOT_SHOWN = {"attention", "dynamics", "compared"}
"""Pictures of other commands."""
PICTURES = [
    path
    for path in sorted([*ROOT.glob("*/*/picture.py"), *ROOT.glob("picture/*.py"), *ROOT.glob("report/pictures/*.py")])
    if path.stem not in NOT_SHOWN
]
SENTENCES = [ROOT / "report/verdicts.py", ROOT / "report/findings.py", ROOT / "report/question_blocks.py"]
OF_THE_SHELL = {"export", "notebook", "startup"}
"""Files of the studio whose errors are told in a terminal."""
OPENING = [
    *(
        f"models/{name}.py"
        for name in (
            "trained_model",
            "config",
            "checkpoint",
            "build_view",
            "vocabulary",
            "position_modules",
            "certificate",
        )
    ),
    *(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "pretrained").rglob("*.py"))
        if path.stem != "attention_interface"
    ),
]
"""Files whose errors are told when a model does not open."""
REFUSING = [
    *(path for path in sorted((ROOT / "studio").glob("*.py")) if path.stem not in OF_THE_SHELL),
    *(
        path
        for room in ("flow", "covers", "space", "running")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.stem != "picture"
    ),
    *(
        ROOT / name
        for name in (
            "catalogue.py",
            "opening.py",
            "report/run_analyses.py",
            "report/report_settings.py",
            "space/results.py",
        )
    ),
    *(ROOT / name for name in OPENING),
]


def template(node: ast.expr) -> str:
    """A text as it is written, its gaps numbered; text that stands between nothing but gaps is no template.

    >>> template(ast.parse("f'{a}{b} of {c}'", mode="eval").body), template(ast.parse("'{} of {}'", mode="eval").body)
    ('{0} of {1}', '{0} of {1}')
    """
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
    else:
        assert isinstance(node, ast.Constant)
        parts = [node.value]
    written = re.sub("\0+", "\0", "".join(map(str, parts)).replace("{}", "\0"))
    pieces = written.split("\0")
    return trimmed("".join(piece + f"{{{at}}}" * (at < len(pieces) - 1) for at, piece in enumerate(pieces)))


def trimmed(text: str) -> str:
    """Without what joins it to the text before."""
    return re.sub(r"^[,;:.·]? +", "", text).strip()


def _code(tree: ast.AST) -> set[int]:
    """Strings that are code: annotations, subscripts, documentation, parts of a longer text, format specifications."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.Expr):
            parts = [node.value] if isinstance(node.value, ast.Constant) else []
        elif isinstance(node, ast.JoinedStr):
            specs = [part.format_spec for part in node.values if isinstance(part, ast.FormattedValue)]
            parts = [*(part for part in node.values if isinstance(part, ast.Constant)), *specs]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        found |= {id(one) for part in parts if part is not None for one in ast.walk(part)}
    return found


@cache
def written(path: Path) -> frozenset[str]:
    """Every text of a file, and the plurals that it makes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    code, found = _code(tree), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and is_text(node) and id(node) not in code:
            found.add(template(node))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "plural":
            name = ast.literal_eval(node.args[1])
            found |= {f"{{n}} {name}", f"{{n}} {name}s"}
    return frozenset(found)


def refusals(path: Path) -> Iterator[str]:
    """What the errors of a file say, and why it leaves something out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        told: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            told = node.args[:1] if name.endswith("Error") else node.args[-1:] if name in ("without", "open") else []
            told += [one.value for one in node.keywords if one.arg == "error"]
        if isinstance(node, ast.Dict):
            told = [
                value for key, value in zip(node.keys, node.values, strict=True) if getattr(key, "value", 0) == "error"
            ]
        if isinstance(node, ast.Call | ast.Tuple):
            row = node.args if isinstance(node, ast.Call) else node.elts
            told += [text for status, text in pairwise(row) if getattr(status, "value", 0) in range(400, 600)]
        yield from (template(one) for one in told if isinstance(one, ast.JoinedStr | ast.Constant) and is_text(one))


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def is_sentence(text: str) -> bool:
    """Whether a text is one for people by its look: words with a space between, or a capital first."""
    bare = re.sub(r"\{\w+\}", "", text)
    return re.search(r"[^\W\d_]{2}", bare) is not None and (
        re.search(r"\S \S", text) is not None or re.match(r"[A-Z][a-z]", text) is not None
    )


def declared() -> set[str]:
    """Questions, definitions and units of analyses, the seven questions, operations on heads."""
    said = {one.question for one in QUESTIONS} | {str(one["title"]) for one in OPERATIONS}
    for name in TABLE:
        one = analysis(name)
        said |= {one.question} | {text for field in one.fields.values() for text in (field.definition, field.unit)}
    return said - {""}


def names() -> set[str]:
    """Fields, their axes and analyses as titles and within lines; types of heads; half-layers."""
    fields = {name: field for one in TABLE for name, field in analysis(one).fields.items()}
    said = {*TABLE, *fields, *(dim for field in fields.values() for dim in field.dims)}
    told = {form for name in said for form in (in_words(name), in_words(name).lower(), name.replace("_", " "))}
    return told | set(map(kind_said, COLOURS)) | {"{} attention"}


def sentences() -> set[str]:
    """All that is said with numbers in it, and titles, captions and keys of pictures, as far as they look like texts."""
    written_there = set().union(*map(written, [*PICTURES, *SENTENCES]))
    return {text for text in written_there if is_sentence(text) and not text.startswith("rheoscope ")}


def errors() -> set[str]:
    return {text for path in [*REFUSING, *SENTENCES] for text in refusals(path) if is_sentence(text)}


def everything_written() -> set[str]:
    """Every text of every file that is said or could be."""
    return set().union(*map(written, [*PICTURES, *SENTENCES, *REFUSING]))
