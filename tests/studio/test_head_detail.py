"""Displacements and images of a head, compared with their definitions and with the analyses."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import rheoscope as rs
from rheoscope.covers.distortion.analysis import IMAGES
from rheoscope.flow.cloud import select_clouds
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.head_detail import N_PAIRS, align_to, project_to_plane
from rheoscope.studio.projected_points import fit_axes
from rheoscope.studio.wire import WireArray, unpack_envelope
from tests.studio.cases import TEXT, error_line, post_text, running_studio, small

Answer = tuple[dict[str, Any], dict[str, WireArray]]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_studio() as (_, test_client):
        yield test_client


@pytest.fixture
def fetch(client: TestClient) -> Callable[..., Answer]:
    def fetch(path: str, text: str = TEXT, **fields: Any) -> Answer:
        return unpack_envelope(client.get(f"/api/traces/{post_text(client, text, **fields)}/{path}").content)

    return fetch


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_displacements_are_the_update_by_one_head(space: str, fetch: Callable[..., Answer]) -> None:
    header, arrays = fetch(f"moves/1/2?space={space}&axes=all")
    trace = small().trace(TEXT)
    axes = fit_axes(select_clouds(trace, space).points)
    x = trace.points_at("L0.resid_post")
    ends = x + trace.attention_parts(1)[0][2]
    project = (lambda y: y / y.norm(dim=-1, keepdim=True)) if space == "sphere" else (lambda y: y)
    displacement = project(ends) - project(x)
    expected = displacement @ axes.directions
    np.testing.assert_allclose(arrays["moves"].decoded_values, expected, atol=0.51 * arrays["moves"].scale)
    assert header["share"] == pytest.approx(float(expected.square().sum() / displacement.square().sum()), rel=1e-4)
    assert (header["step"], header["edited"]) == ("L0.resid_post", False)


def test_separated_and_merged_pairs_equal_distorted_pairs(fetch: Callable[..., Answer]) -> None:
    header, _ = fetch("images/2/1")
    trace = small().trace(TEXT)
    for image in IMAGES:
        expected = rs.distorted_pairs(trace, layer=2, head=1, projection=image, top=N_PAIRS)
        for kind in ("separated", "merged"):
            pairs = header["pairs"][image][kind]
            for key, field in (("first", "earlier_token"), ("second", "later_token")):
                assert [pair[key] for pair in pairs] == expected[field].sel(kind=kind).values.tolist()
            ranks = expected.distance_rank_after.sel(kind=kind).values
            np.testing.assert_allclose([pair["after"] for pair in pairs], ranks, atol=1e-4)


def test_the_mean_over_queries_is_the_agreement_of_the_head(fetch: Callable[..., Answer]) -> None:
    text = f"{TEXT} {TEXT}"
    _, arrays = fetch("images/1/3", text)
    expected = rs.agreement(small().trace(text), draws=0).agreement.sel(layer=1, head=3)
    assert float(np.nanmean(arrays["agreement"].decoded_values)) == pytest.approx(
        float(expected), abs=arrays["agreement"].scale
    )


def test_planes_show_their_variance_and_alignment_keeps_distances() -> None:
    cloud = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plane, fractions = project_to_plane(cloud)
    s = torch.linalg.svdvals(cloud - cloud.mean(0))
    np.testing.assert_allclose(fractions, (s[:2] ** 2 / (s**2).sum()).tolist(), rtol=1e-6)
    swapped = plane @ torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(align_to(plane, swapped), plane)
    torch.testing.assert_close(
        torch.cdist(align_to(cloud[:, :2], plane), align_to(cloud[:, :2], plane)), torch.cdist(plane, plane)
    )


EDIT = {"layer": 1, "head": 2, "operation": "symmetric", "part": "both"}


def test_displacements_and_images_of_an_edited_head_use_the_edited_operators(fetch: Callable[..., Answer]) -> None:
    trace = with_edits(small(), [Edit(1, 2, "symmetric", "both")]).trace(TEXT)
    header, arrays = fetch("moves/1/2?space=raw&axes=all", edits=[EDIT])
    assert header["edited"]
    unedited_header, unedited_arrays = fetch("moves/1/2?space=raw&axes=all")
    assert not unedited_header["edited"]
    expected = trace.attention_parts(1)[0][2] @ fit_axes(select_clouds(trace, "raw").points).directions
    np.testing.assert_allclose(arrays["moves"].decoded_values, expected, atol=0.51 * arrays["moves"].scale)
    assert (
        np.abs(arrays["moves"].decoded_values - unedited_arrays["moves"].decoded_values).max()
        > 10 * arrays["moves"].scale
    )
    header, _ = fetch("images/1/2", edits=[EDIT])
    assert header["edited"]
    for image in IMAGES:
        pairs = rs.distorted_pairs(trace, layer=1, head=2, projection=image, top=N_PAIRS)
        assert [pair["first"] for pair in header["pairs"][image]["separated"]] == pairs["earlier_token"].sel(
            kind="separated"
        ).values.tolist()
    for kind in ("separated", "merged"):  # M is symmetric, so query and key images are equal
        assert header["pairs"]["query"][kind] == header["pairs"]["key"][kind]
    assert not fetch("images/1/1", edits=[EDIT])[0]["edited"]


def test_an_ablated_head_displaces_nothing(fetch: Callable[..., Answer]) -> None:
    _, arrays = fetch(
        "moves/1/2?space=raw&axes=all", edits=[{"layer": 1, "head": 2, "operation": "ablate", "part": "both"}]
    )
    assert np.abs(arrays["moves"].decoded_values).max() < 1e-6


def test_unknown_heads_axes_and_spaces_are_refused_in_one_line(client: TestClient) -> None:
    trace_path, short_path = f"/api/traces/{post_text(client)}", f"/api/traces/{post_text(client, 'a')}"
    for path in ("moves/9/0", "moves/0/99", "images/9/0", "moves/0/0?space=normed", "moves/0/0?axes=x"):
        error_line(client.get(f"{trace_path}/{path}"), 400)
    error_line(client.get(f"{short_path}/images/0/0"), 400)
    assert client.get(f"{short_path}/moves/0/0").status_code == 200
