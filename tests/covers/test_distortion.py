"""Distortion: isometries preserve everything, images equal dense images, and nulls equal slow references."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import subspace_angles

import rheoscope as rs
from rheoscope.covers.cloud_comparison import PRESERVATION_FIELDS, compare_geometries, geometry
from rheoscope.covers.distortion.analysis import means_over_heads
from rheoscope.covers.operator_images import images_of_heads
from rheoscope.covers.rotated_heads import mismatch_null, random_head_rotations
from rheoscope.statistics.nulls import random_rotations
from tests.cases import double, gap, text, traced
from tests.covers.cases import random_model, trace_with_points
from tests.pretrained.cases import random

F64 = torch.float64
PRESERVED_FIELDS = ("spread", "neighbours", "trustworthiness", "continuity", "rsa", "cka")


def model_with_projections(W_Q: torch.Tensor, W_K: torch.Tensor) -> Any:
    """A model whose single head has these projections."""
    model = random_model(width=len(W_Q))
    with torch.no_grad():
        model.view.layer_heads[0].W_Q[0].copy_(W_Q)
        model.view.layer_heads[0].W_K[0].copy_(W_K)
    return model


def test_an_isometry_preserves_everything() -> None:
    eye = torch.eye(12, dtype=F64)
    model = model_with_projections(3 * torch.linalg.qr(random(0, 12, 12))[0], eye)
    result = rs.distortion(trace_with_points(model, random(1, 20, 12)), draws=2)
    for field in PRESERVED_FIELDS:
        assert np.allclose(result[field].sel(image=["query", "key"]), 1), field
    assert float(abs(result.collapse).max()) < 1e-9
    assert float(result.mismatch.max()) < 1e-9
    identity_model = model_with_projections(eye, eye)
    assert rs.distortion(
        trace_with_points(identity_model, random(1, 20, 12)), draws=0
    ).trace_share.item() == pytest.approx(1)
    negative_model = model_with_projections(eye, -eye)
    assert rs.distortion(
        trace_with_points(negative_model, random(1, 20, 12)), draws=0
    ).trace_share.item() == pytest.approx(-1)


def test_collapse_is_the_variance_outside_the_projected_axes() -> None:
    """Queries read the first half of the axes, keys the second half."""
    half = torch.diag(torch.tensor([1.0] * 6 + [0.0] * 6, dtype=F64))
    model = random_model(width=12, head_width=6)
    with torch.no_grad():
        model.view.layer_heads[0].W_Q[0].copy_(half[:, :6])
        model.view.layer_heads[0].W_K[0].copy_(half.flip(0, 1)[:, 6:])
    trace = trace_with_points(model, random(1, 20, 12))
    result = rs.distortion(trace, draws=2)
    assert result.principal_angles.values == pytest.approx(np.pi / 2)
    assert (result.mismatch.item(), result.mismatch_null.item()) == pytest.approx((1, 0.5))
    x = model.view.layer_heads[0].norm.normalise(trace.points[0])
    x = x - x.mean(0)
    unread_share = float(x[:, 6:].square().sum() / x.square().sum())
    assert result.collapse.sel(image="query").item() == pytest.approx(unread_share)
    assert result.collapse.sel(image="key").item() == pytest.approx(1 - unread_share)
    assert result.collapse_null.values == pytest.approx(0.5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "own_metric"])
def test_scores_equal_those_of_dense_images(name: str) -> None:
    trace = traced(name, F64)
    result = rs.distortion(trace, n_neighbours=3, draws=2)
    head = trace.view.head(1, 2)
    x = head.heads.norm.normalise(trace.layer_input(1))[
        [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    ]
    dense_images = {"query": x @ head.M.dense(), "key": x @ head.M.dense().mT, "content": x @ head.F.dense()}
    for image, y in dense_images.items():
        expected = compare_geometries(geometry(x), geometry(y), 3)
        assert np.allclose(
            [float(result[f].sel(layer=1, head=2, image=image)) for f in PRESERVATION_FIELDS], expected, atol=1e-6
        )
    expected_angles = subspace_angles(head.M.left.numpy(), head.M.right.mT.numpy())
    assert np.allclose(np.sort(result.principal_angles[1, 2]), np.sort(expected_angles), atol=1e-6)
    share = head.M.dense().trace() / torch.linalg.svdvals(head.M.dense()).sum()
    assert float(result.trace_share[1, 2]) == pytest.approx(float(share), abs=1e-9)
    image = images_of_heads(head.heads)[0].apply(x)[2]
    assert gap(torch.cdist(image, image), torch.cdist(dense_images["query"], dense_images["query"])) <= 1e-6


@torch.no_grad()
def test_images_of_heads_that_share_keys_equal_dense_images() -> None:
    """Keys and values are read once for the heads that share them; the directions that a head reads are orthonormal."""
    trace = traced("llama", F64)
    heads = trace.view.layer_heads[1]
    x, images = heads.norm.normalise(trace.layer_input(1)), images_of_heads(heads)
    assert [len(image.left) for image in images] == [4, 2, 2]
    for head in range(4):
        M, F = (A.dense() for A in (trace.view.head(1, head).M, trace.view.head(1, head).F))
        for image, A in zip(images, (M, M.mT, F), strict=True):
            assert gap(torch.cdist(image.apply(x)[head], image.apply(x)[head]), torch.cdist(x @ A, x @ A)) <= 1e-6
            basis = image.basis[head]
            assert torch.allclose(basis.mT @ basis, torch.eye(basis.shape[1], dtype=F64), atol=1e-9)
            assert torch.allclose(basis @ (basis.mT @ A), A, atol=1e-9)


def test_random_heads_lie_inside_their_null() -> None:
    """A product of two random matrices preserves less than a random projection."""
    model = random_model(heads=8, width=64, head_width=12)
    result = rs.distortion(trace_with_points(model, random(0, 40, 64)), draws=20)
    content = result.sel(image="content", layer=0)
    assert np.allclose(content.collapse_null, 1 - 12 / 64)
    assert float(content.collapse.mean()) == pytest.approx(1 - 12 / 64, abs=0.03)
    z = (result.rsa - result.rsa_null) / result.rsa_null_sd
    assert float(abs(z).mean()) < 1.5
    assert float(abs(z.mean())) < 0.8
    assert float(content.rsa_null.mean()) < float(content.rsa_projection) < 1
    assert float(content.neighbours.mean()) > 5 / 39


@torch.no_grad()
def test_the_null_equals_dense_operators_on_rotated_clouds() -> None:
    trace = traced("gpt2", F64)
    result = rs.distortion(trace, n_neighbours=3, draws=3, seed=5)
    head, rotations = trace.view.head(1, 2), random_head_rotations(trace.view.width, 3, 5, torch.device("cpu")).double()
    x = head.heads.norm.normalise(trace.layer_input(1))[
        [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    ]
    for image, A in {"query": head.M.dense(), "key": head.M.dense().mT, "content": head.F.dense()}.items():
        samples = torch.stack([compare_geometries(geometry(x), geometry(x @ Q @ A), 3) for Q in rotations])
        cell = {"layer": 1, "head": 2, "image": image}
        assert np.allclose(
            [float(result[f"{f}_null"].sel(cell)) for f in PRESERVATION_FIELDS], samples.mean(0), atol=1e-5
        )
        assert np.allclose(
            [float(result[f"{f}_null_sd"].sel(cell)) for f in PRESERVATION_FIELDS], samples.std(0), atol=1e-5
        )
    assert result.mean_rsa_null_draws.dims == ("draw", "image")
    assert np.allclose(result.mean_rsa_null_draws.mean("draw"), result.rsa_null.mean(("layer", "head")))
    assert np.allclose(result.mean_rsa, result.rsa.mean(("layer", "head")))
    assert float(result.mean_mismatch) == pytest.approx(float(result.mismatch.mean()))


def read_directions(A: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span the directions that A reads, from its dense SVD."""
    U, s, _ = torch.linalg.svd(A)
    return U[:, : int((s > 1e-9 * s[0]).sum())]


