"""Tests of the architecture: layers, light imports, names, sizes and documented public names.

Each rule is a function from a source tree to the list of its violations. It must find none in ``src/rheoscope``, and it must
find the violation that ``test_every_rule_can_fail`` puts into a small tree.
"""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

from tests import source_files
from tests.processes import run_in_fork, unload_packages

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rheoscope"
source_tree = SimpleNamespace(**run_path(str(ROOT / ".ci" / "source_tree.py")))

# From top to bottom. A package imports only from lower rows, and never from its own row.
LAYERS = [
    ["__main__"],
    ["commands"],
    ["__init__"],  # the public names, which only the command line may use
    ["studio"],
    ["corpus", "learn"],
    ["report"],
    ["catalogue"],
    ["checkpoint_series"],
    ["opening"],
    ["model_comparison"],
    ["models", "pretrained", "flow", "covers", "theory"],
    ["running"],
    ["space"],
    ["statistics", "picture", "attention"],
    ["files", "notebook_html", "ray_workers"],
    ["shapes"],
    ["messages"],  # used by errors, pictures and reports
]
DEPTH = {room: depth for depth, row in enumerate(LAYERS) for room in row}
VAGUE = {"utils", "util", "common", "core", "helpers", "helper", "base", "manager", "managers", "misc"}
HEAVY = {"transformers", "matplotlib", "xarray", "ot", "ray", "fastapi"}

LONGEST_FUNCTION, LONG_FUNCTION, LONGEST_FILE = 55, 31, 450


# Reading a source tree


