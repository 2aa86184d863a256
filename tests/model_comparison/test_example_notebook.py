"""The example notebook of two models runs from top to bottom, and its file contains no outputs."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "compare_models.ipynb"


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        code = ast.parse("".join(cell["source"]))
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, f"cell {number}", "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    assert value == (0.0, 0.0, 0.0)
    result = namespace["result"]
    assert float(result.loss_difference) < 0
    assert result.sizes["text"] == 4
    # the weights do not tell which head matters, as the notebook says
    by_weight = result.M_distance.values.argsort(axis=None)[::-1]
    by_logit = result.logit_change.values.argsort(axis=None)[::-1]
    assert by_weight[0] != by_logit[0]
    assert float(result.change[0]) == pytest.approx(float(result.logit_change.max()))
