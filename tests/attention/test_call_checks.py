"""Invalid input raises a one-line RheoscopeError: what was received, what was expected and what to type."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.feature_maps import Identity, Linear
from rheoscope.attention.mask import Chunks, Padding, Prefix, SameDocument, Window
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.position import LearnedPosition, Position, Rotary
from rheoscope.attention.position_bias import ALiBi, Bias, Buckets
from rheoscope.attention.score import Gram, Relation, SoftCap
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import wave, without_jaxtyping_checks

Q, K, V = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
DOT = rs.mechanism("scaled_dot")


@pytest.fixture(autouse=True)
def no_jaxtyping_checks() -> Iterator[None]:
    """The package itself must raise: users run without jaxtyping's checks."""
    with without_jaxtyping_checks():
        yield


def with_value(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[1, 0, 2, 1] = value
    return x


def dot(q: Any = Q, k: Any = K, v: Any = V, **options: Any) -> Callable[[], Any]:
    return lambda: DOT(q, k, v, **options)


def with_position(
    position: Position, q: torch.Tensor = Q, k: torch.Tensor = K, v: torch.Tensor = V, **options: Any
) -> Callable[[], Any]:
    return lambda: replace(DOT, position=position)(q, k, v, **options)


def call_by_name(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: rs.mechanism(name, **options)(Q, K, V)


def square_call(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: rs.mechanism(name)(K, K, V, **options)


def gradient_call(g: Any, mechanism: Mechanism = DOT) -> Callable[[], Any]:
    return lambda: rs.attention_gradients(mechanism, Q, K, V, g)


ONES = torch.ones(2, 4, 5, 3)
INVALID_CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # tensors: parts of the message and of the advice
    "three axes": (dot(q=Q[0]), ("got 3", "(4, 5, 6)", "4 axes", "type q[None]")),
    "two axes": (dot(q=Q[0, 0]), ("got 2", "(5, 6)", "4 axes", "type q[None, None]")),
    "five axes": (dot(v=V[None]), ("got 5", "v must have 4 axes", "(1, 2, 2, 7, 3)")),
    "a list": (dot(q=Q.tolist()), ("q must be a torch.Tensor", "got list", "torch.as_tensor(q)")),
    "nothing": (dot(v=None), ("v must be a torch.Tensor", "got NoneType", "torch.as_tensor(v)")),
    "integers": (dot(k=K.long()), ("k must have a floating-point dtype", "torch.int64", "k.float()")),
    "complex numbers": (dot(k=K.to(torch.complex64)), ("k must have a floating-point dtype", "complex64", "k.float()")),
    "no tokens": (dot(k=K[:, :, :0], v=V[:, :, :0]), ("k must not be empty", "got shape (2, 2, 0, 6)")),
    "no texts": (dot(q=Q[:0], k=K[:0], v=V[:0]), ("q must not be empty", "got shape (0, 4, 5, 6)")),
    "NaN": (
        dot(q=with_value(Q, torch.nan)),
        ("q must be finite", "got 1 NaN", "[1, 0, 2, 1]", "(nan)", "type q.nan_to_num()"),
    ),
    "infinity": (
        dot(v=with_value(V, torch.inf)),
        ("v must be finite", "infinite value, at index [1, 0, 2, 1]", "(inf)", "type v.nan_to_num()"),
    ),
    "minus infinity": (dot(k=with_value(K, -torch.inf)), ("k must be finite", "got 1", "(-inf)")),
    "many infinities": (
        dot(k=K / 0),
        ("k must be finite, got 168 NaN or infinite values, the first at index [0, 0, 0, 0]",),
    ),
    "two dtypes": (dot(k=K.double()), ("same dtype and device", "float32", "float64", "k.to(q)")),
    "two devices": (lambda: DOT.explain(Q, K.to("meta"), V), ("same dtype and device", "meta", "k.to(q)")),
    "two devices, called": (dot(k=K.to("meta")), ("same dtype and device", "meta", "k.to(q)")),
    "two batches": (dot(q=Q[:1]), ("same batch size", "got 1, 2 and 2")),
    "heads of k and v": (dot(v=V[:, :1]), ("same numbers of heads and tokens", "got (2, 7) and (1, 7)")),
    "tokens of k and v": (
        dot(v=V[:, :, :6]),
        ("same numbers of heads and tokens", "got (2, 7) and (2, 6)"),
    ),
    "heads that do not divide": (
        dot(q=Q[:, :3]),
        ("multiple of the number of key/value heads", "got 3 and 2"),
    ),
    "widths": (
        dot(q=Q[..., :5]),
        ("Gram needs q and k of the same width", "5 and 6", "type rs.mechanism('bilinear', dim=5, key_dim=6)"),
    ),
    "widths without a map": (
        lambda: Mechanism(Relation(Identity()))(Q[..., :5], K, V),
        ("Relation needs q and k of the same width", "5 and 6", "type"),
    ),
    "widths of a map": (
        lambda: rs.mechanism("additive", dim=5)(Q[..., :5], K, V),
        ("score.U (5, 32)", "queries of width 5", "keys of width 6", "type dim=5, key_dim=6"),
    ),
    "key_dim 0": (call_by_name("relation", dim=6, key_dim=0), ("key_dim must be an integer", "got 0", "key_dim=6")),
    "key_dim of one map": (
        call_by_name("metric_map", dim=6, key_dim=4),
        ("no option 'key_dim'", "its options are dim"),
    ),
    # functions
    "a number for a score": (lambda: Mechanism(score=3), ("a function f(q, k)", "got int", "type score=")),  # type: ignore[arg-type]
    "a string for a value map": (lambda: Mechanism(value="tanh"), ("a function g(v)", "got str", "type value=")),  # type: ignore[arg-type]
    "a score of single pairs": (
        lambda: Mechanism(score=lambda q, k: (q * k).sum(-1))(Q, K, V),
        (
            "must return a score for every query and key",
            "(2, 4, 1, 1)",
            "got torch.float32 of shape (2, 4, 1)",
            "type score=lambda q, k: q @ k.mT",
        ),
    ),
    "a score of nothing": (lambda: Mechanism(score=lambda q, k: None)(Q, K, V), ("got NoneType", "type")),  # type: ignore[arg-type, return-value]
    "a score that mixes rows": (
        lambda: Mechanism(score=lambda q, k: (q @ k.mT).softmax(-1))(Q, K, V),
        ("must depend only on q_i and k_j", "<lambda>", "type score=lambda q, k: q @ k.mT"),
    ),
    "a score that fails": (
        lambda: Mechanism(score=lambda q, k: q @ k)(Q, K, V),
        ("<lambda> must accept any number of queries and keys", "fails on q of shape (2, 4, 1, 6)", "type score="),
    ),
    "a value map that sums": (
        lambda: Mechanism(value=lambda v: v.sum(-1))(Q, K, V),
        (
            "must return one row per value",
            "(2, 4, 7, r)",
            "got torch.float32 of shape (2, 4, 7)",
            "type value=lambda v: v.tanh()",
        ),
    ),
    "the cost of a function": (
        lambda: rs.attention_cost(Mechanism(score=wave), Q.shape, K.shape),
        ("the FLOPs of the Python function wave are unknown", "type with torch.utils.flop_counter"),
    ),
    "a kernel for a function": (
        lambda: Mechanism(score=wave)(Q, K, V, lowering="sdpa"),
        (
            "'sdpa' cannot run this call",
            "the Python function wave, which a fused kernel cannot inspect",
            "type lowering=None",
        ),
    ),
    # names and options
    "unknown mechanism": (
        call_by_name("metrik"),
        ("unknown mechanism 'metrik'; type rs.mechanism(\"metric\")",),
    ),
    "a number for a name": (call_by_name(3), ("unknown mechanism 3; type rs.mechanisms()",)),  # type: ignore[arg-type]
    "a list for a name": (call_by_name(["metric"]), ("unknown mechanism ['metric']; type rs.mechanism",)),  # type: ignore[arg-type]
    "unknown option": (call_by_name("metric", tau=2.0), ("'metric' has no option 'tau'", "its options are sigma")),
    "option of none": (
        call_by_name("linear", scale=2.0),
        ("'linear' has no options", "got 'scale'", "type rs.mechanism('linear')"),
    ),
    "unknown lowering": (
        dot(lowering="cuda"),
        ("lowering must be one of", "got 'cuda'", "sdpa", "type lowering='reference'"),
    ),
    "lowering that cannot": (
        lambda: rs.mechanism("sigmoid")(Q, K, V, lowering="sdpa"),
        ("'sdpa' cannot run this call", "Sigmoid, not softmax", "type lowering=None"),
    ),
    "negative sigma": (
        call_by_name("metric", sigma=-1.0),
        ("sigma must be a positive number", "got -1.0", "sigma=1.0"),
    ),
    "sigma 0": (call_by_name("metric", sigma=0), ("sigma must be a positive number", "got 0", "sigma=1.0")),
    "sigma NaN": (call_by_name("metric", sigma=torch.nan), ("sigma must be a positive number", "got nan", "sigma=1.0")),
    "sigma a string": (call_by_name("metric", sigma="1"), ("sigma must be a positive number", "got '1'", "sigma=1.0")),
    "tau 0": (call_by_name("cosine", tau=0.0), ("tau must be a positive number", "got 0.0", "tau=1.0")),
    "gamma negative": (
        call_by_name("kernel_rbf", gamma=-2),
        ("gamma must be a positive number", "got -2", "gamma=1.0"),
    ),
    "gamma infinite": (call_by_name("kernel_laplace", gamma=torch.inf), ("gamma must be a positive number", "got inf")),
    "odd degree": (call_by_name("kernel_polynomial", degree=3), ("degree must be even", "got 3", "degree=2")),
    "degree 0": (
        call_by_name("kernel_polynomial", degree=0),
        ("degree must be even and at least 2", "got 0", "degree=2"),
    ),
    "degree a string": (call_by_name("kernel_polynomial", degree="2"), ("degree must be even", "got '2'", "degree=2")),
    "offset NaN": (
        call_by_name("kernel_polynomial", offset=torch.nan),
        ("offset must be a finite number", "got nan", "offset="),
    ),
    "alpha 1": (call_by_name("entmax", alpha=1.0), ("alpha > 1", "got 1.0", "mechanism('scaled_dot')")),
    "alpha below 1": (call_by_name("entmax", alpha=0.5), ("alpha > 1", "got 0.5", "type")),
    "alpha a string": (call_by_name("entmax", alpha="2"), ("alpha > 1", "got '2'", "type")),
    "alpha infinite": (call_by_name("entmax", alpha=torch.inf), ("alpha", "got inf", "type")),
    "negative rounds": (call_by_name("sinkhorn", rounds=-1), ("rounds must be", "got -1", "rounds=10")),
    "fractional rounds": (call_by_name("sinkhorn", rounds=1.5), ("rounds must be", "got 1.5", "rounds=10")),
    "scale a string": (call_by_name("scaled_dot", scale="x"), ("scale must be a finite number", "got 'x'", "scale=")),
    "scale NaN": (call_by_name("sigmoid", scale=torch.nan), ("scale must be a finite number", "got nan", "scale=")),
    "bias a string": (call_by_name("sigmoid", bias="x"), ("bias must be a finite number", "got 'x'", "bias=")),
    "sink NaN": (call_by_name("softmax_sink", sink=torch.nan), ("sink must be", "got nan", "sink=")),
    "shaped without widths": (call_by_name("shaped", tau0=1.0), ("scale 1/(tau0 √(width · head_width))", "width=64")),
    "shaped, scaled twice": (
        call_by_name("shaped", tau0=1.0, width=8, head_width=4, scale=2.0),
        ("scale 1/(tau0 √(width · head_width))", "excludes scale"),
    ),
    "shaped gamma a string": (
        call_by_name("shaped", gamma="x"),
        ("gamma must be a finite number", "got 'x'", "gamma="),
    ),
    "no dim": (call_by_name("additive"), ("dim must be the width of q", "got None", "type dim=q.shape[-1]")),
    "dim 0": (call_by_name("relation", dim=0), ("dim must be the width of q", "got 0", "type dim=q.shape[-1]")),
    "dim a string": (
        call_by_name("bilinear", dim="x"),
        ("dim must be the width of q", "got 'x'", "type dim=q.shape[-1]"),
    ),
    "dim negative": (
        call_by_name("mahalanobis", dim=-1),
        ("dim must be the width of q", "got -1", "type dim=q.shape[-1]"),
    ),
    "no hidden units": (call_by_name("additive", dim=6, hidden=0), ("hidden must be", "got 0", "hidden=")),
    "no B": (
        call_by_name("bilinear"),
        ("learns the tensor B", "pass dim (the width of q) or B", "type dim=q.shape[-1]"),
    ),
    "B a number": (call_by_name("bilinear", B=3), ("B must be", "got int", "B=torch.eye(")),
    "no root": (
        call_by_name("mahalanobis"),
        ("learns the tensor root", "pass dim (the width of q) or root", "type dim=q.shape[-1]"),
    ),
    "P indefinite": (
        call_by_name("mahalanobis", P=torch.diag(torch.tensor([1.0, -0.5]))),
        ("positive semi-definite", "-0.5", "P=A @ A.mT"),
    ),
    "P not symmetric": (
        call_by_name("mahalanobis", P=torch.ones(3, 3).triu()),
        ("symmetric matrix", "(3, 3)", "P=(P + P.mT) / 2"),
    ),
    "P not square": (call_by_name("mahalanobis", P=torch.ones(2, 3)), ("symmetric matrix", "(2, 3)", "type")),
    "P a number": (call_by_name("mahalanobis", P=3), ("P must be", "got int", "type")),
    "seed a string": (call_by_name("relation", dim=6, seed="odd"), ("seed must be", "'odd'", "type seed=0")),
    "hidden is true": (call_by_name("additive", dim=6, hidden=True), ("hidden must be", "True", "type hidden=32")),
    "P of integers": (call_by_name("mahalanobis", P=torch.eye(6).long()), ("P must be", "torch.int64", "type")),
    # masks
    "unknown mask": (dot(mask="casual"), ("mask must be 'none', 'causal'", "got 'casual'", "type mask='causal'")),
    "mask of nested lists": (dot(mask=[[True]]), ("mask must be", "got list", "boolean tensor", "type")),
    "mask as a numpy array": (
        dot(mask=torch.ones(5, 7).numpy()),
        ("mask must be", "got ndarray", "boolean tensor", "type"),
    ),
    "float mask": (
        dot(mask=torch.zeros(5, 7)),
        ("boolean", "torch.float32", "(5, 7)", "type replace(mechanism, position=Bias(tensor))"),
    ),
    "mask of one axis": (dot(mask=torch.ones(7, dtype=torch.bool)), ("boolean", "(7,)", "(m, n)")),
    "mask too small": (
        dot(mask=torch.ones(5, 6, dtype=torch.bool)),
        ("a mask for these q and k must have shape (5, 7)", "got (5, 6)"),
    ),
    "mask of other heads": (
        dot(mask=torch.ones(2, 3, 5, 7, dtype=torch.bool)),
        ("must have shape", "(2, 4, 5, 7)", "got (2, 3, 5, 7)"),
    ),
    "padding of other texts": (
        dot(mask=Padding(torch.ones(3, 7, dtype=torch.bool))),
        ("a padding mask", "must have shape (2, 7)", "got (3, 7)"),
    ),
    "padding of numbers": (lambda: DOT(Q, K, V, mask=Padding(torch.ones(2, 7))), ("boolean", "torch.float32", "type")),
    "documents too short": (
        dot(mask=SameDocument(torch.zeros(2, 6).long())),
        ("document ids", "must have shape (2, 7)", "got (2, 6)"),
    ),
    "document mask for cross attention": (
        dot(q=K, k=Q[:, :2], v=Q[:, :2], mask=SameDocument(torch.zeros(2, 5).long())),
        ("7 queries", "5 keys", "type"),
    ),
    "window of size 0": (lambda: Window(0), ("integer size of at least 1", "got 0", "type Window(128)")),
    "chunks of size 0": (lambda: Chunks(0), ("integer size of at least 1", "got 0", "type Chunks(128)")),
    "fractional window": (lambda: Window(2.5), ("integer size", "got 2.5", "type Window(128)")),
    "negative prefix": (lambda: Prefix(-1), ("length of at least 0", "got -1", "type Prefix(16)")),
    # outside the domain
    "sinkhorn of cross attention": (
        call_by_name("sinkhorn"),
        ("square", "5 queries and 7 keys", "mechanism('scaled_dot')"),
    ),
    "shaped of cross attention": (
        call_by_name("shaped"),
        ("square", "5 queries and 7 keys", "mechanism('scaled_dot')"),
    ),
    "sinkhorn under a mask": (
        square_call("sinkhorn", mask="causal"),
        ("does not support masks", "Causal", "mask='none'"),
    ),
    "sinkhorn under a table": (
        square_call("sinkhorn", mask=torch.ones(7, 7, dtype=torch.bool)),
        ("does not support masks", "BooleanMask", "mask='none'"),
    ),
    "gradient of hardmax": (
        gradient_call(ONES, rs.mechanism("hard")),
        ("Hardmax has no gradient", "mechanism('scaled_dot'"),
    ),
    "statistics of negative weights": (
        lambda: rs.weight_statistics(rs.mechanism("shaped"), K, K),
        ("Shaped", "negative", "mechanism('scaled_dot')"),
    ),
    # the mechanism's own tensors
    "B of another width": (call_by_name("bilinear", B=torch.eye(4)), ("score.phi.W (4, 4)", "width 6", "dim=6")),
    "dim of another width": (call_by_name("additive", dim=5), ("score.W (5, 32)", "width 6", "dim=6")),
    "maps of other heads": (
        call_by_name("bilinear", B=torch.ones(3, 6, 6)),
        ("score.phi.W (3, 6, 6)", "do not fit 4 heads", "type"),
    ),
    "sinks of other heads": (
        call_by_name("softmax_sink", sink=torch.zeros(3)),
        ("normaliser.sink (3,)", "do not fit 4 heads", "type"),
    ),
    "values of another width": (lambda: replace(DOT, value=Linear(torch.eye(6)))(Q, K, V), ("value.W (6, 6)", "type")),
    "slopes of other heads": (
        with_position(ALiBi(torch.ones(3))),
        ("position.slopes must have one entry per head", "(3,)", "4 heads", "type ALiBi(alibi_slopes(4))"),
    ),
    "buckets of other heads": (
        with_position(Buckets(torch.ones(8, 3))),
        ("position.table must have one entry per head", "(8, 3)", "4 heads", "type Buckets(torch.zeros(8, 4))"),
    ),
    "too few buckets": (lambda: Buckets(torch.ones(2, 4)), ("buckets need at least 4 rows", "got 2", "type")),
    "max_distance too small": (
        lambda: Buckets(torch.ones(32, 4), max_distance=8),
        ("max_distance above 8", "max_distance=8", "type"),
    ),
    "bias of other tokens": (with_position(Bias(torch.zeros(4, 9, 9))), ("(4, 5, 7)", "got (4, 9, 9)", "type")),
    "bias of fewer queries": (with_position(Bias(torch.zeros(4, 3, 7))), ("(4, 5, 7)", "got (4, 3, 7)", "type")),
    "bias of other heads": (with_position(Bias(torch.zeros(3, 5, 7))), ("(4, 5, 7)", "got (3, 5, 7)", "type")),
    "table too short": (with_position(LearnedPosition(torch.zeros(6, 6))), ("from 0 to 5", "got 6 to 6")),
    "queries before the text": (
        with_position(LearnedPosition(torch.zeros(9, 6)), K, Q[:, :2], Q[:, :2]),
        ("from 0 to 8", "got -2 to 4"),
    ),
    "rotary of odd width": (
        with_position(Rotary(), Q[..., :5], K[..., :5]),
        ("even width of at most 5", "type Rotary(width=4)"),
    ),
    "rotary too wide": (with_position(Rotary(width=8)), ("width of at most 6", "got width=8", "type Rotary(width=6)")),
    "rotary with an odd width": (lambda: Rotary(width=3), ("even", "got 3", "type Rotary(width=2)")),
    "unknown pairs": (
        lambda: Rotary(pairs="thirds"),
        ("pairs must be", "got 'thirds'", "'halves'", "'neighbours'", "type Rotary(pairs='halves')"),
    ),  # type: ignore[arg-type]
    "cap 0": (lambda: SoftCap(Gram(), 0.0), ("cap must be a positive number", "got 0.0", "type")),
    # gradients
    "g of another shape": (
        gradient_call(ONES[..., :2]),
        ("(2, 4, 5, 3)", "got (2, 4, 5, 2)", "torch.ones(2, 4, 5, 3)"),
    ),
    "g of the values": (
        gradient_call(ONES, replace(DOT, value=Linear(torch.ones(3, 5)))),
        ("(2, 4, 5, 5)", "got (2, 4, 5, 3)", "torch.ones"),
    ),
    "g a number": (gradient_call(1.0), ("g must", "got float", "torch.ones(2, 4, 5, 3)")),
    "g NaN": (gradient_call(with_value(ONES, torch.nan)), ("g must be finite", "got 1", "[1, 0, 2, 1]")),
}


@pytest.mark.parametrize("mistake", INVALID_CALLS)
def test_invalid_call_raises_a_one_line_error(mistake: str) -> None:
    call, fragments = INVALID_CALLS[mistake]
    with pytest.raises(RheoscopeError) as caught:
        call()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message
    assert "\n" not in message


def test_large_finite_values_pass_the_finite_check() -> None:
    """The fast check sums all values; an overflowing sum does not imply infinite values."""
    v = torch.full((1, 1, 2, 2), 1.7e308, dtype=torch.float64)
    assert bool(DOT(torch.zeros_like(v), torch.zeros_like(v), v, lowering="blocks").isfinite().any())


def test_valid_calls_pass() -> None:
    """These are valid variants of the calls above: broadcast masks, one shared key head, one token."""
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
    assert with_position(Bias(torch.zeros(1, 5, 7)))().shape == (2, 4, 5, 3)
    assert call_by_name("softmax_sink", sink=torch.zeros(4))().shape == (2, 4, 5, 3)
    assert call_by_name("sigmoid", bias=-2, scale=1)().shape == (2, 4, 5, 3)
