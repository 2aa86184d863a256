"""Our own kernels against the definition: by Triton's interpreter where there is no GPU, compiled where there is one."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import jaxtyping
import pytest
import torch
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.feature_maps import EluPlusOne, Linear, UnitNorm
from rheoscope.attention.kernel_score import Laplace
from rheoscope.attention.lower.kernels import dots as reading
from rheoscope.attention.lower.kernels import triton_lowerings as kernels
from rheoscope.attention.lower.kernels.dots import dot_inputs
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.lower.statistics import weight_statistics
from rheoscope.attention.mask import Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.normaliser.entmax import Entmax
from rheoscope.attention.normaliser.linear import DivideBySum as DivideBySum
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, Bias, alibi_slopes
from rheoscope.attention.score import Distance, Gram
from tests.attention.cases import gap, inputs, random, to_dtype, zoo_mechanism
from tests.interpreter import mend_interpreter

CUDA = torch.cuda.is_available()


def interpreted() -> str:
    """Triton with its interpreter, which is asked for when it is first imported; or why it cannot be had."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if CUDA:
        return "there is a GPU: the kernels themselves are tested"
    asked = os.environ.get("TRITON_INTERPRET")
    if "triton" in sys.modules and asked != "1":
        return "Triton was imported without its interpreter: run this file alone"
    os.environ["TRITON_INTERPRET"] = "1"
    mend_interpreter()

    if asked is None:
        del os.environ["TRITON_INTERPRET"]
    return ""