@torch.no_grad()
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), n_dead=st.integers(0, 4), is_product=st.booleans())
def test_a_head_of_lower_rank_equals_its_dense_reference(seed: int, n_dead: int, is_product: bool) -> None:
    """The rank is lower because columns of W_Q and W_V are 0, or because a product of matrices has a lower rank."""
    model, rank = random_model(heads=2, width=12, head_width=6), 6 - n_dead
    heads = model.view.layer_heads[0]
    for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O.mT):
        W[0].copy_(random(seed, 12, 6))
        seed += 1
    if is_product:
        low_rank = random(seed, 6, rank) @ random(seed + 1, rank, 6)
        heads.W_K[0].copy_(heads.W_K[0] @ low_rank)
        heads.W_O[0].copy_(low_rank @ heads.W_O[0])
    else:
        heads.W_Q[0, :, :n_dead] = 0
        heads.W_V[0, :, :n_dead] = 0
    result = rs.distortion(trace_with_points(model, random(seed, 20, 12)), draws=0, keep_massive=True).isel(
        layer=0, head=0
    )
    head, x = model.view.head(0, 0), model.view.layer_heads[0].norm.normalise(random(seed, 20, 12))
    X = x - x.mean(0)
    M, F = head.M.dense(), head.F.dense()
    spaces = {"query": read_directions(M), "key": read_directions(M.mT), "content": read_directions(F)}
    for image, U in spaces.items():
        image_result = result.sel(image=image)
        assert image_result["rank"].item() == U.shape[1] == rank
        assert image_result.collapse.item() == pytest.approx(
            float(1 - (X @ U).square().sum() / X.square().sum()), abs=1e-7
        )
        assert image_result.collapse_null.item() == pytest.approx(1 - rank / 12)
    cosines = torch.linalg.svdvals(spaces["query"].mT @ spaces["key"]).clamp(max=1)
    assert result.mismatch.item() == pytest.approx(float(1 - cosines.square().mean()), abs=1e-7)
    assert np.allclose(result.principal_angles[:rank], cosines.acos(), atol=1e-5)
    assert bool(result.principal_angles[rank:].isnull().all())


