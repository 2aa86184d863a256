"""The Triton kernels equal the definition, in Triton's interpreter without a GPU and compiled with one."""

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
from rheoscope.attention.normaliser.linear import DivideBySum
from rheoscope.attention.normaliser.sigmoid import Sigmoid
from rheoscope.attention.normaliser.sink import Sink
from rheoscope.attention.normaliser.sinkhorn import Sinkhorn
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, Bias, alibi_slopes
from rheoscope.attention.score import Distance, Gram
from tests.attention.cases import gap, inputs, random, to_dtype, zoo_mechanism
from tests.interpreter import patch_interpreter

CUDA = torch.cuda.is_available()


def interpreter_problem() -> str:
    """Import Triton with its interpreter, and return "" or the reason why that is impossible."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if CUDA:
        return "there is a GPU, which runs the compiled kernels"
    setting = os.environ.get("TRITON_INTERPRET")
    if "triton" in sys.modules and setting != "1":
        return "Triton was imported without its interpreter: run this file alone"
    os.environ["TRITON_INTERPRET"] = "1"
    patch_interpreter()

    if setting is None:
        del os.environ["TRITON_INTERPRET"]
    return ""


INTERPRETER_PROBLEM = interpreter_problem()


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton reads the variable again when a kernel runs."""
    if not INTERPRETER_PROBLEM:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


by_interpreter = pytest.mark.skipif(bool(INTERPRETER_PROBLEM), reason=INTERPRETER_PROBLEM)

