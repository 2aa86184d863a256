"""What heads do to tokens, by Triton's interpreter: the same as from displacements themselves, head by head.

float16, since the interpreter cuts bfloat16 off where a GPU rounds. On a GPU tests/laws/every_batch.py runs the kernel itself.
"""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU runs the kernels themselves", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before triton is first imported
pytest.importorskip("triton", reason="triton is not installed")

from rheoscope.flow import head_motion
from rheoscope.flow.geometry_kept import analysis as geometry_kept
from rheoscope.flow.kernels.head_dots import head_dots
from rheoscope.flow.trajectory.analysis import half_precision_displacements
from rheoscope.space.view import View
from tests.cases import double, random, text
from tests.interpreter import mend_interpreter


@pytest.fixture(autouse=True)
def _mended() -> None:
    mend_interpreter()


@pytest.mark.parametrize("e", [16, 12])
@pytest.mark.parametrize("biased", [False, True])
def test_lengths_and_products_are_those_of_displacements(e: int, biased: bool) -> None:
    b, n, h, d = 2, 70, 3, 40
    z, y = random(0, b, n, h, e).half(), random(1, b, n, d).half()
    write, common = random(2, h, e, d).half(), random(3, h, e).half() if biased else None
    length, along = torch.empty(2, b, h, n)
    seen = (y.float() @ write.flatten(0, 1).float().mT).half()
    head_dots(z.flatten(2), common, (write.float() @ write.float().mT).half(), seen, length, along)
    moved = (z if common is None else z - common).double().transpose(1, 2) @ write.double()
    torch.testing.assert_close(length.double(), moved.norm(dim=-1), rtol=3e-3, atol=0)
    right = (moved * y[:, None].double()).sum(-1)
    assert float((along - right).abs().max()) < 3e-3 * float(right.abs().max())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_heads_move_tokens_as_without_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16, as on a GPU; texts of two lengths, and the padding of the shorter one is not seen."""
    monkeypatch.setattr(View, "to_model_precision", lambda self, x: x.half())
    monkeypatch.setattr(View, "uses_half_precision", property(lambda self: True))
    traces = double(name).trace([text(at, n) for at, n in enumerate((13, 9))])
    traces.with_outputs({layer: traces.outputs(layer).half() for layer in range(traces.view.layers)})
    moved = half_precision_displacements(traces.points, traces.view)
    ask = (traces, traces.points, moved, traces.is_token)
    right = head_motion.head_speeds_and_cosines(*ask), geometry_kept.erasures(traces, traces.is_token)["erasure"]
    for module in (head_motion, geometry_kept):
        monkeypatch.setattr(
            module, "recorded_head_outputs", lambda t, rows=None: [t.outputs(at) for at in range(t.view.layers)]
        )
    found = head_motion.head_speeds_and_cosines(*ask), geometry_kept.erasures(traces, traces.is_token)["erasure"]
    torch.testing.assert_close(found, right, rtol=2e-3, atol=2e-3, check_dtype=False)
