"""The example notebook of generation runs from top to bottom, and finds what the guide says."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.studio.test_notebook import run_cell

NOTEBOOK = Path(__file__).parents[2] / "examples" / "generation.ipynb"


def test_the_notebook_runs_from_top_to_bottom() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = [run_cell("".join(cell["source"]), number, namespace) for number, cell in enumerate(cells)]
    assert outputs[0].startswith(" the keys to be used in the first round of the keys.")
    assert outputs[1][0] == "ys"
    assert outputs[3].index[0] == "ys"
    assert outputs[4].index.tolist().index("L4.H3") < 6  # among MLPs
    assert max(outputs[5]) < 1e-4
    (early_prompt, early_answer), (late_prompt, late_answer) = outputs[6]
    assert early_prompt > early_answer
    assert late_prompt < late_answer
    assert 0 < outputs[7][0] < outputs[7][1]
    assert outputs[8] == (len(namespace["generation"].ids), pytest.approx(0, abs=1e-3))
