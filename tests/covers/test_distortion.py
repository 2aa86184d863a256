"""Distortion: an isometric cover keeps everything, images equal dense ones, angles equal scipy's."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

import rheoscope as rs
from rheoscope.covers.cloud_comparison import PRESERVATION_FIELDS, compare_geometries, geometry
from rheoscope.covers.distortion.analysis import images_of_heads, means_over_heads
from rheoscope.covers.rotated_heads import mismatch_null, random_head_rotations
from rheoscope.statistics.nulls import random_rotations
from tests.cases import double, gap, text, traced
from tests.covers.cases import bare, on
from tests.pretrained.cases import random

F64 = torch.float64
KEEP = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")


def planted(W_Q: torch.Tensor, W_K: torch.Tensor) -> Any:
    model = bare(width=len(W_Q))
    with torch.no_grad():
        model.view.layer_heads[0].W_Q[0].copy_(W_Q)
        model.view.layer_heads[0].W_K[0].copy_(W_K)
    return model


def test_an_isometric_cover_keeps_everything() -> None:
    eye = torch.eye(12, dtype=F64)
    model = planted(3 * torch.linalg.qr(random(0, 12, 12))[0], eye)
    found = rs.distortion(on(model, random(1, 20, 12)), draws=2)
    for field in KEEP:
        assert np.allclose(found[field].sel(image=["query", "key"]), 1), field
    assert float(abs(found.collapse).max()) < 1e-9
    assert float(found.mismatch.max()) < 1e-9
    likeness = planted(eye, eye)
    assert rs.distortion(on(likeness, random(1, 20, 12)), draws=0).trace_share.item() == pytest.approx(1)
    opposite = planted(eye, -eye)
    assert rs.distortion(on(opposite, random(1, 20, 12)), draws=0).trace_share.item() == pytest.approx(-1)


def test_a_projection_loses_what_it_does_not_see() -> None:
    """Queries read the first half of the axes, keys the other half."""
    half = torch.diag(torch.tensor([1.0] * 6 + [0.0] * 6, dtype=F64))
    model = bare(width=12, head_width=6)
    with torch.no_grad():
        model.view.layer_heads[0].W_Q[0].copy_(half[:, :6])
        model.view.layer_heads[0].W_K[0].copy_(half.flip(0, 1)[:, 6:])
    trace = on(model, random(1, 20, 12))
    found = rs.distortion(trace, draws=2)
    assert found.principal_angles.values == pytest.approx(np.pi / 2)
    assert (found.mismatch.item(), found.mismatch_null.item()) == pytest.approx((1, 0.5))
    x = model.view.layer_heads[0].norm.normalise(trace.points[0])
    x = x - x.mean(0)
    lost = float(x[:, 6:].square().sum() / x.square().sum())
    assert found.collapse.sel(image="query").item() == pytest.approx(lost)
    assert found.collapse.sel(image="key").item() == pytest.approx(1 - lost)
    assert found.collapse_null.values == pytest.approx(0.5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "own_metric"])
def test_images_equal_dense_ones(name: str) -> None:
    trace = traced(name, F64)
    found = rs.distortion(trace, n_neighbours=3, draws=2)
    head = trace.view.head(1, 2)
    x = head.heads.norm.normalise(trace.layer_input(1))[
        [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    ]
    dense = {"query": x @ head.M.dense(), "key": x @ head.M.dense().mT, "content": x @ head.F.dense()}
    for image, y in dense.items():
        kept = compare_geometries(geometry(x), geometry(y), 3)
        assert np.allclose(
            [float(found[f].sel(layer=1, head=2, image=image)) for f in PRESERVATION_FIELDS], kept, atol=1e-6
        )
    slow = subspace_angles(head.M.left.numpy(), head.M.right.mT.numpy())
    assert np.allclose(np.sort(found.principal_angles[1, 2]), np.sort(slow), atol=1e-6)
    share = head.M.dense().trace() / torch.linalg.svdvals(head.M.dense()).sum()
    assert float(found.trace_share[1, 2]) == pytest.approx(float(share), abs=1e-9)
    mine = images_of_heads(head.heads)[0].apply(x)[2]
    assert gap(torch.cdist(mine, mine), torch.cdist(dense["query"], dense["query"])) <= 1e-6


def test_random_heads_lose_what_random_heads_lose() -> None:
    """A product of two random matrices keeps less than one Gaussian does, and as much as itself turned."""
    model = bare(heads=8, width=64, head_width=12)
    found = rs.distortion(on(model, random(0, 40, 64)), draws=20)
    content = found.sel(image="content", layer=0)
    assert np.allclose(content.collapse_null, 1 - 12 / 64)
    assert float(content.collapse.mean()) == pytest.approx(1 - 12 / 64, abs=0.03)
    off = (found.rsa - found.rsa_null) / found.rsa_null_sd
    assert float(abs(off).mean()) < 1.5
    assert float(abs(off.mean())) < 0.8
    assert float(content.rsa_null.mean()) < float(content.rsa_projection) < 1
    assert float(content.neighbours.mean()) > 5 / 39


@torch.no_grad()
def test_the_null_is_the_head_turned() -> None:
    """Slow: dense operators between rotations, one head after the other; grouped keys, and a norm that centres."""
    trace = traced("gpt2", F64)
    found = rs.distortion(trace, n_neighbours=3, draws=3, seed=5)
    head, turns = trace.view.head(1, 2), random_head_rotations(trace.view.width, 3, 5, torch.device("cpu")).double()
    x = head.heads.norm.normalise(trace.layer_input(1))[
        [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    ]
    for image, A in {"query": head.M.dense(), "key": head.M.dense().mT, "content": head.F.dense()}.items():
        drawn = torch.stack([compare_geometries(geometry(x), geometry(x @ Q @ A), 3) for Q in turns])
        at = {"layer": 1, "head": 2, "image": image}
        assert np.allclose([float(found[f"{f}_null"].sel(at)) for f in PRESERVATION_FIELDS], drawn.mean(0), atol=1e-5)
        assert np.allclose([float(found[f"{f}_null_sd"].sel(at)) for f in PRESERVATION_FIELDS], drawn.std(0), atol=1e-5)
    assert found.mean_rsa_null_draws.dims == ("draw", "image")
    assert np.allclose(found.mean_rsa_null_draws.mean("draw"), found.rsa_null.mean(("layer", "head")))
    assert np.allclose(found.mean_rsa, found.rsa.mean(("layer", "head")))
    assert float(found.mean_mismatch) == pytest.approx(float(found.mismatch.mean()))


def dense_space(A: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span what A reads, from its dense SVD."""
    U, s, _ = torch.linalg.svd(A)
    return U[:, : int((s > 1e-9 * s[0]).sum())]


