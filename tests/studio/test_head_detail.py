"""Where a head pushes tokens and how it sees them, against the definitions and the analyses of the same name."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.covers.distortion.analysis import IMAGES
from rheoscope.flow.cloud import select_clouds
from rheoscope.studio.edited_model import with_edits
from rheoscope.studio.edits import Edit
from rheoscope.studio.head_detail import N_PAIRS, align_to, project_to_plane
from rheoscope.studio.projected_points import fit_axes
from rheoscope.studio.wire import WireArray, unpack_envelope
from tests.studio.cases import TEXT, one_line, posted, running, small


def asked(path: str, text: str = TEXT, **more: Any) -> tuple[dict[str, Any], dict[str, WireArray]]:
    with running() as (_, client):
        return unpack_envelope(client.get(f"/api/traces/{posted(client, text, **more)}/{path}").content)


@pytest.mark.parametrize("space", ["raw", "sphere"])
def test_arrows_end_where_the_head_alone_would_bring_a_token(space: str) -> None:
    header, found = asked(f"moves/1/2?space={space}")
    trace = small().trace(TEXT)
    on = fit_axes(select_clouds(trace, space).points)
    x = trace.points_at("L0.resid_post")
    ends = x + trace.attention_parts(1)[0][2]
    place = (lambda y: y / y.norm(dim=-1, keepdim=True)) if space == "sphere" else (lambda y: y)
    apart = place(ends) - place(x)
    want = apart @ on.directions
    np.testing.assert_allclose(found["moves"].decoded_values, want, atol=0.51 * found["moves"].scale)
    assert header["share"] == pytest.approx(float(want.square().sum() / apart.square().sum()), rel=1e-4)
    assert (header["step"], header["edited"]) == ("L0.resid_post", False)


def test_torn_and_glued_pairs_are_those_of_the_analysis() -> None:
    header, _ = asked("images/2/1")
    trace = small().trace(TEXT)
    for image in IMAGES:
        want = rs.distorted_pairs(trace, layer=2, head=1, image=image, top=N_PAIRS)
        for kind in ("torn", "glued"):
            told = header["pairs"][image][kind]
            for key, field in (("first", "earlier_token"), ("second", "later_token")):
                assert [one[key] for one in told] == want[field].sel(kind=kind).values.tolist()
            ranks = want.distance_rank_after.sel(kind=kind).values
            np.testing.assert_allclose([one["after"] for one in told], ranks, atol=1e-4)


def test_the_mean_over_queries_is_the_agreement_of_the_head() -> None:
    text = f"{TEXT} {TEXT}"
    _, found = asked("images/1/3", text)
    want = rs.agreement(small().trace(text), draws=0).agreement.sel(layer=1, head=3)
    assert float(np.nanmean(found["agreement"].decoded_values)) == pytest.approx(
        float(want), abs=found["agreement"].scale
    )


def test_two_directions_tell_their_share_and_are_only_turned() -> None:
    cloud = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat, share = project_to_plane(cloud)
    s = torch.linalg.svdvals(cloud - cloud.mean(0))
    np.testing.assert_allclose(share, (s[:2] ** 2 / (s**2).sum()).tolist(), rtol=1e-6)
    other = flat @ torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(align_to(flat, other), flat)
    torch.testing.assert_close(
        torch.cdist(align_to(cloud[:, :2], flat), align_to(cloud[:, :2], flat)), torch.cdist(flat, flat)
    )


EDIT = {"layer": 1, "head": 2, "operation": "symmetric", "part": "both"}


def test_arrows_and_images_of_an_edited_head_are_those_of_its_edited_operators() -> None:
    trace = with_edits(small(), [Edit(1, 2, "symmetric", "both")]).trace(TEXT)
    header, found = asked("moves/1/2?space=raw", edits=[EDIT])
    assert header["edited"]
    own, own_found = asked("moves/1/2?space=raw")
    assert not own["edited"]
    want = trace.attention_parts(1)[0][2] @ fit_axes(select_clouds(trace, "raw").points).directions
    np.testing.assert_allclose(found["moves"].decoded_values, want, atol=0.51 * found["moves"].scale)
    assert np.abs(found["moves"].decoded_values - own_found["moves"].decoded_values).max() > 10 * found["moves"].scale
    header, _ = asked("images/1/2", edits=[EDIT])
    assert header["edited"]
    for image in IMAGES:
        pairs = rs.distorted_pairs(trace, layer=1, head=2, image=image, top=N_PAIRS)
        assert [one["first"] for one in header["pairs"][image]["torn"]] == pairs["earlier_token"].sel(
            kind="torn"
        ).values.tolist()
    for kind in ("torn", "glued"):  # M is symmetric now: queries and keys see the same
        assert header["pairs"]["query"][kind] == header["pairs"]["key"][kind]
    assert not asked("images/1/1", edits=[EDIT])[0]["edited"]


def test_a_silenced_head_moves_nothing() -> None:
    _, found = asked("moves/1/2?space=raw", edits=[{"layer": 1, "head": 2, "operation": "ablate", "part": "both"}])
    assert np.abs(found["moves"].decoded_values).max() < 1e-6


def test_what_is_not_there_is_one_line() -> None:
    with running() as (_, client):
        own, short = f"/api/traces/{posted(client)}", f"/api/traces/{posted(client, 'a')}"
        for path in ("moves/9/0", "moves/0/99", "images/9/0", "moves/0/0?space=normed", "moves/0/0?axes=x"):
            one_line(client.get(f"{own}/{path}"), 400)
        one_line(client.get(f"{short}/images/0/0"), 400)
        assert client.get(f"{short}/moves/0/0").status_code == 200
