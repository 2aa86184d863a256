"""How well images of a cloud preserve its geometry: `PRESERVATION_FIELDS` of many images, computed in chunks on all cores."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.covers.cloud_comparison import (
    MAX_PAIRS_AT_ONCE,
    Geometry,
    compare_geometries,
    geometry,
    rsa_standard_error,
)
from rheoscope.covers.image_geometry import batch_preservation
from rheoscope.covers.sorted_comparison import SortedReference, compare_sorted, make_buffers, sorted_reference
from rheoscope.space.cpu_cores import map_on_cores

PAIRS_IN_CACHE = 2**18
"""The number of pairs that are sorted at once: 2 MiB in float64."""


def preservation(reference: Geometry, clouds: Float[Tensor, "*t n e"], n_neighbours: int) -> Float[Tensor, "*t 6"]:
    """How well each image preserves a cloud: the scores of `PRESERVATION_FIELDS`."""
    images, n_rows = clouds.flatten(0, -3), reference.neighbour_ranks.shape[-2]
    if clouds.is_cuda and n_rows == clouds.shape[-2]:
        is_included = torch.ones_like(reference.rows, dtype=torch.bool)[None]
        scores = batch_preservation(reference.x[None], is_included, images[None], n_neighbours)[0]
    else:
        prepared = sorted_reference(reference, n_neighbours) if clouds.device.type == "cpu" else None
        scores = (
            plain_preservation(reference, images, n_neighbours)
            if prepared is None
            else sorted_preservation(prepared, images)
        )
    return scores.unflatten(0, clouds.shape[:-2])


def text_preservation(
    clouds: Float[Tensor, "b n d"],
    is_included: Bool[Tensor, "b n"],
    images: Float[Tensor, "b c n e"],
    n_neighbours: int,
) -> Float[Tensor, "b c 6"]:
    """How well each image preserves the cloud of its text: many texts at once on a GPU, one after the other on a CPU."""
    if clouds.device.type != "cpu":
        return batch_preservation(clouds, is_included, images, n_neighbours)
    texts = zip(clouds, is_included, images, strict=True)
    return torch.stack([preservation(geometry(x[mask]), y[:, mask], n_neighbours) for x, mask, y in texts])


def plain_preservation(reference: Geometry, images: Float[Tensor, "c n e"], n_neighbours: int) -> Float[Tensor, "c 6"]:
    """The same by the definitions, for any cloud on any device."""
    return torch.cat(
        [compare_geometries(reference, chunk, n_neighbours) for chunk in _geometry_chunks(reference, images)]
    )


def sorted_preservation(reference: SortedReference, images: Float[Tensor, "c n e"]) -> Float[Tensor, "c 6"]:
    """The same by sorted pairs, and by the definitions for images with ties."""
    n_at_once = max(1, PAIRS_IN_CACHE // reference.geometry.inner_products.numel())
    n_groups = min(torch.get_num_threads(), -(-len(images) // n_at_once))

    def compare_group(group: Float[Tensor, "c n e"]) -> tuple[Tensor, Tensor]:
        buffers = make_buffers(reference, min(n_at_once, len(group)))
        results = [compare_sorted(reference, chunk, buffers) for chunk in group.split(n_at_once)]
        return torch.cat([scores for scores, _ in results]), torch.cat([has_ties for _, has_ties in results])

    groups = list(map_on_cores(compare_group, images.tensor_split(n_groups)))
    scores, has_ties = (torch.cat(parts) for parts in zip(*groups, strict=True))
    if bool(has_ties.any()):
        n_neighbours = reference.nearest_tokens.shape[-1]
        scores[has_ties] = plain_preservation(reference.geometry, images[has_ties], n_neighbours)
    return scores


def preservation_with_error(
    reference: Geometry, clouds: Float[Tensor, "*t n e"], n_neighbours: int
) -> Float[Tensor, "*t 7"]:
    """The scores of `PRESERVATION_FIELDS` and the standard error of `rsa`, which is 0 if all rows are used."""
    if reference.neighbour_ranks.shape[-2] == reference.neighbour_ranks.shape[-1]:
        return torch.nn.functional.pad(preservation(reference, clouds, n_neighbours), (0, 1))
    chunks = [
        torch.cat(
            [compare_geometries(reference, image, n_neighbours), rsa_standard_error(reference, image)[:, None]], -1
        )
        for image in _geometry_chunks(reference, clouds.flatten(0, -3))
    ]
    return torch.cat(chunks).unflatten(0, clouds.shape[:-2])


def _geometry_chunks(reference: Geometry, images: Float[Tensor, "c n e"]) -> Iterator[Geometry]:
    for chunk in images.split(max(1, MAX_PAIRS_AT_ONCE // reference.neighbour_ranks.numel())):
        yield geometry(chunk, reference.rows)
