"""Assignments from the kernel are optimal, in Triton's interpreter. On a GPU tests/flow/test_transport.py tests the compiled one."""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("there is a GPU, which runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
pytest.importorskip("triton", reason="triton is not installed")

from scipy.optimize import linear_sum_assignment

from rheoscope.flow.kernels.assign import assign
from tests.cases import random
from tests.interpreter import patch_interpreter


@pytest.fixture(autouse=True)
def _patched_interpreter() -> None:
    patch_interpreter()


@pytest.mark.parametrize("n", [1, 2, 13, 33])
def test_assignments_have_the_lowest_cost(n: int) -> None:
    cost = random(n, 3, n, n).double()
    expected = torch.stack([torch.from_numpy(linear_sum_assignment(table.numpy())[1]) for table in cost])
    assert assign(cost).equal(expected)


def test_equal_and_negative_costs_have_a_permutation() -> None:
    """Four values in a table of 12 × 12, so that many assignments are equally good."""
    cost = random(0, 2, 12, 12).mul(2).round().clamp(-2, 1).double()
    columns = assign(cost)
    assert columns.sort(-1).values.equal(torch.arange(12).expand(2, -1))
    best = [table.numpy()[linear_sum_assignment(table.numpy())].sum() for table in cost]
    assert cost.gather(-1, columns[..., None]).sum((1, 2)).tolist() == best