def test_the_mismatch_null_equals_that_of_sampled_random_subspaces() -> None:
    generator = torch.Generator().manual_seed(0)
    for rank, width in ((1, 5), (3, 8), (6, 8), (8, 8)):
        Q = random_rotations(4000, width, generator, F64)[:, :rank, :rank]
        mismatch = 1 - Q.square().sum((-2, -1)) / rank
        null, spread = mismatch_null(torch.tensor(float(rank), dtype=F64), width)
        assert float(mismatch.mean()) == pytest.approx(float(null), abs=0.03)
        assert float(mismatch.std()) == pytest.approx(float(spread), rel=0.06, abs=1e-9)


def test_the_null_sd_of_the_mean_mismatch_holds_for_heads_that_share_keys() -> None:
    """300 models of 8 random heads in two groups. The heads of a group share their keys."""
    generator, width, rank, null_sd = torch.Generator().manual_seed(0), 8, 2, []
    means = []
    for _ in range(300):
        K = random_rotations(2, width, generator, F64)[:, :, :rank].repeat_interleave(4, 0)
        Q = random_rotations(8, width, generator, F64)[:, :, :rank]
        mismatch = 1 - (Q.mT @ K).square().sum((-2, -1)) / rank
        null, spread = mismatch_null(torch.full((8,), float(rank), dtype=F64), width)
        rows = {"mismatch": mismatch, "mismatch_null": null, "mismatch_null_sd": spread, "rsa": torch.zeros(1, 1, 3)}
        result = means_over_heads(rows)
        means.append(float(result["mean_mismatch"]))
        null_sd.append(float(result["mean_mismatch_null_sd"]))
    assert np.mean(means) == pytest.approx(1 - rank / width, abs=3 * null_sd[0] / 300**0.5)
    assert np.std(means) == pytest.approx(null_sd[0], rel=0.15)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "own_metric"])