@torch.no_grad()
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), dead=st.integers(0, 4), product=st.booleans())
def test_a_head_of_a_lower_rank_is_seen_as_it_is(seed: int, dead: int, product: bool) -> None:
    """Columns of W_Q that are 0 (QK gains of 0), or W_Q, W_K and W_V whose product has a lower rank, beside dense twins."""
    model, few = bare(heads=2, width=12, head_width=6), 6 - dead
    heads = model.view.layer_heads[0]
    for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O.mT):
        W[0].copy_(random(seed, 12, 6))
        seed += 1
    if product:
        low = random(seed, 6, few) @ random(seed + 1, few, 6)
        heads.W_K[0].copy_(heads.W_K[0] @ low)
        heads.W_O[0].copy_(low @ heads.W_O[0])
    else:
        heads.W_Q[0, :, :dead] = 0
        heads.W_V[0, :, :dead] = 0
    found = rs.distortion(on(model, random(seed, 20, 12)), draws=0, keep_massive=True).isel(layer=0, head=0)
    head, x = model.view.head(0, 0), model.view.layer_heads[0].norm.normalise(random(seed, 20, 12))
    X = x - x.mean(0)
    M, F = head.M.dense(), head.F.dense()
    spaces = {"query": dense_space(M), "key": dense_space(M.mT), "content": dense_space(F)}
    for image, U in spaces.items():
        at = found.sel(image=image)
        assert at["rank"].item() == U.shape[1] == few
        assert at.collapse.item() == pytest.approx(float(1 - (X @ U).square().sum() / X.square().sum()), abs=1e-7)
        assert at.collapse_null.item() == pytest.approx(1 - few / 12)
    cosines = torch.linalg.svdvals(spaces["query"].mT @ spaces["key"]).clamp(max=1)
    assert found.mismatch.item() == pytest.approx(float(1 - cosines.square().mean()), abs=1e-7)
    assert np.allclose(found.principal_angles[:few], cosines.acos(), atol=1e-5)
    assert bool(found.principal_angles[few:].isnull().all())


def test_what_two_random_spaces_share_is_known() -> None:
    """Slow: the spaces themselves, and heads whose keys read one space."""
    generator = torch.Generator().manual_seed(0)
    for rank, width in ((1, 5), (3, 8), (6, 8), (8, 8)):
        Q = random_rotations(4000, width, generator, F64)[:, :rank, :rank]
        mismatch = 1 - Q.square().sum((-2, -1)) / rank
        null, spread = mismatch_null(torch.tensor(float(rank), dtype=F64), width)
        assert float(mismatch.mean()) == pytest.approx(float(null), abs=0.03)
        assert float(mismatch.std()) == pytest.approx(float(spread), rel=0.06, abs=1e-9)