CASES: dict[str, tuple[Mechanism, str | None, int, int]] = {
    "sigmoid": (zoo_mechanism("sigmoid"), "causal", 70, 70),
    "sigmoid of distances": (Mechanism(Distance(scale=0.3), normaliser=Sigmoid(-1.0)), None, 33, 70),
    "relu": (zoo_mechanism("relu"), "causal", 40, 70),
    "relu without mask": (zoo_mechanism("relu"), None, 70, 33),
    "sparsemax": (zoo_mechanism("sparsemax"), None, 40, 70),
    "entmax15 with slopes": (replace(zoo_mechanism("entmax15"), position=ALiBi(alibi_slopes(2))), "causal", 70, 70),
    "entmax of distances, rotary": (
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
    "sinkhorn of large scores": (Mechanism(Gram(scale=30.0), normaliser=Sinkhorn(2)), None, 20, 20),
    "linear": (zoo_mechanism("linear"), "causal", 70, 70),
    "linear of mapped tokens": (zoo_mechanism("linear"), None, 33, 70),
    "linear, rotary": (Mechanism(Gram(EluPlusOne()), position=Rotary(), normaliser=DivideBySum()), "causal", 70, 70),
    "laplace": (zoo_mechanism("kernel_laplace"), "causal", 40, 70),
    "laplace without mask, rotary": (Mechanism(Laplace(0.5), position=Rotary()), None, 70, 33),
    "additive, rotary": (replace(zoo_mechanism("additive"), position=Rotary()), "causal", 20, 40),
}


def outputs_and_gradients(
    run: Callable[[Mechanism, Tensor, Tensor, Tensor], Tensor], mechanism: Mechanism, qkv: list[Tensor], g: Tensor
) -> list[Tensor]:
    """The output, and the gradients of q, k, v and of every parameter."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    parameters = {
        path: x.detach().requires_grad_() for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()
    }
    out = run(with_tensors(mechanism, parameters), *leaves)
    gradients = torch.autograd.grad(out, [*leaves, *parameters.values()], g.to(out), allow_unused=True)
    return [out.detach(), *(torch.zeros(1) if x is None else x for x in gradients)]


def run_kernel(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kernel = kernels.kernel_for(mechanism, q, k)
    assert kernel is not None
    assert not kernel.refusal(mechanism, q, k)
    return kernel.run(mechanism, q, k, v)


@by_interpreter
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_definition(name: str) -> None:
    mechanism, mask, m, n = CASES[name]
    q, k, v = inputs(m, n, d=16 if name == "linear" else 6, b=1, h=2, g=1)
    mechanism = mechanism.with_mask(mask)
    g = random(5, 1, 2, m, 5 if "mapped values" in name else 3)
    exact = outputs_and_gradients(lambda *call: reference_attention(*call)[0], mechanism, [q, k, v], g)
    actual = outputs_and_gradients(run_kernel, to_dtype(mechanism, torch.float32), [q.float(), k.float(), v.float()], g)
    assert max(gap(x, y) / max(1, float(y.abs().max())) for x, y in zip(actual, exact, strict=True)) < 1e-5


@by_interpreter
@pytest.mark.parametrize(("scale", "is_stable"), [(1.0, True), (30.0, False)])
def test_half_rounds_are_combined_if_potentials_change_little(scale: float, is_stable: bool) -> None:
    from rheoscope.attention.lower.kernels import sinkhorn

    q, k, v = (x.float() for x in inputs(20, 20, d=16, e=16, b=1, h=1, g=1))
    _, f, g = sinkhorn.sinkhorn(q, k, v, scale, 2)
    f_rounds, g_rounds = f.repeat_interleave(2, 0)[:-1], g.repeat_interleave(2, 0)[1:]
    assert bool(sinkhorn._round_factors(f_rounds, g_rounds, f_rounds, g_rounds)[1]) is is_stable


@by_interpreter
@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.2])
@pytest.mark.parametrize("score_size", [0.0, 30.0], ids=["all scores equal", "one large score"])
def test_thresholds_of_equal_and_of_large_scores(alpha: float, score_size: float) -> None:
    q, k, v = inputs(40, 40, b=1, h=1, g=1, scale=score_size)
    mechanism = Mechanism(normaliser=Entmax(alpha)).with_mask("causal")
    actual = run_kernel(mechanism, q.float(), k.float(), v.float())
    assert gap(actual, reference_attention(mechanism, q, k, v)[0]) < 2e-5


STATISTICS_CASES = {
    "softmax": (zoo_mechanism("scaled_dot"), "causal", 70, 70, None),
    "distances": (zoo_mechanism("metric"), None, 40, 70, None),
    "slopes": (replace(zoo_mechanism("scaled_dot"), position=ALiBi(alibi_slopes(2))), "causal", 40, 70, None),
    "sink of padded texts": (Mechanism(normaliser=Sink(torch.tensor([0.5, -1.0]))), "causal", 70, 70, [70, 33]),
    "padded texts": (zoo_mechanism("scaled_dot"), None, 33, 33, [5, 33]),
}


@by_interpreter
@pytest.mark.parametrize("name", STATISTICS_CASES)
def test_kernel_statistics_equal_those_of_blocks(name: str) -> None:
    from rheoscope.attention.lower.kernels.weights import softmax_statistics

    mechanism, mask, m, n, text_lengths = STATISTICS_CASES[name]
    mechanism = mechanism.with_mask(mask)
    q, k, _ = inputs(m, n, h=2, g=1)
    lengths = None if text_lengths is None else torch.tensor(text_lengths)
    exact = weight_statistics(mechanism, q, k, lengths=lengths)
    fused = mechanism.normaliser.fused_softmax
    assert fused is not None
    sink = fused.sink if isinstance(fused.sink, Tensor) else None
    actual = softmax_statistics(
        dot_inputs(mechanism, q.float(), k.float()), mechanism.mask.is_causal, sink, lengths
    )._asdict()
    assert actual.keys() == exact.keys()
    assert max(gap(actual[name], exact[name]) for name in exact) < 1e-5


def logsumexp_error(n: int, causal: bool, dtype: torch.dtype, device: str) -> float:
    """The error of the kernel against logsumexp and its gradient in float64."""
    from rheoscope.attention.lower.kernels.log_totals import row_logsumexp

    q, k = (random(seed, 2, 2, n, 16).to(device, dtype) for seed in range(2))
    s = q.double() @ k.double().mT
    s = s.masked_fill(torch.ones(n, n, device=device).triu(1).bool(), -torch.inf) if causal else s
    log_sum, mean_key = row_logsumexp(q, k, 1.0, causal, return_mean=True)
    log_sum_alone, no_mean = row_logsumexp(q, k, 1.0, causal, return_mean=False)
    assert torch.equal(log_sum_alone, log_sum)
    assert no_mean.numel() == 0
    return max(gap(log_sum, s.logsumexp(-1)), gap(mean_key, s.softmax(-1) @ k.double()))


@by_interpreter
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernel_computes_logsumexp_and_its_gradient(causal: bool) -> None:
    assert logsumexp_error(70, causal, torch.float32, "cpu") < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
def test_on_a_gpu_the_kernel_computes_logsumexp_and_its_gradient(causal: bool) -> None:
    assert logsumexp_error(300, causal, torch.float32, "cuda") < 2e-5


@by_interpreter
def test_the_operators_pass_opcheck() -> None:
    """torch's checks of the schema, of the autograd registration and of fake tensors."""
    from rheoscope.attention.lower.kernels.pointwise import pointwise

    q = torch.randn(1, 1, 5, 16, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(pointwise, (q, q, q, None, None, 0.5, 0.0, True, True), test_utils=checks)


def refusal(mechanism: Mechanism, m: int = 5, n: int = 5, d: int = 6, dtype: torch.dtype = torch.float32) -> str:
    """The refusal of meta tensors, whose device counts as a GPU here, or "" if a kernel accepts them."""
    q, k, v = (torch.empty(1, 2, tokens, d, dtype=dtype, device="meta") for tokens in (m, n, n))
    meta_tensors = {path: x.to("meta") for path, x in tensors_by_path(mechanism).items()}
    outcome = kernels.try_lower(with_tensors(mechanism, meta_tensors), q, k, v)
    return "" if isinstance(outcome, LoweredCall) else outcome


def test_calls_that_kernels_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "HAS_TRITON", True)
    monkeypatch.setattr(reading, "KERNEL_DEVICE", "meta")
    sigmoid, sinkhorn = zoo_mechanism("sigmoid"), zoo_mechanism("sinkhorn")
    assert refusal(sigmoid) == refusal(sigmoid.with_mask("causal"), 3, 5) == refusal(sigmoid, 5, 3) == ""
    assert "need no mask, or the causal mask" in refusal(sigmoid.with_mask("causal"), 5, 3)
    assert "need no mask, or the causal mask" in refusal(sigmoid.with_mask(Window(2)))
    assert "float64" in refusal(sigmoid, dtype=torch.float64)
    assert "at least one query and key" in refusal(sigmoid, 5, 0)
    assert "at most 128" in refusal(sigmoid, d=130)
    assert "adds a bias to every pair" in refusal(replace(sigmoid, position=ALiBi(alibi_slopes(2))).with_mask("causal"))
    assert refusal(replace(zoo_mechanism("entmax15"), position=ALiBi(alibi_slopes(2))).with_mask("causal")) == ""
    assert "adds a bias to every pair" in refusal(
        replace(zoo_mechanism("entmax15"), position=Bias(torch.zeros(2, 5, 5)))
    )
    assert "plain inner products" in refusal(replace(sinkhorn, score=Distance()))
    assert "as many queries as keys" in refusal(zoo_mechanism("linear").with_mask("causal"), 3, 5)
    assert "cannot be written as a dot product" in refusal(
        replace(zoo_mechanism("kernel_laplace"), normaliser=Sigmoid())
    )
    assert "no Triton kernel computes" in refusal(Mechanism(normaliser=Entmax(3.0)))
    assert "no Triton kernel computes" in refusal(zoo_mechanism("scaled_dot"))
    assert "adds a bias to every pair" in refusal(replace(zoo_mechanism("additive"), position=ALiBi(alibi_slopes(2))))
    assert refusal(replace(zoo_mechanism("additive"), position=Rotary())) == ""
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    assert "Triton is not installed" in refusal(sigmoid)


def test_on_a_cpu_other_lowerings_are_used() -> None:
    q, k, v = (x.float() for x in inputs())
    assert "got tensors on cpu" in zoo_mechanism("sigmoid").explain(q, k, v).rejections["kernels"]
    assert (
        kernels.statistics_refusal(zoo_mechanism("scaled_dot"), q, k)
        == "kernels run on a CUDA device, got tensors on cpu"
    )


@pytest.mark.parametrize("mask", [None, "causal"])
def test_padded_texts_have_the_statistics_of_single_texts(mask: str | None) -> None:
    q, k, _ = inputs(7, 7)
    batched = weight_statistics(zoo_mechanism("sigmoid"), q, k, mask, lengths=torch.tensor([7, 4]))
    for text, length in enumerate((7, 4)):
        single = weight_statistics(zoo_mechanism("sigmoid"), q[text, None, :, :length], k[text, None, :, :length], mask)
        for name, expected in single.items():
            assert gap(batched[name][text, None, :, :length], expected) < 1e-12
            assert not batched[name][text, :, length:].any()


GPU_MECHANISMS = ("sigmoid", "relu", "sparsemax", "entmax15", "linear", "additive", "sinkhorn", "kernel_laplace")
SIZES = [(torch.bfloat16, n) for n in (192, 321, 1024)] + [(torch.float16, 321), (torch.float32, 321)]
ROUNDING = {torch.bfloat16: 3.8e-3, torch.float16: 4.7e-4, torch.float32: 4e-6}
"""1.5 times the relative error of torch's attention and its gradients; float32 uses three TF32 products."""


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "n"), SIZES, ids=str)
@pytest.mark.parametrize("name", GPU_MECHANISMS)
def test_on_a_gpu_kernels_are_as_exact_as_softmax(name: str, dtype: torch.dtype, n: int) -> None:
    mechanism = Mechanism(normaliser=Sinkhorn(3)) if name == "sinkhorn" else zoo_mechanism(name, dim=64)
    mechanism = with_tensors(mechanism, {path: x.float().cuda() for path, x in tensors_by_path(mechanism).items()})
    mechanism = mechanism.with_mask("causal") if mechanism.domain.allows_masks else mechanism
    q, k, v, g = (random(seed, 2, 3, n, 64, dtype=dtype).cuda() for seed in range(4))
    choice = mechanism.explain(q, k, v)
    assert choice.name == "kernels", str(choice)
    exact = outputs_and_gradients(
        lambda *call: reference_attention(*call)[0],
        to_dtype(mechanism, torch.float64),
        [x.double() for x in (q, k, v)],
        g,
    )
    actual = outputs_and_gradients(lambda mechanism, *qkv: mechanism(*qkv), mechanism, [q, k, v], g)
    assert max(relative_error(x, y) for x, y in zip(actual[:4], exact[:4], strict=True)) < ROUNDING[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "n"), SIZES, ids=str)
