"""Tests of clusters: planted clusters, comparison with scipy and scikit-learn, invariances, nulls, token types."""

import math
from collections import Counter
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
    rank_measures,
    shuffle_coordinates,
    silhouette,
    spectrum,
    two_nn_dimension,
)
from rheoscope.space.pair_distances import centred_inner_products, cosines
from rheoscope.space.single_linkage import single_linkage_labels
from rheoscope.space.trace import Trace
from tests.pretrained.cases import random, traced

F64 = torch.float64


def intrinsic_dimension(x: torch.Tensor) -> torch.Tensor:
    return two_nn_dimension(centred_inner_products(x))


def ranks(centred: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rank_measures(centred, centred @ centred.mT)


def planted(points: torch.Tensor, ids: list[int] | None = None) -> Trace:
    """A Trace with this cloud at every step."""
    trace = rs.load().trace(list(range(300, 300 + len(points))) if ids is None else ids)
    wide = torch.zeros(len(points), 256, dtype=F64)
    wide[:, : points.shape[-1]] = points
    return replace(trace, points=wide.expand(len(trace.steps), -1, -1).clone())


def test_planted_clusters_are_detected() -> None:
    centres = torch.eye(3, dtype=F64)[torch.arange(30) % 3] * 10
    result = rs.clusters(planted(centres + 0.1 * random(0, 30, 3)), angle=0.5)
    assert result.cluster_count.values.tolist() == [3] * result.sizes["point"]
    assert float(result.silhouette.min()) > 0.9
    assert float(result.ari.min()) == 1
    label = result.label.values[0]
    assert all(label[i] == label[i % 3] for i in range(30))
    assert float(result.effective_rank.max()) < 2.1


def test_a_spectrum_that_fails_in_float32_is_computed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    table, eigvalsh = random(0, 5, 3) @ random(0, 5, 3).mT, torch.linalg.eigvalsh

    def failing(matrix: torch.Tensor) -> torch.Tensor:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("no convergence")
        return eigvalsh(matrix)

    monkeypatch.setattr(torch.linalg, "eigvalsh", failing)
    assert spectrum(table.float()).dtype == F64
    assert torch.allclose(spectrum(table.float()), spectrum(table), atol=1e-5)


def test_intrinsic_dimension_of_a_plane_is_2_and_of_a_ball_5() -> None:
    plane = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=F64) @ random(1, 2, 20)
    assert float(intrinsic_dimension(plane)) == pytest.approx(2, rel=0.15)
    assert float(intrinsic_dimension(random(2, 400, 5))) == pytest.approx(5, rel=0.25)
    assert float(intrinsic_dimension(torch.cat([plane, plane]))) == pytest.approx(float(intrinsic_dimension(plane)))
    assert math.isnan(float(intrinsic_dimension(plane[:1].expand(9, -1))))


