"""On a GPU: what every mechanism takes there is the float64 reference, forward and backward, in every precision."""

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
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor"
    ),  # torch's compiler looks at every tensor it meets
]

HEADS, WIDTH = 4, 32
ROUNDING = {torch.float32: 2e-5, torch.float16: 8e-4, torch.bfloat16: 6e-3}
"""How far results may be from float64, relative to their length: float16 keeps 11 bits of a number, bfloat16 8."""
MORE = {
    "soft-cap": lambda: Mechanism(SoftCap(Gram(), 5.0)),
    "alibi": lambda: Mechanism(position=ALiBi(alibi_slopes(HEADS))),
    "alibi metric": lambda: replace(ZOO["metric"](sigma=4.0), position=ALiBi(alibi_slopes(HEADS))),
    "rotary": lambda: Mechanism(position=Rotary()),
    "rotary cosine": lambda: replace(ZOO["cosine"](), position=Rotary()),
    "buckets": lambda: Mechanism(position=Buckets(random(1, 32, HEADS).float())),
    "near buckets": lambda: Mechanism(position=Buckets(random(1, 8, HEADS).float(), max_distance=20)),
    "sink a head": lambda: ZOO["softmax_sink"](sink=random(2, HEADS).float()),
}
MILD = {"metric": {"sigma": 4.0}, "kernel_rbf": {"gamma": 0.03}, "sinkhorn": {"rounds": 3}}
"""Options that keep scores of order 1: beyond, no half precision knows which key is the best."""


def mechanism(name: str, dtype: torch.dtype) -> Mechanism:
    row = ZOO.get(name)
    made = MORE[name]() if row is None else row(**MILD.get(name, {}), **({"dim": WIDTH} if row.needs_dim else {}))
    held = {at: x.to("cuda", dtype) for at, x in tensors_by_path(made).items()}
    return with_tensors(made, held)


def tokens(m: int, n: int, dtype: torch.dtype, heads: int = HEADS) -> tuple[Tensor, ...]:
    shapes = [(2, HEADS, m, WIDTH), (2, heads, n, WIDTH), (2, heads, n, WIDTH)]
    return tuple(random(at, *shape).to("cuda", dtype) for at, shape in enumerate(shapes))


def off(found: Tensor, exact: Tensor) -> float:
    assert found.shape == exact.shape
    size = float(exact.double().norm())
    return float((found.double() - exact.double()).norm()) / size if size else float(found.double().norm())


def agree(made: Mechanism, inputs: tuple[Tensor, ...], lowering: str | None = None) -> None:
    """Outputs and gradients against the reference in float64; those of its own tensors too, to which the errors of all pairs add."""
    dtype = inputs[0].dtype
    g = random(9, *inputs[0].shape[:3], WIDTH).to("cuda", dtype)
    exact = with_tensors(made, {at: x.double() for at, x in tensors_by_path(made).items() if x.is_floating_point()})
    doubles = tuple(x.double() for x in inputs)
    want = reference_attention(exact, *doubles)[0]
    with torch.no_grad():
        assert off(made.attend(*inputs, lowering=lowering), want) < ROUNDING[dtype]
    if not made.domain.is_differentiable:
        return
    found = gradients(lambda f, *qkv: f.attend(*qkv, lowering=lowering), made, inputs, g)
    right = gradients(lambda f, *qkv: reference_attention(f, *qkv)[0], exact, doubles, g.double())
    for at in found:
        assert off(found[at], right[at]) < (3 if at in "qkv" else 20) * ROUNDING[dtype], at


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", [*ZOO, *MORE])
def test_every_mechanism(name: str, dtype: torch.dtype) -> None:
    """At a length that is 64 more than a multiple of 128, or at one that is a multiple of nothing."""
    made, n = mechanism(name, dtype), 321 if dtype is torch.float16 else 192
    agree(made.with_mask("causal" if made.domain.allows_masks else None), tokens(n, n, dtype))