def test_on_a_gpu_statistics_equal_those_of_float64(dtype: torch.dtype, n: int) -> None:
    q, k = (random(seed, 2, 3, n, 64, dtype=dtype).cuda() for seed in range(2))
    lengths = torch.tensor([n, n // 3], device="cuda")
    actual = weight_statistics(zoo_mechanism("scaled_dot"), q, k, "causal", lengths=lengths)
    exact = weight_statistics(zoo_mechanism("scaled_dot"), q.double(), k.double(), "causal", lengths=lengths)
    assert max(gap(actual[name], exact[name]) for name in exact) < 1e-5


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch's compiler emits its own
def test_on_a_gpu_kernels_compile_into_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the shape checks of these tests break the graph
    mechanism = zoo_mechanism("sigmoid")
    q, k, v = (random(seed, 1, 2, 192, 64, dtype=torch.float32).cuda().requires_grad_() for seed in range(3))
    compiled = torch.compile(lambda q, k, v: mechanism.attend(q, k, v, "causal"), fullgraph=True)
    compiled_gradients, eager_gradients = (
        torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (compiled, lambda *x: mechanism.attend(*x, "causal"))
    )
    assert max(gap(x, y) for x, y in zip(compiled_gradients, eager_gradients, strict=True)) < 1e-5
