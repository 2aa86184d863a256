"""Bad input: one RheoscopeError each, of one line, that says what came, what was expected and what to type."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.feature_maps import Identity, Linear
from rheoscope.attention.mask import Document, Padding, Prefix, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import ALiBi, Bias, Buckets, Learned, Position, Rotary
from rheoscope.attention.score import Gram, Relation, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import as_users_run, wave

Q, K, V = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
DOT = rs.mechanism("scaled_dot")


@pytest.fixture(autouse=True)
def plainly() -> Iterator[None]:
    """The package must answer by itself: no user has jaxtyping's checks."""
    with as_users_run():
        yield


def spoilt(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[1, 0, 2, 1] = value
    return x


def dot(q: Any = Q, k: Any = K, v: Any = V, **options: Any) -> Callable[[], Any]:
    return lambda: DOT(q, k, v, **options)


def at(
    position: Position, q: torch.Tensor = Q, k: torch.Tensor = K, v: torch.Tensor = V, **options: Any
) -> Callable[[], Any]:
    return lambda: replace(DOT, position=position)(q, k, v, **options)


def named(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: rs.mechanism(name, **options)(Q, K, V)


def square(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: rs.mechanism(name)(K, K, V, **options)


def pulled(g: Any, mechanism: Mechanism = DOT) -> Callable[[], Any]:
    return lambda: rs.attention_gradients(mechanism, Q, K, V, g)


ONES = torch.ones(2, 4, 5, 3)
BAD: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # tensors: what it says of what came, what was expected, what to type
    "three axes": (dot(q=Q[0]), ("got 3", "(4, 5, 6)", "4 axes", "q[None, None]")),
    "five axes": (dot(v=V[None]), ("got 5", "v must have 4 axes", "type")),
    "a list": (dot(q=Q.tolist()), ("q must be a torch.Tensor", "got list", "torch.as_tensor(q)")),
    "nothing": (dot(v=None), ("v must be a torch.Tensor", "got NoneType", "torch.as_tensor(v)")),
    "whole numbers": (dot(k=K.long()), ("k must hold floating-point", "torch.int64", "k.float()")),
    "complex numbers": (dot(k=K.to(torch.complex64)), ("k must hold floating-point", "complex64", "k.float()")),
    "no tokens": (dot(k=K[:, :, :0], v=V[:, :, :0]), ("k is empty", "(2, 2, 0, 6)", "at least one")),
    "no texts": (dot(q=Q[:0], k=K[:0], v=V[:0]), ("q is empty", "(0, 4, 5, 6)", "at least one")),
    "NaN": (dot(q=spoilt(Q, torch.nan)), ("q has 1 values", "[1, 0, 2, 1]", "(nan)", "finite", "torch.nan_to_num")),
    "infinity": (
        dot(v=spoilt(V, torch.inf)),
        ("v has 1 values", "[1, 0, 2, 1]", "(inf)", "finite", "torch.nan_to_num"),
    ),
    "minus infinity": (dot(k=spoilt(K, -torch.inf)), ("k has 1 values", "(-inf)", "finite")),
    "two dtypes": (dot(k=K.double()), ("share dtype and device", "float32", "float64", "k.to(q)")),
    "two devices": (lambda: DOT.explain(Q, K.to("meta"), V), ("share dtype and device", "meta", "k.to(q)")),
    "two devices, called": (dot(k=K.to("meta")), ("share dtype and device", "meta", "k.to(q)")),
    "two batches": (dot(q=Q[:1]), ("share the batch", "1, 2, 2", "type")),
    "heads of k and v": (dot(v=V[:, :1]), ("share heads and tokens", "(2, 7)", "(1, 7)", "every key has one value")),
    "tokens of k and v": (
        dot(v=V[:, :, :6]),
        ("share heads and tokens", "(2, 7)", "(2, 6)", "every key has one value"),
    ),
    "heads that do not divide": (
        dot(q=Q[:, :3]),
        ("multiple of key/value heads", "3 and 2", "each key/value head serves"),
    ),
    "widths": (dot(q=Q[..., :5]), ("share their width", "5 and 6", "project", "dim=5, key_dim=6")),
    "widths of no map": (
        lambda: Mechanism(Relation(Identity()))(Q[..., :5], K, V),
        ("share their width under Relation", "5 and 6", "type"),
    ),
    "widths of a map": (
        lambda: rs.mechanism("additive", dim=5)(Q[..., :5], K, V),
        ("score.U (5, 32)", "width 5", "keys of width 6", "type dim=5, key_dim=6"),
    ),
    "key_dim 0": (named("relation", dim=6, key_dim=0), ("key_dim must be a whole number", "got 0", "key_dim=6")),
    "key_dim of one map": (named("metric_map", dim=6, key_dim=4), ("no option 'key_dim'", "it takes dim")),
    # functions
    "a number for a score": (lambda: Mechanism(score=3), ("a function f(q, k)", "got int", "type score=")),  # type: ignore[arg-type]
    "a word for a value map": (lambda: Mechanism(value="tanh"), ("a function g(v)", "got str", "type value=")),  # type: ignore[arg-type]
    "a score of single pairs": (
        lambda: Mechanism(score=lambda q, k: (q * k).sum(-1))(Q, K, V),
        ("must give scores of all queries and keys", "(2, 4, 1, 1)", "got torch.float32 of shape (2, 4, 1)", "type"),
    ),
    "a score of nothing": (lambda: Mechanism(score=lambda q, k: None)(Q, K, V), ("got NoneType", "type")),  # type: ignore[arg-type, return-value]
    "a score that mixes rows": (
        lambda: Mechanism(score=lambda q, k: (q @ k.mT).softmax(-1))(Q, K, V),
        ("must depend on them alone", "<lambda>", "type"),
    ),
    "a score that fails": (
        lambda: Mechanism(score=lambda q, k: q @ k)(Q, K, V),
        ("<lambda> fails on q of shape (2, 4, 1, 6)", "it must take"),
    ),
    "a value map that sums": (
        lambda: Mechanism(value=lambda v: v.sum(-1))(Q, K, V),
        ("must give a row for each value", "got torch.float32 of shape (2, 4, 7)", "type"),
    ),
    "the cost of a function": (
        lambda: rs.attention_cost(Mechanism(score=wave), Q.shape, K.shape),
        ("wave costs is not known", "type torch.utils.flop_counter"),
    ),
    "a kernel for a function": (
        lambda: Mechanism(score=wave)(Q, K, V, lowering="sdpa"),
        ("'sdpa' cannot run this", "the Python function wave, into which a kernel cannot look", "leave lowering= out"),
    ),
    # names and options
    "unknown mechanism": (named("metrik"), ("unknown mechanism 'metrik'", "type one of", "metric")),
    "a number for a name": (named(3), ("unknown mechanism 3", "type one of", "metric")),  # type: ignore[arg-type]
    "a list for a name": (named(["metric"]), ("unknown mechanism ['metric']", "type one of")),  # type: ignore[arg-type]
    "unknown option": (named("metric", tau=2.0), ("'metric' has no option 'tau'", "it takes sigma")),
    "option of none": (named("linear", scale=2.0), ("'linear' has no option 'scale'", "no options")),
    "unknown lowering": (dot(lowering="cuda"), ("unknown lowering 'cuda'", "type one of", "sdpa", "reference")),
    "lowering that cannot": (
        lambda: rs.mechanism("sigmoid")(Q, K, V, lowering="sdpa"),
        ("'sdpa' cannot run this", "Sigmoid, not softmax", "leave lowering= out"),
    ),
    "negative sigma": (named("metric", sigma=-1.0), ("sigma must be a positive number", "got -1.0", "sigma=1.0")),
    "sigma 0": (named("metric", sigma=0), ("sigma must be a positive number", "got 0", "sigma=1.0")),
    "sigma NaN": (named("metric", sigma=torch.nan), ("sigma must be a positive number", "got nan", "sigma=1.0")),
    "sigma a word": (named("metric", sigma="1"), ("sigma must be a positive number", "got '1'", "sigma=1.0")),
    "tau 0": (named("cosine", tau=0.0), ("tau must be a positive number", "got 0.0", "tau=1.0")),
    "gamma negative": (named("kernel_rbf", gamma=-2), ("gamma must be a positive number", "got -2", "gamma=1.0")),
    "gamma infinite": (named("kernel_laplace", gamma=torch.inf), ("gamma must be a positive number", "got inf")),
    "odd degree": (named("kernel_polynomial", degree=3), ("degree must be even", "got 3", "degree=2")),
    "degree 0": (named("kernel_polynomial", degree=0), ("degree must be even and at least 2", "got 0", "degree=2")),
    "degree a word": (named("kernel_polynomial", degree="2"), ("degree must be even", "got '2'", "degree=2")),
    "offset NaN": (
        named("kernel_polynomial", offset=torch.nan),
        ("offset must be a finite number", "got nan", "offset="),
    ),
    "entmax of softmax": (named("entmax", alpha=1.0), ("alpha > 1", "got 1.0", "mechanism('scaled_dot')")),
    "alpha below 1": (named("entmax", alpha=0.5), ("alpha > 1", "got 0.5", "type")),
    "alpha a word": (named("entmax", alpha="2"), ("alpha > 1", "got '2'", "type")),
    "alpha infinite": (named("entmax", alpha=torch.inf), ("alpha", "got inf", "type")),
    "negative rounds": (named("sinkhorn", rounds=-1), ("rounds must be", "got -1", "rounds=10")),
    "half a round": (named("sinkhorn", rounds=1.5), ("rounds must be", "got 1.5", "rounds=10")),
    "scale a word": (named("scaled_dot", scale="x"), ("scale must be a finite number", "got 'x'", "scale=")),
    "scale NaN": (named("sigmoid", scale=torch.nan), ("scale must be a finite number", "got nan", "scale=")),
    "bias a word": (named("sigmoid", bias="x"), ("bias must be a finite number", "got 'x'", "bias=")),
    "sink NaN": (named("softmax_sink", sink=torch.nan), ("sink must be", "got nan", "sink=")),
    "shaped without widths": (named("shaped", tau0=1.0), ("scale 1/(tau0 √(width · head_width))", "width=64")),
    "shaped, scaled twice": (
        named("shaped", tau0=1.0, width=8, head_width=4, scale=2.0),
        ("scale 1/(tau0 √(width · head_width))", "no scale"),
    ),
    "shaped by a word": (named("shaped", gamma="x"), ("gamma must be a finite number", "got 'x'", "gamma=")),
    "no dim": (named("additive"), ("dim=<width of q>", "got dim=None")),
    "dim 0": (named("relation", dim=0), ("dim=<width of q>", "got dim=0")),
    "dim a word": (named("bilinear", dim="x"), ("dim=<width of q>", "got dim='x'")),
    "dim negative": (named("mahalanobis", dim=-1), ("dim=<width of q>", "got dim=-1")),
    "no hidden units": (named("additive", dim=6, hidden=0), ("hidden must be", "got 0", "hidden=")),
    "no B": (named("bilinear"), ("learns B", "dim=<width of q>", "B=<tensor>")),
    "B a number": (named("bilinear", B=3), ("B must be", "got int", "B=torch.eye(")),
    "no root": (named("mahalanobis"), ("learns root", "dim=<width of q>", "root=<tensor>")),
    "P of two signs": (
        named("mahalanobis", P=torch.diag(torch.tensor([1.0, -0.5]))),
        ("positive semi-definite", "-0.5", "P=A @ A.mT"),
    ),
    "P not symmetric": (
        named("mahalanobis", P=torch.ones(3, 3).triu()),
        ("symmetric matrix", "(3, 3)", "P=(P + P.mT)/2"),
    ),
    "P not square": (named("mahalanobis", P=torch.ones(2, 3)), ("symmetric matrix", "(2, 3)", "type")),
    "P a number": (named("mahalanobis", P=3), ("P must be", "got int", "type")),
    "a seed in words": (named("relation", dim=6, seed="odd"), ("seed must be", "'odd'", "type seed=0")),
    "hidden is true": (named("additive", dim=6, hidden=True), ("hidden must be", "True", "type hidden=32")),
    "P of whole numbers": (named("mahalanobis", P=torch.eye(6).long()), ("P must be", "torch.int64", "type")),
    # masks
    "unknown mask": (dot(mask="casual"), ("unknown mask 'casual'", "'causal'", "type")),
    "mask of rows": (dot(mask=[[True]]), ("unknown mask", "list", "boolean tensor", "type")),
    "mask of another library": (
        dot(mask=torch.ones(5, 7).numpy()),
        ("unknown mask", "ndarray", "boolean tensor", "type"),
    ),
    "float mask": (dot(mask=torch.zeros(5, 7)), ("boolean", "torch.float32", "(5, 7)", "position=Bias(tensor)")),
    "mask of one axis": (dot(mask=torch.ones(7, dtype=torch.bool)), ("boolean", "(7,)", "(m, n)")),
    "mask too small": (dot(mask=torch.ones(5, 6, dtype=torch.bool)), ("(5, 7)", "got (5, 6)", "type")),
    "mask of other heads": (
        dot(mask=torch.ones(2, 3, 5, 7, dtype=torch.bool)),
        ("(2, 4, 5, 7)", "got (2, 3, 5, 7)", "type"),
    ),
    "padding of other texts": (dot(mask=Padding(torch.ones(3, 7, dtype=torch.bool))), ("(2, 7)", "got (3, 7)", "type")),
    "padding of numbers": (lambda: DOT(Q, K, V, mask=Padding(torch.ones(2, 7))), ("boolean", "torch.float32", "type")),
    "documents too short": (dot(mask=Document(torch.zeros(2, 6).long())), ("(2, 7)", "got (2, 6)", "type")),
    "documents of strangers": (
        dot(q=K, k=Q[:, :2], v=Q[:, :2], mask=Document(torch.zeros(2, 5).long())),
        ("7 queries", "5 keys", "type"),
    ),
    "no window": (lambda: Window(0), ("size >= 1", "got 0", "type")),
    "half a window": (lambda: Window(2.5), ("size", "got 2.5", "type")),
    "negative prefix": (lambda: Prefix(-1), ("length", "got -1", "type")),
    # outside the domain
    "sinkhorn of unlike tokens": (named("sinkhorn"), ("square", "5 queries and 7 keys", "mechanism('scaled_dot')")),
    "shaped of unlike tokens": (named("shaped"), ("square", "5 queries and 7 keys", "mechanism('scaled_dot')")),
    "sinkhorn under a mask": (square("sinkhorn", mask="causal"), ("without a mask", "Causal", "mask='none'")),
    "sinkhorn under a table": (
        square("sinkhorn", mask=torch.ones(7, 7, dtype=torch.bool)),
        ("without a mask", "Table", "mask='none'"),
    ),
    "gradient of a choice": (pulled(ONES, rs.mechanism("hard")), ("Hard has no gradient", "mechanism('scaled_dot'")),
    "statistics of signed weights": (
        lambda: rs.weight_statistics(rs.mechanism("shaped"), K, K),
        ("Shaped", "negative", "mechanism('scaled_dot')"),
    ),
    # the mechanism's own tensors
    "B of another width": (named("bilinear", B=torch.eye(4)), ("score.phi.W (4, 4)", "width 6", "dim=6")),
    "dim of another width": (named("additive", dim=5), ("score.W (5, 32)", "width 6", "dim=6")),
    "maps of other heads": (named("bilinear", B=torch.ones(3, 6, 6)), ("score.phi.W (3, 6, 6)", "4 heads", "type")),
    "sinks of other heads": (named("softmax_sink", sink=torch.zeros(3)), ("normaliser.sink (3,)", "4 heads", "type")),
    "values of another width": (lambda: replace(DOT, value=Linear(torch.eye(6)))(Q, K, V), ("value.W (6, 6)", "type")),
    "slopes of other heads": (at(ALiBi(torch.ones(3))), ("position.slopes (3,)", "4 heads", "type")),
    "buckets of other heads": (at(Buckets(torch.ones(8, 3))), ("position.table (8, 3)", "4 heads", "type")),
    "too few buckets": (lambda: Buckets(torch.ones(2, 4)), ("buckets", "got 2", "type")),
    "buckets that reach nowhere": (
        lambda: Buckets(torch.ones(32, 4), max_distance=8),
        ("max_distance above 8", "max_distance=8", "type"),
    ),
    "bias of other tokens": (at(Bias(torch.zeros(4, 9, 9))), ("(4, 5, 7)", "got (4, 9, 9)", "type")),
    "bias of fewer queries": (at(Bias(torch.zeros(4, 3, 7))), ("(4, 5, 7)", "got (4, 3, 7)", "type")),
    "bias of other heads": (at(Bias(torch.zeros(3, 5, 7))), ("(4, 5, 7)", "got (3, 5, 7)", "type")),
    "table too short": (at(Learned(torch.zeros(6, 6))), ("from 0 to 5", "6", "longer table")),
    "queries before the text": (
        at(Learned(torch.zeros(9, 6)), K, Q[:, :2], Q[:, :2]),
        ("from 0 to 8", "got -2 to 4", "type"),
    ),
    "rotary of odd width": (at(Rotary(), Q[..., :5], K[..., :5]), ("even", "5", "width=4")),
    "rotary too wide": (at(Rotary(width=8)), ("width", "8", "6", "type")),
    "rotary of odd pairs": (lambda: Rotary(width=3), ("even", "got 3", "type")),
    "unknown pairs": (lambda: Rotary(pairs="thirds"), ("pairs", "'thirds'", "'halves'", "'neighbours'")),  # type: ignore[arg-type]
    "cap 0": (lambda: SoftCap(Gram(), 0.0), ("cap must be a positive number", "got 0.0", "type")),
    # gradients
    "g of another shape": (pulled(ONES[..., :2]), ("(2, 4, 5, 3)", "got (2, 4, 5, 2)", "torch.ones(2, 4, 5, 3)")),
    "g of the values": (
        pulled(ONES, replace(DOT, value=Linear(torch.ones(3, 5)))),
        ("(2, 4, 5, 5)", "got (2, 4, 5, 3)", "torch.ones"),
    ),
    "g a number": (pulled(1.0), ("g must", "got float", "torch.ones(2, 4, 5, 3)")),
    "g NaN": (pulled(spoilt(ONES, torch.nan)), ("g has 1 values", "[1, 0, 2, 1]", "finite")),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_told_in_one_line(mistake: str) -> None:
    call, words = BAD[mistake]
    with pytest.raises(RheoscopeError) as caught:
        call()
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message


def test_numbers_too_large_to_add_are_not_infinite() -> None:
    """The fast look at all numbers adds them up; a sum that overflows says nothing of the numbers."""
    v = torch.full((1, 1, 2, 2), 1.7e308, dtype=torch.float64)
    assert bool(DOT(torch.zeros_like(v), torch.zeros_like(v), v, lowering="blocks").isfinite().any())


def test_what_is_good_passes() -> None:
    """Every good twin of the calls above: broadcast masks, a head that serves all, one token."""
    for mask in (
        None,
        "none",
        "causal",
        torch.ones(5, 7, dtype=torch.bool),
        torch.ones(1, 1, 5, 7, dtype=torch.bool),
        Window(1),
    ):
        assert DOT(Q, K, V, mask=mask).shape == (2, 4, 5, 3)
    assert DOT(Q, K[:, :1], V[:, :1]).shape == (2, 4, 5, 3)
    assert DOT(Q[:, :, :1], K[:, :, :1], V[:, :, :1]).shape == (2, 4, 1, 3)
    assert at(Bias(torch.zeros(1, 5, 7)))().shape == (2, 4, 5, 3)
    assert named("softmax_sink", sink=torch.zeros(4))().shape == (2, 4, 5, 3)
    assert named("sigmoid", bias=-2, scale=1)().shape == (2, 4, 5, 3)
