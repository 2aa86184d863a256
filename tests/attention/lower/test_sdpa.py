"""torch's fused kernel: the scores that fold into it, those that do not, and a workaround for a bug in torch."""

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
    """`fused_attention` folds a scale <= 0 into q, because torch's CPU kernel gives NaN (0) or sees the future (< 0).

    When torch fixes this, the assertions fail and the two lines in `fused_attention` can be removed."""
    q, k, v = floats(h=2, g=2, e=6)  # equal widths, as the fused kernel needs
    zero_scale = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.0)
    negative_scale = scaled_dot_product_attention(q, k, v, is_causal=True, scale=-1.0)
    expected, _ = reference_attention(Mechanism(Gram(scale=-1.0), mask=Causal()), q, k, v)
    assert bool(zero_scale.isnan().any())
    assert not gap(negative_scale, expected) < 1e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, -1e-3])
def test_any_scale_equals_the_reference(scale: float) -> None:
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


def test_the_key_bias_has_a_gradient() -> None:
    """A mask row has no gradient, so a key bias that needs one becomes a column."""
    q, k, v = floats()
    exact = k.double().requires_grad_()
    k.requires_grad_()
    sdpa.run(zoo_mechanism("metric"), q, k, v).sum().backward()
    reference_attention(zoo_mechanism("metric"), q.double(), exact, v.double())[0].sum().backward()
    assert k.grad is not None
    assert exact.grad is not None
    assert gap(k.grad, exact.grad) < 1e-5


@pytest.mark.parametrize("n", [1, 5, 600])
def test_a_bias_row_with_the_causal_mask_equals_the_reference(n: int) -> None:
    """A bias without gradient is a mask row of torch's CPU kernel, even if q, k and v have gradients."""
    q, k, v = floats(n, n, h=2, g=1, d=8, e=4)
    mechanism = Mechanism(Distance(), mask=Causal())
    with torch.no_grad():
        assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
        strided = q.mT.contiguous().mT  # rows that are not contiguous, so the bias is a column
        assert gap(sdpa.run(mechanism, strided, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
    for mechanism in (
        Mechanism(position=ALiBi(alibi_slopes(2)), mask=Causal()),
        Mechanism(normaliser=Sink(0.3), mask=Causal()),
    ):
        g = random(5, 2, 2, n, 4).float()
        actual, expected = (gradients(run, mechanism, (q, k, v), g) for run in (sdpa.run, reference_output))
        assert max(gap(actual[name], expected[name]) for name in "qkv") < 1e-5


def test_causal_alibi_is_a_bias_per_key() -> None:
    alibi = ALiBi(alibi_slopes(4))
    q, k, v = floats(3, 6)
    mechanism = Mechanism(position=alibi, mask=Causal())
    assert sdpa.mechanism_refusal(mechanism, q, k) == ""
    assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-5
    assert "adds a bias to every pair" in refusal(Mechanism(position=alibi))
    assert "adds a bias to every pair" in refusal(
        Mechanism(position=alibi, mask=Causal() & Padding(random_booleans(1, 2, 5)))
    )


def test_scores_that_are_not_dot_products_are_refused() -> None:
    assert "Sigmoid, not softmax" in refusal(zoo_mechanism("sigmoid"))
    assert "SoftCap cannot be written as a dot product" in refusal(Mechanism(SoftCap(Gram(), 1.0)))
    assert "Laplace cannot be written as a dot product" in refusal(zoo_mechanism("kernel_laplace"))
    assert "a sink depends on the row constant" in refusal(Mechanism(Distance(), normaliser=Sink()))
    assert "adds a bias to every pair" in refusal(Mechanism(position=Buckets(torch.zeros(8, 4))))
    assert "adds a bias to every pair" in refusal(Mechanism(position=Bias(torch.zeros(4, 1, 5))), m=1)
    assert "adds a bias to every pair" in refusal(
        Mechanism(position=ALiBi(alibi_slopes(4)), mask=Causal(), normaliser=Sink())
    )
    assert refusal(Mechanism(position=Rotary(), mask=Causal())) == ""


def test_a_large_mask_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "MAX_MASK_ENTRIES", 10)
    assert "table of 5 x 5" in refusal(Mechanism(mask=Window(2)))
    assert refusal(Mechanism(mask=Causal())) == ""
    assert refusal(Mechanism(mask=Causal()), m=1) == ""
    assert "table of 4 x 5" in refusal(Mechanism(mask=Causal()), m=4)


def test_gpu_kernels_get_aligned_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 does not align rows, and in half precision one of its kernels then reads wrong numbers."""
    kernel_inputs = list[torch.Tensor]()

    def kernel(*qkv: torch.Tensor, **_: object) -> torch.Tensor:
        kernel_inputs.extend(qkv)
        return qkv[2]

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", kernel)
    with elsewhere() as device:
        rows = torch.zeros(3, 2, 5, 16 * 4 + 3, dtype=torch.bfloat16).to(device)[..., :-3]
        q, k, v = rows.unflatten(-1, (4, 16)).transpose(2, 3)
        assert v.stride(-2) % 8
        sdpa.run(Mechanism(mask=Causal()), q, k, v)
    assert len(kernel_inputs) == 3
    assert not any(start % 8 for x in kernel_inputs for start in (*x.stride()[:-1], x.storage_offset()))


@pytest.mark.parametrize("sink", [0.0, 1.5, random(1, 4).float()], ids=["zero", "number", "per head"])
@pytest.mark.parametrize("mask", [None, "causal", Causal() & Window(2), Padding(random_booleans(2, 2, 5))])
def test_the_sink_is_a_prepended_key(sink: float | torch.Tensor, mask: object) -> None:
    q, k, v = floats()
    mechanism = replace(zoo_mechanism("softmax_sink"), normaliser=Sink(sink)).with_mask(mask)  # type: ignore[arg-type]
    assert gap(sdpa.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-6


def test_reasons_name_the_score() -> None:
    q, k, _ = inputs()
    assert "Gram is a dot product, which" in sdpa.explain_lowering(zoo_mechanism("scaled_dot"), q, k)
    assert "a dot product plus a bias per key" in sdpa.explain_lowering(zoo_mechanism("metric"), q, k)
    assert "of mapped tokens" in sdpa.explain_lowering(zoo_mechanism("bilinear"), q, k)
    assert "sink as a zero key" in sdpa.explain_lowering(zoo_mechanism("softmax_sink"), q, k)