def test_the_mean_mismatch_of_heads_that_share_a_key_has_the_spread_it_says() -> None:
    """300 models of 8 random heads in two groups; the keys of a group read one space."""
    generator, width, rank, null_sd = torch.Generator().manual_seed(0), 8, 2, []
    means = []
    for _ in range(300):
        K = random_rotations(2, width, generator, F64)[:, :, :rank].repeat_interleave(4, 0)
        Q = random_rotations(8, width, generator, F64)[:, :, :rank]
        one = 1 - (Q.mT @ K).square().sum((-2, -1)) / rank
        null, spread = mismatch_null(torch.full((8,), float(rank), dtype=F64), width)
        rows = {"mismatch": one, "mismatch_null": null, "mismatch_null_sd": spread, "rsa": torch.zeros(1, 1, 3)}
        found = means_over_heads(rows)
        means.append(float(found["mean_mismatch"]))
        null_sd.append(float(found["mean_mismatch_null_sd"]))
    assert np.mean(means) == pytest.approx(1 - rank / width, abs=3 * null_sd[0] / 300**0.5)
    assert np.std(means) == pytest.approx(null_sd[0], rel=0.15)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "own_metric"])
def test_raw_images_are_those_of_the_models_own_q_k_v(name: str) -> None:
    trace = traced(name, F64)
    found = rs.distortion(trace, n_neighbours=3, draws=2)
    heads = trace.view.layer_heads[1]
    kept = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    x = heads.norm.normalise(trace.layer_input(1))[kept]
    for image, y in zip(("q", "k", "v"), heads.qkv(trace.layer_input(1)), strict=True):
        own = y[0, -1, kept]  # the last head reads the last group
        wanted = compare_geometries(geometry(x), geometry(own), 3)
        last = found.sel(layer=1, head=trace.view.heads - 1, raw_image=image)
        assert np.allclose([float(last[f"{field}_raw"]) for field in PRESERVATION_FIELDS], wanted, atol=1e-6), image
    for field in found.data_vars:
        assert ("gauge" in found[field].attrs) == (str(field) in {f"{one}_raw" for one in PRESERVATION_FIELDS}), field


def test_raw_images_move_with_the_coordinates_and_meet_the_invariant_ones_at_an_isometry() -> None:
    """(W_Q A, W_K A⁻ᵀ) is the same head; where W_K is an isometry, q has the distances of the image."""
    W, K, A = random(0, 12, 12), torch.linalg.qr(random(1, 12, 12))[0], random(2, 12, 12)
    one = planted(W, K)
    plain = rs.distortion(on(one, random(3, 20, 12)), draws=2)
    other = planted(W @ A, K @ torch.linalg.inv(A).mT)
    moved = rs.distortion(on(other, random(3, 20, 12)), draws=2)
    for field in PRESERVATION_FIELDS:
        assert np.allclose(plain[f"{field}_raw"].sel(raw_image="q"), plain[field].sel(image="query"), atol=1e-9), field
        assert np.allclose(moved[field], plain[field], atol=1e-9), field
    assert float(abs(moved.rsa_raw - plain.rsa_raw).sel(raw_image=["q", "k"]).min()) > 1e-2


def test_without_draws_there_is_no_null_but_the_known_one() -> None:
    trace = traced("llama", F64)
    found, beside = rs.distortion(trace, n_neighbours=3, draws=0), rs.distortion(trace, n_neighbours=3, draws=2)
    drawn = {f"{field}_{what}" for field in PRESERVATION_FIELDS for what in ("null", "null_sd", "projection")}
    assert set(beside.data_vars) - set(found.data_vars) == drawn | {"mean_rsa_null_draws"}
    for field in found.data_vars:
        assert np.array_equal(found[field], beside[field]), field


def test_what_it_cannot_do_is_told_in_one_line() -> None:
    model = double("llama")
    trace = model.trace(text())
    with pytest.raises(
        rs.RheoscopeError, match=r"of 18 tokens .* got n_neighbours=9, draws=20; type n_neighbours=5, draws=20"
    ):
        rs.distortion(trace, n_neighbours=9)
    with pytest.raises(rs.RheoscopeError, match="draws must lie between 0 and 10,000, got -1; type draws=0"):
        rs.distortion(trace, draws=-1)
    with pytest.raises(rs.RheoscopeError, match="has no M"):
        rs.distortion(traced("own_cosine", F64))
