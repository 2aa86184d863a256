"""Clusters: planted ones are found, numbers equal slow ones, and turns, shifts and scales change nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn import metrics

import rheoscope as rs
from rheoscope.flow.cloud import type_means
from rheoscope.flow.clusters.analysis import (
    adjusted_rand_index,
    kernel,
    lineage,
    mean_cosine,
    normalised_mutual_information,
    shuffle_coordinates,
    silhouette,
)
from rheoscope.flow.clusters.analysis import (
    rank_measures as of_both,
)
from rheoscope.flow.clusters.analysis import (
    two_nn_dimension as of_inner,
)
from rheoscope.space.pair_distances import centred_inner_products, cosines
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.space.trace import Trace
from tests.pretrained.cases import random, traced

F64 = torch.float64


def two_nearest(x: torch.Tensor) -> torch.Tensor:
    return of_inner(centred_inner_products(x))


def ranks(centred: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return of_both(centred, centred @ centred.mT)


def planted(points: torch.Tensor, ids: list[int] | None = None) -> Trace:
    """A Trace whose every step is this cloud."""
    trace = rs.load().trace(list(range(300, 300 + len(points))) if ids is None else ids)
    wide = torch.zeros(len(points), 256, dtype=F64)
    wide[:, : points.shape[-1]] = points
    return replace(trace, points=wide.expand(len(trace.steps), -1, -1).clone())


def test_planted_clusters_are_found() -> None:
    centres = torch.eye(3, dtype=F64)[torch.arange(30) % 3] * 10
    found = rs.clusters(planted(centres + 0.1 * random(0, 30, 3)), angle=0.5)
    assert found.cluster_count.values.tolist() == [3] * found.sizes["point"]
    assert float(found.silhouette.min()) > 0.9
    assert float(found.ari.min()) == 1
    label = found.label.values[0]
    assert all(label[i] == label[i % 3] for i in range(30))
    assert float(found.effective_rank.max()) < 2.1


def test_a_plane_has_two_dimensions_and_a_ball_more() -> None:
    plane = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=F64) @ random(1, 2, 20)
    assert float(two_nearest(plane)) == pytest.approx(2, rel=0.15)
    assert float(two_nearest(random(2, 400, 5))) == pytest.approx(5, rel=0.25)
    assert float(two_nearest(torch.cat([plane, plane]))) == pytest.approx(float(two_nearest(plane)))
    assert math.isnan(float(two_nearest(plane[:1].expand(9, -1))))


def test_ranks_of_known_spectra() -> None:
    x = torch.linalg.qr(random(0, 20, 4))[0]
    assert float(ranks(x)[0]) == pytest.approx(4)
    assert float(ranks(x)[1]) == pytest.approx(4)
    spread = x * torch.tensor([3.0, 1.0, 1.0, 0.0], dtype=F64)
    p = torch.tensor([9.0, 1.0, 1.0], dtype=F64) / 11
    assert float(ranks(spread)[0]) == pytest.approx(float((-(p * p.log()).sum()).exp()))
    assert float(ranks(spread)[1]) == pytest.approx(float(1 / p.square().sum()))
    assert [float(r) for r in ranks(torch.zeros(5, 3, dtype=F64))] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_links_equal_scipys_single_linkage_and_rand_index_a_count_of_pairs(seed: int) -> None:
    x = random(seed, 25, 3)
    unit = x / x.norm(dim=-1, keepdim=True)
    angle = 0.4
    mine = single_linkage_labels((unit @ unit.mT).clamp(-1, 1), angle)
    tree = linkage(
        np.arccos(np.clip(1 - (unit[:, None] - unit).square().sum(-1).numpy()[np.triu_indices(25, 1)] / 2, -1, 1)),
        "single",
    )
    theirs = torch.as_tensor(fcluster(tree, angle, "distance")).long()
    assert float(adjusted_rand_index(mine, theirs)) == 1
    assert all(int(one) == int((mine == one).nonzero()[0]) for one in mine.unique())
    a, b = torch.randint(0, 4, (2, 25), generator=torch.Generator().manual_seed(seed))
    pairs = [(i, j) for i in range(25) for j in range(i)]
    both, of_a, of_b = (
        sum(bool(f(i, j)) for i, j in pairs)
        for f in (lambda i, j: a[i] == a[j] and b[i] == b[j], lambda i, j: a[i] == a[j], lambda i, j: b[i] == b[j])
    )
    expected = of_a * of_b / len(pairs)
    assert float(adjusted_rand_index(a, b)) == pytest.approx((both - expected) / ((of_a + of_b) / 2 - expected))


def test_silhouette_equals_a_loop() -> None:
    x, label = random(0, 14, 2), torch.tensor([0, 1, 2] * 4 + [0, 7])
    d = torch.cdist(x, x)
    scores = []
    for i in range(14):
        own = [float(d[i, j]) for j in range(14) if j != i and label[j] == label[i]]
        rest = [np.mean([float(d[i, j]) for j in range(14) if label[j] == c]) for c in label.unique() if c != label[i]]
        scores.append((min(rest) - np.mean(own)) / max(min(rest), np.mean(own)) if own else 0.0)
    assert float(silhouette(d, label)) == pytest.approx(np.mean(scores), abs=1e-7)
    assert float(silhouette(d, torch.zeros(14).long())) == 0


@pytest.mark.parametrize(("tokens", "clusters"), [(20, 2), (20, 18), (64, 8), (150, 100)])
def test_clusterings_are_compared_as_scikit_learn_does(tokens: int, clusters: int) -> None:
    a, b = torch.randint(0, clusters, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    x = random(clusters, tokens, 5)
    far = torch.cdist(x, x).fill_diagonal_(0)
    assert float(adjusted_rand_index(a, b)) == pytest.approx(metrics.adjusted_rand_score(a, b), abs=1e-12)
    assert float(normalised_mutual_information(a, b)) == pytest.approx(
        metrics.normalized_mutual_info_score(a, b), abs=1e-12
    )
    theirs = metrics.silhouette_score(far.numpy(), a.numpy(), metric="precomputed")
    assert float(silhouette(far, a)) == pytest.approx(theirs, abs=1e-12)


def test_turns_shifts_and_scales_change_nothing() -> None:
    trace = traced("llama", F64)
    Q = torch.linalg.qr(random(5, 32, 32))[0]
    plain = rs.clusters(trace, keep_massive=True)
    moved = rs.clusters(replace(trace, points=3 * trace.points @ Q + 2), keep_massive=True)
    for field in (name for name in plain.data_vars if "null" not in str(name) and name != "mean_cosine_uncentred"):
        if field == "type_flow":
            assert plain[field].equals(moved[field])
        else:
            assert float(abs(plain[field] - moved[field]).max()) <= 1e-6, field


def test_laws_of_ranks_and_the_null() -> None:
    found = rs.clusters(rs.load().trace(list(range(300, 340))))
    assert bool((found.participation_ratio >= 1 - 1e-9).all())
    assert bool((found.effective_rank >= found.participation_ratio - 1e-9).all())
    assert bool((found.effective_rank <= 39 + 1e-9).all())
    few, many = (rs.clusters(rs.load().trace(list(range(300, 340))), angle=a).cluster_count for a in (1.2, 0.4))
    assert bool((few <= many).all())
    x = random(0, 9, 4)
    assert torch.equal(shuffle_coordinates(x, 0).sort(0).values, x.sort(0).values)
    assert not torch.equal(shuffle_coordinates(x, 0), x)


def test_identical_tokens_and_bad_settings_have_a_defined_answer() -> None:
    still = rs.clusters(planted(random(8, 1, 3).expand(7, -1)))
    assert still.cluster_count.values.tolist() == [1] * still.sizes["point"]
    assert float(still.effective_rank.max()) == 0
    assert bool(np.isnan(still.intrinsic_dimension).all())
    with pytest.raises(rs.RheoscopeError, match=r"angle must lie between 0.0 and 3.14\d*, got 4.0; type angle=0.785"):
        rs.clusters(planted(torch.ones(6, 3, dtype=F64)), angle=4.0)
    with pytest.raises(rs.RheoscopeError, match="at least 3 tokens"):
        rs.clusters(rs.load().trace([1, 2]))


@pytest.mark.parametrize("seed", range(5))
def test_mutual_information_equals_a_sum_over_pairs_of_clusters(seed: int) -> None:
    a, b = torch.randint(0, 4, (2, 25), generator=torch.Generator().manual_seed(seed))
    joint = np.array([[float(((a == i) & (b == j)).double().mean()) for j in range(4)] for i in range(4)])
    rows, columns = joint.sum(1), joint.sum(0)
    shared = sum(
        joint[i, j] * math.log(joint[i, j] / rows[i] / columns[j]) for i in range(4) for j in range(4) if joint[i, j]
    )
    entropies = [-sum(p * math.log(p) for p in side if p) for side in (rows, columns)]
    assert float(normalised_mutual_information(a, b)) == pytest.approx(shared / np.mean(entropies))
    assert float(normalised_mutual_information(a, 7 - a)) == pytest.approx(1)
    assert float(normalised_mutual_information(torch.zeros(4).long(), torch.zeros(4).long())) == 1


@pytest.mark.parametrize("seed", range(5))
def test_lineage_renames_clusters_and_keeps_the_name_of_those_that_stay(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (6, 20), generator=draw)
    labels[3] = labels[2]
    named = lineage(labels)
    assert all(float(adjusted_rand_index(a, b)) == 1 for a, b in zip(named, labels, strict=True))
    assert torch.equal(named[3], named[2])


def test_nulls_are_the_numbers_of_the_shuffled_cloud() -> None:
    """Their spread is told by all points together, as a share of the null; other points have other shuffles."""
    trace = planted(random(3, 40, 2) @ random(4, 2, 30))
    found, sizes = rs.clusters(trace, seed=5, draws=3, keep_massive=True), []
    for at in range(found.sizes["point"]):
        x = [shuffle_coordinates(trace.points[0], 5 + draw, at) for draw in range(3)]
        slow = [[*ranks(y - y.mean(0)), two_nearest(y), count(y)] for y in x]
        table = np.array([[float(number) for number in row] for row in slow])
        for column, name in enumerate(
            ("effective_rank", "participation_ratio", "intrinsic_dimension", "cluster_count")
        ):
            assert float(found[f"{name}_null"][at]) == pytest.approx(table[:, column].mean(), rel=1e-3)
        sizes.append(table.std(0, ddof=1) / table.mean(0))
    spread = np.sqrt(np.square(sizes).mean(0))
    assert float(found.effective_rank_null_sd[0] / found.effective_rank_null[0]) == pytest.approx(spread[0], rel=1e-2)
    assert float(found.cluster_count_null_sd[1] / found.cluster_count_null[1]) == pytest.approx(spread[3], rel=1e-2)
    assert len(set(found.effective_rank_null.values.tolist())) == found.sizes["point"]
    assert float(found.intrinsic_dimension[0]) < float(found.intrinsic_dimension_null[0]) / 2


def count(x: torch.Tensor) -> int:
    return len(single_linkage_labels(cosines(centred_inner_products(x)), math.pi / 4).unique())


@pytest.mark.parametrize("still", [0, 1, 3])
def test_mean_cosine_equals_a_loop_over_pairs(still: int) -> None:
    """Also with tokens at the origin: two of them are alike, one is like no other."""
    x = random(0, 9, 4)
    x[:still] = 0
    pairs = [(i, j) for i in range(9) for j in range(i)]
    wanted = [
        1.0 if i < still and j < still else float(x[i] @ x[j] / (x[i].norm() * x[j].norm()).clamp(min=1e-30))
        for i, j in pairs
    ]
    assert float(mean_cosine(x)) == pytest.approx(np.mean(wanted))


def test_more_tokens_than_dimensions_have_the_same_ranks() -> None:
    x = random(0, 30, 5)
    x = x - x.mean(0)
    p = torch.linalg.svdvals(x).square()
    p = p / p.sum()
    assert float(ranks(x)[0]) == pytest.approx(float((-(p * p.log()).sum()).exp()))


def test_all_are_linked_where_the_angle_is_wide_and_chains_hold() -> None:
    at = torch.arange(12) * 0.3
    ring = torch.stack([at.cos(), at.sin()], -1).double()
    assert single_linkage_labels(cosines(ring @ ring.mT), 0.31).tolist() == [0] * 12
    assert single_linkage_labels(cosines(ring @ ring.mT), 0.29).tolist() == list(range(12))
    assert single_linkage_labels(cosines(ring @ ring.mT), 3.1).tolist() == [0] * 12


# Types


def test_tokens_told_twice_change_no_number_of_types() -> None:
    """Each type as often as it was, twice over, at the same points; numbers of tokens change."""
    x, types = random(0, 20, 4), torch.tensor([*range(12), 3, 3, 5, 7, 7, 7, 0, 1])
    once, twice = (
        kernel([torch.cat([cloud] * often) for cloud in (x, 3 * x + 1, x.flip(0))], types.repeat(often), 0.6, 0, 0)
        for often in (1, 2)
    )
    told = [name for name in once if name.startswith("type_")]
    assert set(told) == {"type_label", "type_count", "type_cluster_count", "type_effective_rank", "type_flow"}
    assert once.pop("type_flow") == twice.pop("type_flow")
    for name in (name for name in told if name in once):
        assert torch.allclose(once[name].double(), twice[name].double(), atol=1e-9), name
    assert int(once["type_count"]) == 12


def test_a_type_is_the_mean_of_its_occurrences() -> None:
    x, types = random(0, 9, 3), torch.tensor([0, 1, 0, 2, 2, 2, 1, 3, 0])
    for one in range(4):
        assert torch.allclose(type_means(x, types)[one], x[types == one].mean(0))


def test_equal_tokens_are_no_cluster_of_types_and_the_sign_is_told() -> None:
    ids = [300, 301, 302, 303, 300, 301, 302, 303]
    centres = 10 * torch.eye(4, dtype=F64)
    trace = planted(centres.repeat(2, 1), ids)
    points = trace.points.clone()
    points[-1, [2, 6], :4] = points[-1, [3, 7], :4] + 0.1 * random(0, 1, 4)  # two types meet in the end
    found = rs.clusters(replace(trace, points=points), angle=0.5, keep_massive=True)
    assert int(found.type_count) == found.sizes["type"] == 4
    assert found.type_cluster_count.values.tolist() == [4] * 6 + [3]
    assert found.type_flow.values.tolist() == ["keeps"] * 6 + ["gathers"]
    assert found.type_label.values[-1].tolist() == [0, 1, 2, 2]
    apart = rs.clusters(replace(trace, points=points.flip(0)), angle=0.5, keep_massive=True)
    assert apart.type_flow.values.tolist() == ["keeps"] + ["separates"] * 6
    assert found.type.values.tolist() == trace.tokens[:4]
