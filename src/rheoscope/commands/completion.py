"""Shell completion of names. Registries are read from their source, so that no completion imports torch."""

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rheoscope.catalogue import ANALYSIS_MODULES

PACKAGE = Path(__file__).parents[1]


def registry_names(file: str, variable: str) -> list[str]:
    """The names in a registry of the package: a tuple, the keys of a dict, or the items of a dict comprehension.

    >>> registry_names("attention/zoo.py", "ZOO")[:2]
    ['scaled_dot', 'bilinear']
    """
    tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
    values = dict(_assignments(tree))
    registry = values[variable]
    if isinstance(registry, ast.DictComp):
        return [_name(item, values) for item in getattr(registry.generators[0].iter, "elts", [])]
    return [_name(item, values) for item in getattr(registry, "keys", None) or getattr(registry, "elts", [])]


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.value) for target in targets if isinstance(target, ast.Name))


def _name(node: ast.expr | None, values: dict[str, ast.expr]) -> str:
    """A string, the first argument of a call, the value of a constant, or the name of a function."""
    if isinstance(node, ast.Call):
        return _name(node.args[0], values)
    if isinstance(node, ast.Name):
        return _name(values[node.id], values) if node.id in values else node.id
    return str(node.value) if isinstance(node, ast.Constant) else ""


def mechanism_names() -> list[str]:
    """The named mechanisms."""
    return registry_names("attention/zoo.py", "ZOO")


def entrant_names() -> list[str]:
    """The entrants of a race."""
    return registry_names("learn/entrants.py", "ENTRANTS")


def recipe_names() -> list[str]:
    """The training recipes."""
    return registry_names("models/recipes.py", "RECIPES")


def experiment_names() -> list[str]:
    """The experiments of the theory bench."""
    return registry_names("theory/experiments.py", "EXPERIMENTS")


def analysis_names() -> list[str]:
    """The analyses of the catalogue."""
    return list(ANALYSIS_MODULES)


def space_names() -> list[str]:
    """The spaces in which points are compared."""
    return registry_names("flow/cloud.py", "SPACES")


def device_names() -> list[str]:
    """The common devices."""
    return ["cpu", "cuda", "mps"]


def dtype_names() -> list[str]:
    """The dtypes in which a model runs."""
    return ["float32", "bfloat16", "float16", "float64"]


def recipe_settings() -> list[str]:
    """Values of --set that name a mechanism."""
    return [f"mechanism={name}" for name in mechanism_names()]


def complete_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion of one name, in the form that typer takes as `autocompletion`.

    >>> complete_from(dtype_names)("bf")
    ['bfloat16']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def complete_list_from(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion of the last name in a list with commas.

    >>> complete_list_from(dtype_names)("float32,bf")
    ['float32,bfloat16']
    """

    def complete(incomplete: str) -> list[str]:
        start, comma, last = incomplete.rpartition(",")
        return [f"{start}{comma}{name}" for name in names() if name.startswith(last)]

    return complete
