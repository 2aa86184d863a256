"""Norms and products of head updates from the kernel equal those of the displacements, in Triton's interpreter.

The tests use float16, because the interpreter truncates bfloat16 and a GPU rounds it. On a GPU tests/laws/every_batch.py
tests the compiled kernel.
"""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("there is a GPU, which runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
pytest.importorskip("triton", reason="triton is not installed")

from rheoscope.flow import head_motion
from rheoscope.flow.geometry_kept import analysis as geometry_kept
from rheoscope.flow.kernels.head_dots import head_dots
from rheoscope.flow.trajectory.analysis import half_precision_displacements
from rheoscope.space.view import View
from tests.cases import double, random, text
from tests.interpreter import patch_interpreter


@pytest.fixture(autouse=True)
def _patched_interpreter() -> None:
    patch_interpreter()


@pytest.mark.parametrize("e", [16, 12])
@pytest.mark.parametrize("biased", [False, True])
def test_norms_and_products_equal_those_of_the_displacements(e: int, biased: bool) -> None:
    b, n, h, d = 2, 70, 3, 40
    z, y = random(0, b, n, h, e).half(), random(1, b, n, d).half()
    write, common = random(2, h, e, d).half(), random(3, h, e).half() if biased else None
    length, product = torch.empty(2, b, h, n)
    projected = (y.float() @ write.flatten(0, 1).float().mT).half()
    head_dots(z.flatten(2), common, (write.float() @ write.float().mT).half(), projected, length, product)
    displacement = (z if common is None else z - common).double().transpose(1, 2) @ write.double()
    torch.testing.assert_close(length.double(), displacement.norm(dim=-1), rtol=3e-3, atol=0)
    expected = (displacement * y[:, None].double()).sum(-1)
    assert float((product - expected).abs().max()) < 3e-3 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_head_speeds_and_erasures_are_the_same_without_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts of different length in float16; the padding of the shorter one has no effect."""
    monkeypatch.setattr(View, "to_model_precision", lambda self, x: x.half())
    monkeypatch.setattr(View, "uses_half_precision", property(lambda self: True))
    traces = double(name).trace([text(seed, n) for seed, n in enumerate((13, 9))])
    traces.with_outputs({layer: traces.outputs(layer).half() for layer in range(traces.view.layers)})
    displacements = half_precision_displacements(traces.points, traces.view)
    arguments = (traces, traces.points, displacements, traces.is_token)
    expected = (
        head_motion.head_speeds_and_cosines(*arguments),
        geometry_kept.erasures(traces, traces.is_token)["erasure"],
    )
    for module in (head_motion, geometry_kept):
        monkeypatch.setattr(
            module, "recorded_head_outputs", lambda t, rows=None: [t.outputs(layer) for layer in range(t.view.layers)]
        )
    actual = head_motion.head_speeds_and_cosines(*arguments), geometry_kept.erasures(traces, traces.is_token)["erasure"]
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3, check_dtype=False)
