"""The fused kernel: what folds into it, what does not, and the fault of torch that is worked around."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.lower import sdpa
from rheoscope.attention.mask import Causal, Padding, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets, alibi_slopes
from rheoscope.attention.score import Distance, Gram, SoftCap
from tests.attention.cases import gap, gradients, inputs, random, random_booleans, reference_output, zoo_mechanism
from tests.elsewhere import elsewhere


def floats(m: int = 5, n: int = 5, **sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(x.float() for x in inputs(m, n, **sizes))


def refusal(mechanism: Mechanism, m: int = 5, n: int = 5) -> str:
    q, k, _ = floats(m, n)
    return sdpa.mechanism_refusal(mechanism, q, k)


def test_torch_scales_the_minus_infinity_of_its_causal_mask() -> None:
    """Why `kernel` takes a scale <= 0 into q: torch's CPU kernel gives NaN (0) or sees the future (negative).

    When torch mends this, the assertions here fail and the two lines in `kernel` can go."""
    q, k, v = floats(h=2, g=2, e=6)  # of one width, as the fused kernel takes them
    nothing = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.0)
    backwards = scaled_dot_product_attention(q, k, v, is_causal=True, scale=-1.0)
    expected, _ = reference_attention(Mechanism(Gram(scale=-1.0), mask=Causal()), q, k, v)
    assert bool(nothing.isnan().any())
    assert not gap(backwards, expected) < 1e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, -1e-3])
def test_any_scale_is_right(scale: float) -> None:
    q, k, v = floats()
    for mask in (None, "causal", Window(2)):
        mechanism = Mechanism(Gram(scale=scale)).with_mask(mask)
        assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-6


@pytest.mark.parametrize("d", [1, 15, 16, 17])
@pytest.mark.parametrize("e", [1, 16, 20])
def test_padded_columns_change_nothing(d: int, e: int) -> None:
    q, k, v = floats(d=d, e=e)
    for mechanism in (
        zoo_mechanism("metric").with_mask("causal"),
        zoo_mechanism("metric"),
        zoo_mechanism("scaled_dot").with_mask("causal"),
    ):
        out = sdpa.run(mechanism, q, k, v)
        assert out.shape == (2, 4, 5, e)
        assert gap(out, reference_attention(mechanism, q, k, v)[0]) < 1e-5


def test_the_key_bias_travels_with_its_gradient() -> None:
    """As a mask row it would have none: with a gradient to pass it becomes a column."""
    q, k, v = floats()
    exact = k.double().requires_grad_()
    k.requires_grad_()
    sdpa.run(zoo_mechanism("metric"), q, k, v).sum().backward()
    reference_attention(zoo_mechanism("metric"), q.double(), exact, v.double())[0].sum().backward()
    assert k.grad is not None
    assert exact.grad is not None
    assert gap(k.grad, exact.grad) < 1e-5


@pytest.mark.parametrize("n", [1, 5, 600])
def test_a_row_beside_the_causal_mask_is_the_reference(n: int) -> None:
    """Where the bias has no gradient it is a row for torch's CPU kernel; q, k and v may still have one."""
    q, k, v = floats(n, n, h=2, g=1, d=8, e=4)
    mechanism = Mechanism(Distance(), mask=Causal())
    with torch.no_grad():
        assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
        turned = q.mT.contiguous().mT  # no row in one piece: as a column
        assert gap(sdpa.run(mechanism, turned, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
    for mechanism in (
        Mechanism(position=ALiBi(alibi_slopes(2)), mask=Causal()),
        Mechanism(normaliser=Sink(0.3), mask=Causal()),
    ):
        g = random(5, 2, 2, n, 4).float()
        found, expected = (gradients(run, mechanism, (q, k, v), g) for run in (sdpa.run, reference_output))
        assert max(gap(found[at], expected[at]) for at in "qkv") < 1e-5


def test_alibi_of_the_past_is_a_bias_per_key() -> None:
    alibi = ALiBi(alibi_slopes(4))
    q, k, v = floats(3, 6)
    mechanism = Mechanism(position=alibi, mask=Causal())
    assert sdpa.mechanism_refusal(mechanism, q, k) == ""
    assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
    assert "bias of its own" in refusal(Mechanism(position=alibi))
    assert "bias of its own" in refusal(Mechanism(position=alibi, mask=Causal() & Padding(random_booleans(1, 2, 5))))


def test_what_is_no_dot_product_is_refused() -> None:
    assert "Sigmoid, not softmax" in refusal(zoo_mechanism("sigmoid"))
    assert "SoftCap cannot be written as a dot product" in refusal(Mechanism(SoftCap(Gram(), 1.0)))
    assert "Laplace cannot be written as a dot product" in refusal(zoo_mechanism("kernel_laplace"))
    assert "a sink feels the score's row constant" in refusal(Mechanism(Distance(), normaliser=Sink()))
    assert "bias of its own" in refusal(Mechanism(position=Buckets(torch.zeros(8, 4))))
    assert "bias of its own" in refusal(Mechanism(position=Bias(torch.zeros(4, 1, 5))), m=1)
    assert "bias of its own" in refusal(Mechanism(position=ALiBi(alibi_slopes(4)), mask=Causal(), normaliser=Sink()))
    assert refusal(Mechanism(position=Rotary(), mask=Causal())) == ""


def test_a_table_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK_ENTRIES", 10)
    assert "table of 5 x 5" in refusal(Mechanism(mask=Window(2)))
    assert refusal(Mechanism(mask=Causal())) == ""
    assert refusal(Mechanism(mask=Causal()), m=1) == ""
    assert "table of 4 x 5" in refusal(Mechanism(mask=Causal()), m=4)


def test_a_gpu_is_given_rows_that_begin_where_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch gives its kernels rows of any length, and in half precision one of them reads others than it was given (torch 2.11)."""
    seen = list[torch.Tensor]()

    def kernel(*qkv: torch.Tensor, **_: object) -> torch.Tensor:
        seen.extend(qkv)
        return qkv[2]

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", kernel)
    with elsewhere() as device:
        rows = torch.zeros(3, 2, 5, 16 * 4 + 3, dtype=torch.bfloat16).to(device)[..., :-3]
        q, k, v = rows.unflatten(-1, (4, 16)).transpose(2, 3)
        assert v.stride(-2) % 8
        sdpa.run(Mechanism(mask=Causal()), q, k, v)
    assert len(seen) == 3
    assert not any(one % 8 for x in seen for one in (*x.stride()[:-1], x.storage_offset()))


@pytest.mark.parametrize("sink", [0.0, 1.5, random(1, 4).float()], ids=["zero", "number", "a head"])
@pytest.mark.parametrize("mask", [None, "causal", Causal() & Window(2), Padding(random_booleans(2, 2, 5))])
def test_the_sink_is_a_key_in_front(sink: float | torch.Tensor, mask: object) -> None:
    q, k, v = floats()
    mechanism = replace(zoo_mechanism("softmax_sink"), normaliser=Sink(sink)).with_mask(mask)  # type: ignore[arg-type]
    assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-6


def test_reasons_name_the_score() -> None:
    q, k, _ = inputs()
    assert "Gram is a dot product, so" in sdpa.explain_lowering(zoo_mechanism("scaled_dot"), q, k)
    assert "a dot product with a bias per key" in sdpa.explain_lowering(zoo_mechanism("metric"), q, k)
    assert "of mapped tokens" in sdpa.explain_lowering(zoo_mechanism("bilinear"), q, k)
    assert "sink as a zero key" in sdpa.explain_lowering(zoo_mechanism("softmax_sink"), q, k)