def python_files(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def room_of(file: Path, source: Path) -> str:
    return file.relative_to(source).with_suffix("").parts[0]


Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(file: Path) -> ast.Module:
    return parse_text(file.read_text(encoding="utf-8"))[0]


def imports_and_functions(file: Path) -> list[ast.Import | ast.ImportFrom | Function]:
    return parse_text(file.read_text(encoding="utf-8"))[1]


@cache
def parse_text(text: str) -> tuple[ast.Module, list[ast.Import | ast.ImportFrom | Function]]:
    """The syntax tree of a file with its imports and functions, cached because every rule reads every file."""
    tree = source_files.parse(text)
    return tree, [node for node in statements(tree) if isinstance(node, ast.Import | ast.ImportFrom | Function)]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements at any depth. Expressions are skipped, because a full walk visits ten times as many nodes."""
    for block in ("body", "handlers", "cases", "orelse", "finalbody"):
        for line in getattr(node, block, ()):
            yield line
            yield from statements(line)


def absolute_module(node: ast.ImportFrom, file: Path, source: Path) -> str:
    """The absolute module of a ``from … import``, for example ``rheoscope.attention.mask``."""
    if not node.level:
        return node.module or ""
    package = ["rheoscope", *file.relative_to(source).parent.parts]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def imported_modules(file: Path, source: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file, also inside functions, as (line, dotted name)."""
    for node in imports_and_functions(file):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute_module(node, file, source)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imported_rooms(file: Path, source: Path) -> Iterator[tuple[int, str]]:
    """The top-level modules that a file imports. ``import rheoscope`` counts as ``__init__``."""
    rooms = {path.stem for path in source.iterdir()} - {"__init__"}
    for line, name in imported_modules(file, source):
        package, *rest = name.split(".")
        if package == "rheoscope" and rest != ["__version__"]:
            yield line, rest[0] if rest and rest[0] in rooms else "__init__"


# Rules for source files


def imports_upwards(source: Path) -> list[str]:
    return [
        f"{file.relative_to(source)}:{line}: {room} imports {other}, which is not below it"
        for file in python_files(source)
        if (room := room_of(file, source)) in DEPTH
        for line, other in imported_rooms(file, source)
        if other != room and DEPTH.get(other, -1) <= DEPTH[room]
    ]


def import_cycles(source: Path) -> list[str]:
    """An import cycle, also one through imports inside functions. Imports for type checkers are ignored."""
    files = {module_name(file, source): file for file in python_files(source)}
    graph = {name: runtime_imports(file, source) & files.keys() - {name} for name, file in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" → ".join(error.args[1])]
    return []


def module_name(file: Path, source: Path) -> str:
    return ".".join(("rheoscope", *file.relative_to(source).with_suffix("").parts)).removesuffix(".__init__")


def runtime_imports(file: Path, source: Path) -> set[str]:
    """The modules that a file imports when it runs; of `from a.b import c`, both a.b and a.b.c."""
    checked = [
        node for node in parse(file).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    lines = {line for node in checked for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    names = [name for line, name in imported_modules(file, source) if line not in lines]
    return {part for name in names for part in (name, name.rpartition(".")[0])} - {"rheoscope"}


def top_imports(file: Path, source: Path) -> set[str]:
    """The modules that a file imports when it is imported itself, outside functions."""
    lines = {node.lineno for node in parse(file).body}
    names = [name for line, name in imported_modules(file, source) if line in lines]
    return {part for name in names for part in (name, name.rpartition(".")[0])} - {"rheoscope"}


def rooms_without_a_layer(source: Path) -> list[str]:
    return sorted({room_of(file, source) for file in python_files(source)} - set(DEPTH))


def vague_names(source: Path) -> list[str]:
    paths = [path.relative_to(source) for path in source.rglob("*") if "__pycache__" not in path.parts]
    return [str(path) for path in paths if path.stem.strip("_") in VAGUE]


def folders_that_export(source: Path) -> list[str]:
    """A folder's ``__init__.py`` contains only a docstring, because other code would turn lazy names into modules."""
    inits = [file for file in python_files(source) if file.name == "__init__.py" and file.parent != source]
    return [str(file.relative_to(source)) for file in inits if not only_docstring(parse(file))]


def only_docstring(tree: ast.Module) -> bool:
    return len(tree.body) == (ast.get_docstring(tree) is not None)


def postponed_annotations(source: Path) -> list[str]:
    """``from __future__ import annotations`` turns shape annotations into strings."""
    return [
        str(file.relative_to(source))
        for file in python_files(source)
        if any(name == "__future__.annotations" for _, name in imported_modules(file, source))
    ]


def functions(source: Path) -> dict[str, int]:
    """The length of each function, in lines, without its docstring."""
    return {
        f"{file.relative_to(source)}:{node.lineno} {node.name}": length(node)
        for file in python_files(source)
        for node in imports_and_functions(file)
        if isinstance(node, Function)
    }


def length(node: Function) -> int:
    lines = last_line(node) - node.lineno + 1
    if ast.get_docstring(node) is None:
        return lines
    return lines - (last_line(node.body[0]) - node.body[0].lineno + 1)


def last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def long_functions(source: Path) -> list[str]:
    return [f"{name}: {lines} lines" for name, lines in functions(source).items() if lines > LONGEST_FUNCTION]


def too_many_long_functions(source: Path) -> list[str]:
    """Non-empty when more than a tenth of the functions are long."""
    lengths = functions(source)
    long = [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > LONG_FUNCTION]
    return long if len(long) > len(lengths) / 10 else []


def long_files(source: Path) -> list[str]:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in python_files(source)}
    return [f"{file.relative_to(source)}: {lines} lines" for file, lines in lengths.items() if lines > LONGEST_FILE]


RULES = [
    imports_upwards,
    import_cycles,
    rooms_without_a_layer,
    vague_names,
    folders_that_export,
    postponed_annotations,
    long_functions,
    too_many_long_functions,
    long_files,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source(rule: Callable[[Path], list[str]]) -> None:
    assert rule(SOURCE) == []


def test_rules_read_the_source() -> None:
    rooms = {room_of(file, SOURCE) for file in python_files(SOURCE)}
    assert {"__init__", "attention", "shapes", "commands"} <= rooms
    assert any(other == "attention" for file in python_files(SOURCE) for _, other in imported_rooms(file, SOURCE))


def test_every_import_and_every_function_is_collected() -> None:
    """The collected nodes equal those of a full walk."""
    try_blocks = "try:\n import a\nexcept E:\n import b\nelse:\n import c\nfinally:\n import d\n"
    match_and_class_blocks = (
        "match x:\n case 1:\n  from e import f\nclass G:\n while h:\n  async def i(): import j\n else:\n  import k\n"
    )
    for text in (try_blocks + match_and_class_blocks, Path(__file__).read_text(encoding="utf-8")):
        tree, collected = parse_text(text)
        expected = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | Function))
        assert {*map(id, expected)} == {*map(id, collected)}
    assert len(parse_text(try_blocks + match_and_class_blocks)[1]) == 8


FAULTS = [
    (imports_upwards, "attention/mask.py", "from rheoscope.report import page"),
    (imports_upwards, "attention/mask.py", "def late():\n    import rheoscope.commands.app"),
    (imports_upwards, "attention/deep/mask.py", "from ...space import view"),
    (imports_upwards, "attention/mask.py", "from rheoscope import mechanism"),
    (imports_upwards, "attention/mask.py", "import rheoscope as rs"),
    (imports_upwards, "flow/energy/analysis.py", "from ...covers.why import why"),
    (imports_upwards, "__init__.py", "from rheoscope.commands.app import main"),
    (import_cycles, "attention/score.py", "def late():\n    from rheoscope.attention import score_twin"),
    (rooms_without_a_layer, "attic/old.py", ""),
    (vague_names, "attention/utils.py", ""),
    (vague_names, "attention/core/mask.py", ""),
    (vague_names, "attention/_base.py", ""),
    (folders_that_export, "attention/__init__.py", '"""Attention."""\nfrom .mask import causal'),
    (postponed_annotations, "attention/mask.py", "from __future__ import annotations"),
    (long_functions, "attention/mask.py", "def long():\n" + "    x = 1\n" * LONGEST_FUNCTION),
    (too_many_long_functions, "attention/mask.py", "def long():\n" + "    x = 1\n" * LONG_FUNCTION),
    (long_files, "attention/mask.py", "x = 1\n" * (LONGEST_FILE + 1)),
]
VALID = [
    (imports_upwards, "attention/mask.py", "from .score import dot\nfrom rheoscope.shapes import Queries"),
    (imports_upwards, "attention/deep/mask.py", "from ..score import dot\nfrom rheoscope import __version__"),
    (
        imports_upwards,
        "commands/app.py",
        "import rheoscope as rs\nfrom rheoscope.report import page\nimport torch, typing",
    ),
    (imports_upwards, "__init__.py", "from rheoscope.attention.zoo import mechanism"),
    (
        import_cycles,
        "attention/score.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rheoscope.attention import score_twin",
    ),
    (folders_that_export, "attention/__init__.py", '"""Attention."""'),
    (folders_that_export, "attention/__init__.py", ""),
    (long_functions, "attention/mask.py", "def f():\n    '''\n" + "    word\n" * 90 + "    '''\n"),
    (
        too_many_long_functions,
        "attention/mask.py",
        "def long():\n" + "    x = 1\n" * LONG_FUNCTION + "def f(): ...\n" * 9,
    ),
    (long_files, "attention/mask.py", "x = 1\n" * LONGEST_FILE),
]


def plant(source: Path, name: str, text: str) -> None:
    for file in [
        "__init__.py",
        "commands/app.py",
        "shapes.py",
        "attention/score.py",
        "space/view.py",
        "report/page.py",
    ]:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).touch()
    (source / "covers").mkdir()
    (source / "attention" / "score_twin.py").write_text("import rheoscope.attention.score\n", encoding="utf-8")
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("rule", "file", "text"), FAULTS)
def test_every_rule_can_fail(rule: Callable[[Path], list[str]], file: str, text: str, tmp_path: Path) -> None:
    plant(tmp_path, file, text)
    assert rule(tmp_path) != []


