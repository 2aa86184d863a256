"""On a GPU: every mechanism equals the float64 reference, forward and backward, in every precision."""

from dataclasses import replace

import jaxtyping
import pytest
import torch
from torch import Tensor

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.mask import BooleanMask, Causal, Mask, Padding, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.position import Rotary
from rheoscope.attention.position_bias import ALiBi, Buckets, alibi_slopes
from rheoscope.attention.score import Gram, SoftCap
from rheoscope.attention.zoo import ZOO
from tests.attention.cases import gradients, random, random_booleans

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # torch's compiler reads it on every tensor
]

HEADS, WIDTH = 4, 32
ROUNDING = {torch.float32: 2e-5, torch.float16: 8e-4, torch.bfloat16: 6e-3}
"""The allowed relative error against float64; float16 has 11 significant bits, bfloat16 8."""
MORE_MECHANISMS = {
    "soft-cap": lambda: Mechanism(SoftCap(Gram(), 5.0)),
    "alibi": lambda: Mechanism(position=ALiBi(alibi_slopes(HEADS))),
    "alibi metric": lambda: replace(ZOO["metric"](sigma=4.0), position=ALiBi(alibi_slopes(HEADS))),
    "rotary": lambda: Mechanism(position=Rotary()),
    "rotary cosine": lambda: replace(ZOO["cosine"](), position=Rotary()),
    "buckets": lambda: Mechanism(position=Buckets(random(1, 32, HEADS).float())),
    "near buckets": lambda: Mechanism(position=Buckets(random(1, 8, HEADS).float(), max_distance=20)),
    "sink a head": lambda: ZOO["softmax_sink"](sink=random(2, HEADS).float()),
}
OPTIONS = {"metric": {"sigma": 4.0}, "kernel_rbf": {"gamma": 0.03}, "sinkhorn": {"rounds": 3}}
"""Options that keep the scores of order 1. Half precision cannot rank keys with larger scores."""


def mechanism(name: str, dtype: torch.dtype) -> Mechanism:
    entry = ZOO.get(name)
    result = (
        MORE_MECHANISMS[name]()
        if entry is None
        else entry(**OPTIONS.get(name, {}), **({"dim": WIDTH} if entry.needs_dim else {}))
    )
    return with_tensors(result, {path: x.to("cuda", dtype) for path, x in tensors_by_path(result).items()})


def tokens(m: int, n: int, dtype: torch.dtype, heads: int = HEADS) -> tuple[Tensor, ...]:
    shapes = [(2, HEADS, m, WIDTH), (2, heads, n, WIDTH), (2, heads, n, WIDTH)]
    return tuple(random(seed, *shape).to("cuda", dtype) for seed, shape in enumerate(shapes))


def relative_error(actual: Tensor, exact: Tensor) -> float:
    assert actual.shape == exact.shape
    size = float(exact.double().norm())
    return float((actual.double() - exact.double()).norm()) / size if size else float(actual.double().norm())


def assert_equals_reference(attention: Mechanism, inputs: tuple[Tensor, ...], lowering: str | None = None) -> None:
    """Outputs and gradients equal the float64 reference. The gradients of parameters accumulate the errors of all pairs."""
    dtype = inputs[0].dtype
    g = random(9, *inputs[0].shape[:3], WIDTH).to("cuda", dtype)
    exact = with_tensors(
        attention, {path: x.double() for path, x in tensors_by_path(attention).items() if x.is_floating_point()}
    )
    doubles = tuple(x.double() for x in inputs)
    expected = reference_attention(exact, *doubles)[0]
    with torch.no_grad():
        assert relative_error(attention.attend(*inputs, lowering=lowering), expected) < ROUNDING[dtype]
    if not attention.domain.is_differentiable:
        return
    actual = gradients(lambda f, *qkv: f.attend(*qkv, lowering=lowering), attention, inputs, g)
    expected_gradients = gradients(lambda f, *qkv: reference_attention(f, *qkv)[0], exact, doubles, g.double())
    for name in actual:
        limit = (3 if name in "qkv" else 20) * ROUNDING[dtype]
        assert relative_error(actual[name], expected_gradients[name]) < limit, name


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", [*ZOO, *MORE_MECHANISMS])
def test_every_mechanism_equals_the_reference(name: str, dtype: torch.dtype) -> None:
    """192 tokens, 64 more than a multiple of 128, or 321 tokens, which is odd."""
    attention, n = mechanism(name, dtype), 321 if dtype is torch.float16 else 192
    assert_equals_reference(
        attention.with_mask("causal" if attention.domain.allows_masks else None), tokens(n, n, dtype)
    )