MASKS: dict[str, Mask] = {
    "window": Causal() & Window(50),
    "padding": Causal() & Padding(random_booleans(1, 2, 192)),
    "no key at all": BooleanMask(random_booleans(2, 2, HEADS, 192, 192) & (torch.arange(192) % 64 > 0)[:, None]),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "metric", "softmax_sink", "soft-cap", "entmax15"])
def test_masks_that_are_tables(name: str, mask: str) -> None:
    made = with_tensors(m := MASKS[mask], {at: x.cuda() for at, x in tensors_by_path(m).items()})
    agree(mechanism(name, torch.bfloat16).with_mask(made), tokens(192, 192, torch.bfloat16))


PAIRS = {
    "soft-cap": ("soft-cap", "causal"),
    "kernel_laplace": ("kernel_laplace", "causal"),
    "buckets of a long past": ("near buckets", "causal"),
    "sink, padding": ("sink a head", "padding"),
    "rows without a key": ("scaled_dot", "no key at all"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_functions_of_a_pair(case: str) -> None:
    """On flex_attention, which is compiled for each: at a size where others would be taken."""
    name, mask = PAIRS[case]
    made = mechanism(name, torch.bfloat16)
    if mask in MASKS:
        own = MASKS[mask]
        made = made.with_mask(with_tensors(own, {at: x.cuda() for at, x in tensors_by_path(own).items()}))
    else:
        made = made.with_mask(mask)
    agree(made, tokens(192, 192, torch.bfloat16), lowering="flex")


@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "metric", "softmax_sink", "bilinear", "soft-cap"])
@pytest.mark.parametrize(("m", "n"), [(192, 192), (70, 321), (1, 321)])
def test_grouped_heads_and_a_cache(name: str, m: int, n: int) -> None:
    agree(mechanism(name, torch.bfloat16).with_mask("causal"), tokens(m, n, torch.bfloat16, heads=2))


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("n", [17, 192])
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "soft-cap", "sigmoid"])
def test_rows_that_begin_anywhere(name: str, n: int, dtype: torch.dtype) -> None:
    """As those read together with the gates of three heads; torch's own kernels read them wrongly, or not at all."""
    gated = [random(at, 2, n, HEADS * WIDTH + 3).to("cuda", dtype)[..., :-3] for at in range(3)]
    q, k, v = (x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for x in gated)
    agree(mechanism(name, dtype).with_mask("causal"), (q, k, v))


@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("n", [17, 192])
def test_such_rows_are_one_graph(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # shapes checked as in these tests break it
    made, gated = (
        mechanism("scaled_dot", dtype).with_mask("causal"),
        random(1, 2, n, 3 * HEADS * WIDTH + 3).to("cuda", dtype),
    )

    def attend(gated: Tensor) -> Tensor:
        parts = gated[..., :-3].unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        return made.attend(*parts)

    exact = reference_attention(
        made, *gated.double()[..., :-3].unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
    )[0]
    assert off(torch.compile(attend, fullgraph=True)(gated), exact) < ROUNDING[dtype]


@pytest.mark.parametrize("name", ["scaled_dot", "bilinear", "cosine", "metric", "mahalanobis", "softmax_sink", "alibi"])
def test_folds_are_as_exact_as_the_kernel_is(name: str) -> None:
    """Half precision costs a fold at most 1.5 times (a cosine, whose rows are both rounded, twice) what it costs SDPA."""
    q, k, v = tokens(512, 512, torch.bfloat16)
    folded, plain = (
        mechanism(name, torch.bfloat16).with_mask("causal"),
        mechanism("scaled_dot", torch.bfloat16).with_mask("causal"),
    )
    assert folded.explain(q, k, v).name == "cudnn"
    doubles = tuple(x.double() for x in (q, k, v))
    exact = [with_tensors(f, {at: x.double() for at, x in tensors_by_path(f).items()}) for f in (folded, plain)]
    own, sdpa = (
        off(f.attend(q, k, v), reference_attention(e, *doubles)[0]) for f, e in zip((folded, plain), exact, strict=True)
    )
    assert own < (2.0 if name == "cosine" else 1.5) * sdpa