@pytest.mark.parametrize(("rule", "file", "text"), VALID)
def test_no_rule_is_too_strict(rule: Callable[[Path], list[str]], file: str, text: str, tmp_path: Path) -> None:
    plant(tmp_path, file, text)
    assert rule(tmp_path) == []


# The tree of CONTRIBUTING.md


def test_the_tree_in_contributing_is_the_source() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page == source_tree.with_tree(page, SOURCE), "type make readme"


def test_the_tree_lists_files_folders_and_their_docstrings(tmp_path: Path) -> None:
    plant(tmp_path, "attention/score.py", '"""Scores of queries and keys."""')
    (tmp_path / "attention" / "__init__.py").write_text('"""What attention computes.\n\nMore."""', encoding="utf-8")
    page = source_tree.with_tree(f"a\n{source_tree.START}\nold\n{source_tree.END}\nb", tmp_path)
    assert (
        "  attention/                   What attention computes\n    score.py                   Scores of queries"
        in page
    )
    assert "old" not in page
    assert page.endswith("\nb")


# Light imports in a fresh interpreter


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a statement loads."""
    code = f"import json, sys; {statement}; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return set(json.loads(process.stdout))


def test_importing_the_package_is_light() -> None:
    loaded = loaded_by("import rheoscope")
    assert "rheoscope" in loaded
    assert loaded & (HEAVY | {"torch", "numpy", "jaxtyping", "typer", "rich"}) == set()


def loaded_by_attention() -> None:
    unload_packages(*HEAVY, "jaxtyping")
    import_module("rheoscope.attention.zoo")
    print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))


def test_attention_needs_torch_and_jaxtyping_only() -> None:
    """Run in a fork that keeps torch loaded, because importing torch takes as long as all other import tests."""
    process = run_in_fork(loaded_by_attention)
    assert process.returncode == 0, process.stderr
    assert {"torch", "jaxtyping"} <= set(json.loads(process.stdout))
    assert set(json.loads(process.stdout)) & HEAVY == set()


def test_the_first_lines_of_a_report_do_not_wait_for_the_analyses() -> None:
    """What prints the model and the text imports no analysis, no words and no page, neither directly nor through others."""
    waiting = {module_name(file, SOURCE): file for file in python_files(SOURCE)}
    pending = ["rheoscope.report.windowed_report", "rheoscope.report.text_report"]
    imported: set[str] = set()
    while pending:
        imported.add(name := pending.pop())
        pending += top_imports(waiting[name], SOURCE) & waiting.keys() - imported
    assert "rheoscope.report.terminal" in imported
    assert [name for name in imported if name.rpartition(".")[2] in ("analysis", "words", "report_page", "story")] == []


LATE = HEAVY | {"pandas", "pyarrow", "scipy", "sklearn", "numba", "lap", "snowballstemmer"}
"""Packages that a report may not import before it has printed the model and the text."""
LATE_MODULES = {"rheoscope.report.report_page", "rheoscope.report.story", "rheoscope.models.generate"}


def print_what_is_loaded_at_the_first_line() -> None:
    unload_packages(*LATE)
    commands = import_module("rheoscope.commands.app")
    terminal = import_module("rheoscope.report.terminal")

    def print_header(*_: object) -> None:
        print(json.dumps(sorted(sys.modules)))
        raise KeyboardInterrupt

    terminal.Terminal.print_header = print_header
    commands.run_command_line()


def test_a_report_prints_its_first_line_before_it_imports_heavy_packages() -> None:
    process = run_in_fork(print_what_is_loaded_at_the_first_line, "The keys to the cabinet are", "--no-html")
    loaded = set(json.loads(process.stdout.splitlines()[0]))
    assert {"torch", "rheoscope.models.trained_model"} <= loaded
    assert loaded & (LATE | LATE_MODULES) == set()


def test_loaded_by_reports_a_heavy_import() -> None:
    assert {"matplotlib", "numpy"} <= loaded_by("import matplotlib")


# The public surface


def public_names() -> list[str]:
    import rheoscope

    return [name for name in rheoscope.__all__ if not name.startswith("__")]


def names_shadowing_a_module(names: list[str], source: Path) -> set[str]:
    return set(names) & {path.stem for path in source.iterdir()}


def names_without_example(package: object, names: list[str]) -> list[str]:
    return [name for name in names if ">>>" not in (inspect.getdoc(getattr(package, name)) or "")]


def names_not_in_text(names: list[str], text: str) -> list[str]:
    """The undocumented names. A name is documented if it appears as code: ``rs.name`` or `name`."""
    return [name for name in names if not re.search(rf"(\brs\.|\brheoscope\.|`){name}\b", text)]


def documentation() -> str:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_there_are_public_names() -> None:
    assert {"mechanism", "mechanisms"} <= set(public_names())


def test_no_public_name_shadows_a_module() -> None:
    assert names_shadowing_a_module(public_names(), SOURCE) == set()
    assert names_shadowing_a_module(["mechanism", "attention", "commands"], SOURCE) == {"attention", "commands"}


def test_every_public_name_has_an_example() -> None:
    import rheoscope

    assert names_without_example(rheoscope, public_names()) == []
    assert names_without_example(ast, ["walk"]) == ["walk"]


def test_every_public_name_is_documented() -> None:
    assert names_not_in_text(public_names(), documentation()) == []
    assert names_not_in_text(["mechanism"], "a mechanism, `mechanisms`") == ["mechanism"]