def test_raw_scores_equal_those_of_the_models_q_k_and_v(name: str) -> None:
    trace = traced(name, F64)
    result = rs.distortion(trace, n_neighbours=3, draws=2)
    heads = trace.view.layer_heads[1]
    included = [i for i in range(len(trace)) if i not in trace.massive_tokens()]
    x = heads.norm.normalise(trace.layer_input(1))[included]
    for image, y in zip(("q", "k", "v"), heads.qkv(trace.layer_input(1)), strict=True):
        raw_image = y[0, -1, included]  # the last head uses the last key head
        expected = compare_geometries(geometry(x), geometry(raw_image), 3)
        last = result.sel(layer=1, head=trace.view.heads - 1, raw_image=image)
        assert np.allclose([float(last[f"{field}_raw"]) for field in PRESERVATION_FIELDS], expected, atol=1e-6), image
    for field in result.data_vars:
        assert ("gauge" in result[field].attrs) == (str(field) in {f"{name}_raw" for name in PRESERVATION_FIELDS}), (
            field
        )


def test_raw_scores_depend_on_the_coordinates_and_equal_the_image_scores_for_an_isometry() -> None:
    """(W_Q A, W_K A⁻ᵀ) gives the same M. If W_K is an isometry, q has the distances of the query image."""
    W, K, A = random(0, 12, 12), torch.linalg.qr(random(1, 12, 12))[0], random(2, 12, 12)
    plain_model = model_with_projections(W, K)
    plain_result = rs.distortion(trace_with_points(plain_model, random(3, 20, 12)), draws=2)
    other_model = model_with_projections(W @ A, K @ torch.linalg.inv(A).mT)
    reparametrised = rs.distortion(trace_with_points(other_model, random(3, 20, 12)), draws=2)
    for field in PRESERVATION_FIELDS:
        assert np.allclose(
            plain_result[f"{field}_raw"].sel(raw_image="q"), plain_result[field].sel(image="query"), atol=1e-9
        ), field
        assert np.allclose(reparametrised[field], plain_result[field], atol=1e-9), field
    assert float(abs(reparametrised.rsa_raw - plain_result.rsa_raw).sel(raw_image=["q", "k"]).min()) > 1e-2


def test_zero_draws_omit_all_nulls_without_a_closed_form() -> None:
    trace = traced("llama", F64)
    result, drawn_result = rs.distortion(trace, n_neighbours=3, draws=0), rs.distortion(trace, n_neighbours=3, draws=2)
    null_fields = {f"{field}_{end}" for field in PRESERVATION_FIELDS for end in ("null", "null_sd", "projection")}
    assert set(drawn_result.data_vars) - set(result.data_vars) == null_fields | {"mean_rsa_null_draws"}
    for field in result.data_vars:
        assert np.array_equal(result[field], drawn_result[field]), field


def test_invalid_settings_are_refused() -> None:
    model = double("llama")
    trace = model.trace(text())
    with pytest.raises(rs.RheoscopeError, match=r"less than half of the 18 tokens .*, got 9; type n_neighbours=5"):
        rs.distortion(trace, n_neighbours=9)
    with pytest.raises(rs.RheoscopeError, match="draws must lie between 0 and 10,000, got -1; type draws=0"):
        rs.distortion(trace, draws=-1)
    with pytest.raises(rs.RheoscopeError, match="has no M"):
        rs.distortion(traced("own_cosine", F64))
