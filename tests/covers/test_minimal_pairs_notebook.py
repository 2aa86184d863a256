"""The example notebook of minimal pairs runs from top to bottom, and its numbers are those that its text states."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "minimal_pairs.ipynb"


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(cells):
        code = ast.parse("".join(cell["source"]))
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, f"cell {number}", "exec"), namespace)
        outputs.append(
            None if last is None else eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
        )
    assert outputs[0] == pytest.approx((2.22, -3.93), abs=0.01)
    stream = outputs[1]
    assert stream.loc["L1.resid_post"].idxmax() == 2
    assert 0.4 < stream.loc["L2.resid_mid"][3] < 0.8
    assert stream.loc["L5.resid_mid"].idxmax() == 5
    assert outputs[2].index.tolist()[:2] == [(5, 1), (2, 3)]
    assert (outputs[2]["values"] > outputs[2]["weights"]).all()
    edges = outputs[3]
    assert edges.loc["L2.H3 → L5.H1.v", "through"] == "F"
    assert outputs[4]["faithfulness"] > 0.5 > outputs[4]["faithfulness_M"]
    means = outputs[6]
    assert means["output_low"] <= means["output"] <= means["output_high"]
    assert outputs[7][0] > 0.9