def test_rank_measures_of_known_spectra() -> None:
    x = torch.linalg.qr(random(0, 20, 4))[0]
    assert float(ranks(x)[0]) == pytest.approx(4)
    assert float(ranks(x)[1]) == pytest.approx(4)
    relative_sd = x * torch.tensor([3.0, 1.0, 1.0, 0.0], dtype=F64)
    p = torch.tensor([9.0, 1.0, 1.0], dtype=F64) / 11
    assert float(ranks(relative_sd)[0]) == pytest.approx(float((-(p * p.log()).sum()).exp()))
    assert float(ranks(relative_sd)[1]) == pytest.approx(float(1 / p.square().sum()))
    assert [float(r) for r in ranks(torch.zeros(5, 3, dtype=F64))] == [0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_labels_equal_scipy_single_linkage_and_ari_equals_a_count_of_pairs(seed: int) -> None:
    x = random(seed, 25, 3)
    unit = x / x.norm(dim=-1, keepdim=True)
    angle = 0.4
    labels = single_linkage_labels((unit @ unit.mT).clamp(-1, 1), angle)
    tree = linkage(
        np.arccos(np.clip(1 - (unit[:, None] - unit).square().sum(-1).numpy()[np.triu_indices(25, 1)] / 2, -1, 1)),
        "single",
    )
    expected_labels = torch.as_tensor(fcluster(tree, angle, "distance")).long()
    assert float(adjusted_rand_index(labels, expected_labels)) == 1
    assert all(int(label) == int((labels == label).nonzero()[0]) for label in labels.unique())
    a, b = torch.randint(0, 4, (2, 25), generator=torch.Generator().manual_seed(seed))
    pairs = [(i, j) for i in range(25) for j in range(i)]
    joint_pairs, pairs_a, pairs_b = (
        sum(bool(f(i, j)) for i, j in pairs)
        for f in (lambda i, j: a[i] == a[j] and b[i] == b[j], lambda i, j: a[i] == a[j], lambda i, j: b[i] == b[j])
    )
    expected = pairs_a * pairs_b / len(pairs)
    assert float(adjusted_rand_index(a, b)) == pytest.approx(
        (joint_pairs - expected) / ((pairs_a + pairs_b) / 2 - expected)
    )


def test_silhouette_equals_a_loop() -> None:
    x, label = random(0, 14, 2), torch.tensor([0, 1, 2] * 4 + [0, 7])
    d = torch.cdist(x, x)
    scores = []
    for i in range(14):
        own_distances = [float(d[i, j]) for j in range(14) if j != i and label[j] == label[i]]
        rest = [np.mean([float(d[i, j]) for j in range(14) if label[j] == c]) for c in label.unique() if c != label[i]]
        scores.append(
            (min(rest) - np.mean(own_distances)) / max(min(rest), np.mean(own_distances)) if own_distances else 0.0
        )
    assert float(silhouette(d, label)) == pytest.approx(np.mean(scores), abs=1e-7)
    assert float(silhouette(d, torch.zeros(14).long())) == 0


@pytest.mark.parametrize(("tokens", "clusters"), [(20, 2), (20, 18), (64, 8), (150, 100)])
def test_clustering_scores_equal_scikit_learn(tokens: int, clusters: int) -> None:
    a, b = torch.randint(0, clusters, (2, tokens), generator=torch.Generator().manual_seed(tokens))
    x = random(clusters, tokens, 5)
    distance = torch.cdist(x, x).fill_diagonal_(0)
    assert float(adjusted_rand_index(a, b)) == pytest.approx(metrics.adjusted_rand_score(a, b), abs=1e-12)
    assert float(normalised_mutual_information(a, b)) == pytest.approx(
        metrics.normalized_mutual_info_score(a, b), abs=1e-12
    )
    expected = metrics.silhouette_score(distance.numpy(), a.numpy(), metric="precomputed")
    assert float(silhouette(distance, a)) == pytest.approx(expected, abs=1e-12)


def test_rotations_shifts_and_scales_change_nothing() -> None:
    trace = traced("llama", F64)
    Q = torch.linalg.qr(random(5, 32, 32))[0]
    original = rs.clusters(trace, keep_massive=True)
    transformed = rs.clusters(replace(trace, points=3 * trace.points @ Q + 2), keep_massive=True)
    for field in (name for name in original.data_vars if "null" not in str(name) and name != "mean_cosine_uncentred"):
        if field == "type_flow":
            assert original[field].equals(transformed[field])
        else:
            assert float(abs(original[field] - transformed[field]).max()) <= 1e-6, field


def test_ranks_are_ordered_and_shuffling_permutes_each_coordinate() -> None:
    result = rs.clusters(rs.load().trace(list(range(300, 340))))
    assert bool((result.participation_ratio >= 1 - 1e-9).all())
    assert bool((result.effective_rank >= result.participation_ratio - 1e-9).all())
    assert bool((result.effective_rank <= 39 + 1e-9).all())
    wide_angle, narrow_angle = (
        rs.clusters(rs.load().trace(list(range(300, 340))), angle=a).cluster_count for a in (1.2, 0.4)
    )
    assert bool((wide_angle <= narrow_angle).all())
    x = random(0, 9, 4)
    assert torch.equal(shuffle_coordinates(x, 0).sort(0).values, x.sort(0).values)
    assert not torch.equal(shuffle_coordinates(x, 0), x)


def test_identical_tokens_have_rank_0_and_invalid_settings_raise() -> None:
    resting = rs.clusters(planted(random(8, 1, 3).expand(7, -1)))
    assert resting.cluster_count.values.tolist() == [1] * resting.sizes["point"]
    assert float(resting.effective_rank.max()) == 0
    assert bool(np.isnan(resting.intrinsic_dimension).all())
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
def test_lineage_keeps_clusters_and_the_names_of_unchanged_ones(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (6, 20), generator=generator)
    labels[3] = labels[2]
    names = lineage(labels)
    assert all(float(adjusted_rand_index(a, b)) == 1 for a, b in zip(names, labels, strict=True))
    assert torch.equal(names[3], names[2])


def greedy_names(before: list[int], after: list[int], free_name: int) -> dict[int, int]:
    """Slow twin of one step of `lineage`: the largest overlaps first, equal ones in the order of their names."""
    overlaps = Counter(zip(before, after, strict=True))
    names: dict[int, int] = {}
    for old, new in sorted(overlaps, key=lambda pair: (-overlaps[pair], pair)):
        if new not in names and old not in names.values():
            names[new] = old
    for new in sorted(set(after) - set(names)):
        names[new], free_name = free_name, free_name + 1
    return names


@pytest.mark.parametrize("n_clusters", [3, 40])
def test_lineage_equals_a_greedy_search_over_pairs(n_clusters: int) -> None:
    labels = torch.randint(0, n_clusters, (5, 60), generator=torch.Generator().manual_seed(n_clusters))
    lineages = lineage(labels).tolist()
    for before, after, label in zip(lineages, lineages[1:], labels[1:].tolist(), strict=False):
        free_name = 1 + max(name for row in lineages[: lineages.index(after)] for name in row)
        names = greedy_names(before, label, free_name)
        assert after == [names[cluster] for cluster in label]


def test_nulls_equal_the_statistics_of_shuffled_clouds() -> None:
    """The relative sd is pooled over all points. Different points have different shuffles."""
    trace = planted(random(3, 40, 2) @ random(4, 2, 30))
    result, relative_sds = rs.clusters(trace, seed=5, draws=3, keep_massive=True), []
    for index in range(result.sizes["point"]):
        x = [shuffle_coordinates(trace.points[0], 5 + draw, index) for draw in range(3)]
        samples = [[*ranks(y - y.mean(0)), intrinsic_dimension(y), count(y)] for y in x]
        table = np.array([[float(number) for number in row] for row in samples])
        for column, name in enumerate(
            ("effective_rank", "participation_ratio", "intrinsic_dimension", "cluster_count")
        ):
            assert float(result[f"{name}_null"][index]) == pytest.approx(table[:, column].mean(), rel=1e-3)
        relative_sds.append(table.std(0, ddof=1) / table.mean(0))
    relative_sd = np.sqrt(np.square(relative_sds).mean(0))
    assert float(result.effective_rank_null_sd[0] / result.effective_rank_null[0]) == pytest.approx(
        relative_sd[0], rel=1e-2
    )
    assert float(result.cluster_count_null_sd[1] / result.cluster_count_null[1]) == pytest.approx(
        relative_sd[3], rel=1e-2
    )
    assert len(set(result.effective_rank_null.values.tolist())) == result.sizes["point"]
    assert float(result.intrinsic_dimension[0]) < float(result.intrinsic_dimension_null[0]) / 2


def count(x: torch.Tensor) -> int:
    return len(single_linkage_labels(cosines(centred_inner_products(x)), math.pi / 4).unique())


@pytest.mark.parametrize("n_at_origin", [0, 1, 3])
def test_mean_cosine_equals_a_loop_over_pairs(n_at_origin: int) -> None:
    """Two tokens at the origin have cosine 1. A token at the origin has cosine 0 with other tokens."""
    x = random(0, 9, 4)
    x[:n_at_origin] = 0
    pairs = [(i, j) for i in range(9) for j in range(i)]
    expected = [
        1.0
        if i < n_at_origin and j < n_at_origin
        else float(x[i] @ x[j] / (x[i].norm() * x[j].norm()).clamp(min=1e-30))
        for i, j in pairs
    ]
    assert float(mean_cosine(x)) == pytest.approx(np.mean(expected))


def test_rank_with_more_tokens_than_dimensions_equals_that_of_the_spectrum() -> None:
    x = random(0, 30, 5)
    x = x - x.mean(0)
    p = torch.linalg.svdvals(x).square()
    p = p / p.sum()
    assert float(ranks(x)[0]) == pytest.approx(float((-(p * p.log()).sum()).exp()))


def test_links_form_chains_and_wide_angles_link_everything() -> None:
    angles = torch.arange(12) * 0.3
    ring = torch.stack([angles.cos(), angles.sin()], -1).double()
    assert single_linkage_labels(cosines(ring @ ring.mT), 0.31).tolist() == [0] * 12
    assert single_linkage_labels(cosines(ring @ ring.mT), 0.29).tolist() == list(range(12))
    assert single_linkage_labels(cosines(ring @ ring.mT), 3.1).tolist() == [0] * 12


# Types


def test_repeated_tokens_do_not_change_the_fields_of_types() -> None:
    """Every token occurs twice at the same point. Fields of tokens may change, fields of types may not."""
    x, types = random(0, 20, 4), torch.tensor([*range(12), 3, 3, 5, 7, 7, 7, 0, 1])
    single, doubled = (
        kernel([torch.cat([cloud] * repeats) for cloud in (x, 3 * x + 1, x.flip(0))], types.repeat(repeats), 0.6, 0, 0)
        for repeats in (1, 2)
    )
    type_fields = [name for name in single if name.startswith("type_")]
    assert set(type_fields) == {"type_label", "type_count", "type_cluster_count", "type_effective_rank", "type_flow"}
    assert single.pop("type_flow") == doubled.pop("type_flow")
    for name in (name for name in type_fields if name in single):
        assert torch.allclose(single[name].double(), doubled[name].double(), atol=1e-9), name
    assert int(single["type_count"]) == 12


def test_a_type_is_the_mean_of_its_occurrences() -> None:
    x, types = random(0, 9, 3), torch.tensor([0, 1, 0, 2, 2, 2, 1, 3, 0])
    for number in range(4):
        assert torch.allclose(type_means(x, types)[number], x[types == number].mean(0))


def test_type_flow_reports_merging_and_splitting_types() -> None:
    ids = [300, 301, 302, 303, 300, 301, 302, 303]
    centres = 10 * torch.eye(4, dtype=F64)
    trace = planted(centres.repeat(2, 1), ids)
    points = trace.points.clone()
    points[-1, [2, 6], :4] = points[-1, [3, 7], :4] + 0.1 * random(0, 1, 4)  # two types meet at the last step
    result = rs.clusters(replace(trace, points=points), angle=0.5, keep_massive=True)
    assert int(result.type_count) == result.sizes["type"] == 4
    assert result.type_cluster_count.values.tolist() == [4] * 6 + [3]
    assert result.type_flow.values.tolist() == ["unchanged"] * 6 + ["merging"]
    assert result.type_label.values[-1].tolist() == [0, 1, 2, 2]
    reversed_steps = rs.clusters(replace(trace, points=points.flip(0)), angle=0.5, keep_massive=True)
    assert reversed_steps.type_flow.values.tolist() == ["unchanged"] + ["splitting"] * 6
    assert result.type.values.tolist() == trace.tokens[:4]