WITHOUT = interpreted()


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton looks again while a kernel runs."""
    if not WITHOUT:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


by_interpreter = pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)

CASES: dict[str, tuple[Mechanism, str | None, int, int]] = {
    "sigmoid": (zoo_mechanism("sigmoid"), "causal", 70, 70),
    "sigmoid of distances": (Mechanism(Distance(scale=0.3), normaliser=Sigmoid(-1.0)), None, 33, 70),
    "relu": (zoo_mechanism("relu"), "causal", 40, 70),
    "relu of all": (zoo_mechanism("relu"), None, 70, 33),
    "sparsemax": (zoo_mechanism("sparsemax"), None, 40, 70),
    "entmax15 with slopes": (replace(zoo_mechanism("entmax15"), position=ALiBi(alibi_slopes(2))), "causal", 70, 70),
    "entmax of distances, turned": (
        Mechanism(Distance(scale=0.3), position=Rotary(), normaliser=Entmax(1.3)),
        "causal",
        40,
        70,
    ),
    "entmax15 with mapped values": (
        Mechanism(Gram(UnitNorm(), 3.0), normaliser=Entmax(), value=Linear(random(9, 3, 5))),
        None,
        33,
        33,
    ),
    "sinkhorn": (Mechanism(normaliser=Sinkhorn(2)), None, 70, 70),
    "sinkhorn of many rounds": (Mechanism(normaliser=Sinkhorn(9)), None, 20, 20),
    "sinkhorn of scores far apart": (Mechanism(Gram(scale=30.0), normaliser=Sinkhorn(2)), None, 20, 20),
    "linear": (zoo_mechanism("linear"), "causal", 70, 70),
    "linear of mapped tokens": (zoo_mechanism("linear"), None, 33, 70),
    "linear, turned": (Mechanism(Gram(EluPlusOne()), position=Rotary(), normaliser=DivideBySum()), "causal", 70, 70),
    "laplace": (zoo_mechanism("kernel_laplace"), "causal", 40, 70),
    "laplace of all, turned": (Mechanism(Laplace(0.5), position=Rotary()), None, 70, 33),
    "additive, turned": (replace(zoo_mechanism("additive"), position=Rotary()), "causal", 20, 40),
}


def answers(
    run: Callable[[Mechanism, Tensor, Tensor, Tensor], Tensor], mechanism: Mechanism, qkv: list[Tensor], g: Tensor
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and of every tensor inside."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    held = {at: x.detach().requires_grad_() for at, x in tensors_by_path(mechanism).items() if x.is_floating_point()}
    out = run(with_tensors(mechanism, held), *leaves)
    pulled = torch.autograd.grad(out, [*leaves, *held.values()], g.to(out), allow_unused=True)
    return [out.detach(), *(torch.zeros(1) if x is None else x for x in pulled)]


def run_kernel(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found = kernels.kernel_for(mechanism, q, k)
    assert found is not None
    assert not found.refusal(mechanism, q, k)
    return found.run(mechanism, q, k, v)


@by_interpreter
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_the_definition(name: str) -> None:
    mechanism, mask, m, n = CASES[name]
    q, k, v = inputs(m, n, d=16 if name == "linear" else 6, b=1, h=2, g=1)
    mechanism = mechanism.with_mask(mask)
    g = random(5, 1, 2, m, 5 if "mapped values" in name else 3)
    exact = answers(lambda *call: reference_attention(*call)[0], mechanism, [q, k, v], g)
    own = answers(run_kernel, to_dtype(mechanism, torch.float32), [q.float(), k.float(), v.float()], g)
    assert max(gap(x, y) / max(1, float(y.abs().max())) for x, y in zip(own, exact, strict=True)) < 1e-5


@by_interpreter
@pytest.mark.parametrize(("scale", "near"), [(1.0, True), (30.0, False)])
def test_half_rounds_are_taken_together_where_potentials_stay_near(scale: float, near: bool) -> None:
    from rheoscope.attention.lower.kernels import sinkhorn

    q, k, v = (x.float() for x in inputs(20, 20, d=16, e=16, b=1, h=1, g=1))
    _, f, g = sinkhorn.sinkhorn(q, k, v, scale, 2)
    fs, gs = f.repeat_interleave(2, 0)[:-1], g.repeat_interleave(2, 0)[1:]
    assert bool(sinkhorn._round_factors(fs, gs, fs, gs)[1]) is near


@by_interpreter
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.2])
@pytest.mark.parametrize("stretch", [0.0, 30.0], ids=["all scores equal", "one key far above"])
def test_thresholds_are_found_from_any_scores(alpha: float, stretch: float) -> None:
    q, k, v = inputs(40, 40, b=1, h=1, g=1, scale=stretch)
    mechanism = Mechanism(normaliser=Entmax(alpha)).with_mask("causal")
    own = run_kernel(mechanism, q.float(), k.float(), v.float())
    assert gap(own, reference_attention(mechanism, q, k, v)[0]) < 2e-5


STATISTICS = {
    "softmax": (zoo_mechanism("scaled_dot"), "causal", 70, 70, None),
    "distances": (zoo_mechanism("metric"), None, 40, 70, None),
    "slopes": (replace(zoo_mechanism("scaled_dot"), position=ALiBi(alibi_slopes(2))), "causal", 40, 70, None),
    "sink of padded texts": (Mechanism(normaliser=Sink(torch.tensor([0.5, -1.0]))), "causal", 70, 70, [70, 33]),
    "padded texts": (zoo_mechanism("scaled_dot"), None, 33, 33, [5, 33]),
}


@by_interpreter
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_those_of_blocks(name: str) -> None:
    from rheoscope.attention.lower.kernels.weights import softmax_statistics

    mechanism, mask, m, n, long = STATISTICS[name]
    mechanism = mechanism.with_mask(mask)
    q, k, _ = inputs(m, n, h=2, g=1)
    lengths = None if long is None else torch.tensor(long)
    exact = weight_statistics(mechanism, q, k, lengths=lengths)
    fused = mechanism.normaliser.fused_softmax
    assert fused is not None
    sink = fused.sink if isinstance(fused.sink, Tensor) else None
    own = softmax_statistics(
        dot_inputs(mechanism, q.float(), k.float()), mechanism.mask.is_causal, sink, lengths
    )._asdict()
    assert own.keys() == exact.keys()
    assert max(gap(own[each], exact[each]) for each in exact) < 1e-5


def totals_are_logsumexp(n: int, causal: bool, dtype: torch.dtype, device: str) -> float:
    """How far the kernel is from logsumexp of the scores and its gradient, in float64."""
    from rheoscope.attention.lower.kernels.log_totals import row_logsumexp

    q, k = (random(seed, 2, 2, n, 16).to(device, dtype) for seed in range(2))
    s = q.double() @ k.double().mT
    s = s.masked_fill(torch.ones(n, n, device=device).triu(1).bool(), -torch.inf) if causal else s
    total, average = row_logsumexp(q, k, 1.0, causal, return_mean=True)
    alone, nothing = row_logsumexp(q, k, 1.0, causal, return_mean=False)
    assert torch.equal(alone, total)
    assert nothing.numel() == 0
    return max(gap(total, s.logsumexp(-1)), gap(average, s.softmax(-1) @ k.double()))


@by_interpreter
@pytest.mark.parametrize("causal", [True, False])
def test_totals_are_logsumexp_and_its_gradient(causal: bool) -> None:
    assert totals_are_logsumexp(70, causal, torch.float32, "cpu") < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
def test_on_a_gpu_totals_are_logsumexp_and_its_gradient(causal: bool) -> None:
    assert totals_are_logsumexp(300, causal, torch.float32, "cuda") < 2e-5


@by_interpreter
def test_torch_knows_the_operators() -> None:
    """Shapes without numbers, gradients and compiled graphs, as torch's own check asks for them."""
    from rheoscope.attention.lower.kernels.pointwise import pointwise

    q = torch.randn(1, 1, 5, 16, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(pointwise, (q, q, q, None, None, 0.5, 0.0, True, True), test_utils=checks)


def said(mechanism: Mechanism, m: int = 5, n: int = 5, d: int = 6, dtype: torch.dtype = torch.float32) -> str:
    """What is said of tensors that hold nothing, on a device that counts as a GPU; nothing where a kernel takes them."""
    q, k, v = (torch.empty(1, 2, tokens, d, dtype=dtype, device="meta") for tokens in (m, n, n))
    there = {at: x.to("meta") for at, x in tensors_by_path(mechanism).items()}
    answer = kernels.try_lower(with_tensors(mechanism, there), q, k, v)
    return "" if isinstance(answer, LoweredCall) else answer


def test_what_kernels_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HAS_TRITON", True)
    monkeypatch.setattr(reading, "KERNEL_DEVICE", "meta")
    sigmoid, sinkhorn = zoo_mechanism("sigmoid"), zoo_mechanism("sinkhorn")
    assert said(sigmoid) == said(sigmoid.with_mask("causal"), 3, 5) == said(sigmoid, 5, 3) == ""
    assert "the mask is another" in said(sigmoid.with_mask("causal"), 5, 3)
    assert "the mask is another" in said(sigmoid.with_mask(Window(2)))
    assert "float64" in said(sigmoid, dtype=torch.float64)
    assert "at least one query and key" in said(sigmoid, 5, 0)
    assert "up to 128" in said(sigmoid, d=130)
    assert "bias of its own" in said(replace(sigmoid, position=ALiBi(alibi_slopes(2))).with_mask("causal"))
    assert said(replace(zoo_mechanism("entmax15"), position=ALiBi(alibi_slopes(2))).with_mask("causal")) == ""
    assert "bias of its own" in said(replace(zoo_mechanism("entmax15"), position=Bias(torch.zeros(2, 5, 5))))
    assert "bare inner products" in said(replace(sinkhorn, score=Distance()))
    assert "more keys than queries" in said(zoo_mechanism("linear").with_mask("causal"), 3, 5)
    assert "cannot be written as a dot product" in said(replace(zoo_mechanism("kernel_laplace"), normaliser=Sigmoid()))
    assert "no kernel of our own" in said(Mechanism(normaliser=Entmax(3.0)))
    assert "no kernel of our own" in said(zoo_mechanism("scaled_dot"))
    assert "bias of its own" in said(replace(zoo_mechanism("additive"), position=ALiBi(alibi_slopes(2))))
    assert said(replace(zoo_mechanism("additive"), position=Rotary())) == ""
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    assert "Triton is not installed" in said(sigmoid)


def test_on_a_cpu_other_lowerings_are_taken() -> None:
    q, k, v = (x.float() for x in inputs())
    assert "on the cpu" in zoo_mechanism("sigmoid").explain(q, k, v).rejections["kernels"]
    assert (
        kernels.statistics_refusal(zoo_mechanism("scaled_dot"), q, k)
        == "kernels run on a CUDA device, the tensors are on the cpu"
    )


@pytest.mark.parametrize("mask", [None, "causal"])
def test_padded_texts_have_the_statistics_of_each_alone(mask: str | None) -> None:
    q, k, _ = inputs(7, 7)
    got = weight_statistics(zoo_mechanism("sigmoid"), q, k, mask, lengths=torch.tensor([7, 4]))
    for text, long in enumerate((7, 4)):
        alone = weight_statistics(zoo_mechanism("sigmoid"), q[text, None, :, :long], k[text, None, :, :long], mask)
        for name, part in alone.items():
            assert gap(got[name][text, None, :, :long], part) < 1e-12
            assert not got[name][text, :, long:].any()


ON_GPU = ("sigmoid", "relu", "sparsemax", "entmax15", "linear", "additive", "sinkhorn", "kernel_laplace")
SIZES = [(torch.bfloat16, n) for n in (192, 321, 1024)] + [(torch.float16, 321), (torch.float32, 321)]
ROUNDING = {torch.bfloat16: 3.8e-3, torch.float16: 4.7e-4, torch.float32: 4e-6}
"""1.5 times the relative error of torch's own attention and its gradients; float32 through three parts in TF32."""


def error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "n"), SIZES, ids=str)
@pytest.mark.parametrize("name", ON_GPU)
def test_on_a_gpu_kernels_are_as_exact_as_softmax(name: str, dtype: torch.dtype, n: int) -> None:
    mechanism = Mechanism(normaliser=Sinkhorn(3)) if name == "sinkhorn" else zoo_mechanism(name, dim=64)
    mechanism = with_tensors(mechanism, {at: x.float().cuda() for at, x in tensors_by_path(mechanism).items()})
    mechanism = mechanism.with_mask("causal") if mechanism.domain.allows_masks else mechanism
    q, k, v, g = (random(seed, 2, 3, n, 64, dtype=dtype).cuda() for seed in range(4))
    choice = mechanism.explain(q, k, v)
    assert choice.name == "kernels", str(choice)
    exact = answers(
        lambda *call: reference_attention(*call)[0],
        to_dtype(mechanism, torch.float64),
        [x.double() for x in (q, k, v)],
        g,
    )
    own = answers(lambda mechanism, *qkv: mechanism(*qkv), mechanism, [q, k, v], g)
    assert max(error(x, y) for x, y in zip(own[:4], exact[:4], strict=True)) < ROUNDING[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "n"), SIZES, ids=str)
def test_on_a_gpu_statistics_are_those_of_float64(dtype: torch.dtype, n: int) -> None:
    q, k = (random(seed, 2, 3, n, 64, dtype=dtype).cuda() for seed in range(2))
    lengths = torch.tensor([n, n // 3], device="cuda")
    own = weight_statistics(zoo_mechanism("scaled_dot"), q, k, "causal", lengths=lengths)
    exact = weight_statistics(zoo_mechanism("scaled_dot"), q.double(), k.double(), "causal", lengths=lengths)
    assert max(gap(own[each], exact[each]) for each in exact) < 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
def test_on_a_gpu_a_compiled_graph_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # shapes checked as in these tests break it
    mechanism = zoo_mechanism("sigmoid")
    q, k, v = (random(seed, 1, 2, 192, 64, dtype=torch.float32).cuda().requires_grad_() for seed in range(3))
    compiled = torch.compile(lambda q, k, v: mechanism.attend(q, k, v, "causal"), fullgraph=True)
    own, eager = (
        torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, lambda *x: mechanism.attend(*x, "causal"))
    )
    assert max(gap(x, y) for x, y in zip(own, eager, strict=True)) < 1e-5