MASKS: dict[str, Mask] = {
    "window": Causal() & Window(50),
    "padding": Causal() & Padding(random_booleans(1, 2, 192)),
    "no key at all": BooleanMask(random_booleans(2, 2, HEADS, 192, 192) & (torch.arange(192) % 64 > 0)[:, None]),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "metric", "softmax_sink", "soft-cap", "entmax15"])
def test_mask_tables_equal_the_reference(name: str, mask: str) -> None:
    mask_on_gpu = with_tensors(m := MASKS[mask], {path: x.cuda() for path, x in tensors_by_path(m).items()})
    assert_equals_reference(mechanism(name, torch.bfloat16).with_mask(mask_on_gpu), tokens(192, 192, torch.bfloat16))


PAIRWISE_CASES = {
    "soft-cap": ("soft-cap", "causal"),
    "kernel_laplace": ("kernel_laplace", "causal"),
    "buckets of a long past": ("near buckets", "causal"),
    "sink, padding": ("sink a head", "padding"),
    "rows without a key": ("scaled_dot", "no key at all"),
}


@pytest.mark.parametrize("case", PAIRWISE_CASES)
def test_pairwise_functions_equal_the_reference(case: str) -> None:
    """On flex_attention, which is compiled for each case, at a size for which other lowerings would be chosen."""
    name, mask = PAIRWISE_CASES[case]
    attention = mechanism(name, torch.bfloat16)
    if mask in MASKS:
        cpu_mask = MASKS[mask]
        attention = attention.with_mask(
            with_tensors(cpu_mask, {path: x.cuda() for path, x in tensors_by_path(cpu_mask).items()})
        )
    else:
        attention = attention.with_mask(mask)
    assert_equals_reference(attention, tokens(192, 192, torch.bfloat16), lowering="flex")


@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "metric", "softmax_sink", "bilinear", "soft-cap"])
@pytest.mark.parametrize(("m", "n"), [(192, 192), (70, 321), (1, 321)])
def test_grouped_heads_with_a_cache_equal_the_reference(name: str, m: int, n: int) -> None:
    assert_equals_reference(mechanism(name, torch.bfloat16).with_mask("causal"), tokens(m, n, torch.bfloat16, heads=2))


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("n", [17, 192])
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "soft-cap", "sigmoid"])
def test_unaligned_rows_equal_the_reference(name: str, n: int, dtype: torch.dtype) -> None:
    """Rows that share a tensor with three gates are unaligned; torch's kernels fail on them or read wrong numbers."""
    gated = [random(seed, 2, n, HEADS * WIDTH + 3).to("cuda", dtype)[..., :-3] for seed in range(3)]
    q, k, v = (x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for x in gated)
    assert_equals_reference(mechanism(name, dtype).with_mask("causal"), (q, k, v))


@pytest.mark.filterwarnings("ignore")  # torch's compiler emits its own
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("n", [17, 192])
def test_unaligned_rows_compile_to_one_graph(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the shape checks of these tests break the graph
    attention, gated = (
        mechanism("scaled_dot", dtype).with_mask("causal"),
        random(1, 2, n, 3 * HEADS * WIDTH + 3).to("cuda", dtype),
    )

    def attend(gated: Tensor) -> Tensor:
        parts = gated[..., :-3].unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return attention.attend(*parts)

    exact = reference_attention(
        attention, *gated.double()[..., :-3].unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
    )[0]
    assert relative_error(torch.compile(attend, fullgraph=True)(gated), exact) < ROUNDING[dtype]


@pytest.mark.parametrize("name", ["scaled_dot", "bilinear", "cosine", "metric", "mahalanobis", "softmax_sink", "alibi"])
def test_folds_are_as_exact_as_the_kernel(name: str) -> None:
    """The error of a fold is at most 1.5 times that of SDPA, or twice for a cosine, which rounds both rows."""
    q, k, v = tokens(512, 512, torch.bfloat16)
    folded, plain = (
        mechanism(name, torch.bfloat16).with_mask("causal"),
        mechanism("scaled_dot", torch.bfloat16).with_mask("causal"),
    )
    assert folded.explain(q, k, v).name == "cudnn"
    doubles = tuple(x.double() for x in (q, k, v))
    exact = [with_tensors(f, {path: x.double() for path, x in tensors_by_path(f).items()}) for f in (folded, plain)]
    fold_error, sdpa_error = (
        relative_error(f.attend(q, k, v), reference_attention(e, *doubles)[0])
        for f, e in zip((folded, plain), exact, strict=True)
    )
    assert fold_error < (2.0 if name == "cosine" else 1.5) * sdpa_error
