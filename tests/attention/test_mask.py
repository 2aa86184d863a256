"""Masks equal their definitions pair by pair, and a key range never excludes an allowed key."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.attention.definition import query_key_positions
from rheoscope.attention.mask import (
    BooleanMask,
    Causal,
    Chunks,
    Intersection,
    Mask,
    NoMask,
    Padding,
    Prefix,
    SameDocument,
    Window,
    as_mask,
)
from tests.attention.cases import MASKS, random_booleans

IDS, IS_TOKEN, TABLE = (
    torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]),
    random_booleans(1, 2, 5),
    random_booleans(2, 5, 5),
)
DEFINITIONS: dict[str, tuple[Mask, Callable[[int, int, int], bool]]] = {
    "none": (NoMask(), lambda b, i, j: True),
    "causal": (Causal(), lambda b, i, j: j <= i),
    "window": (Window(2), lambda b, i, j: abs(i - j) < 2),
    "sliding": (Causal() & Window(2), lambda b, i, j: i - 2 < j <= i),
    "chunks": (Chunks(2), lambda b, i, j: i // 2 == j // 2),
    "prefix": (Prefix(2), lambda b, i, j: j <= i or j < 2),
    "document": (SameDocument(IDS), lambda b, i, j: bool(IDS[b, i] == IDS[b, j])),
    "padding": (Padding(IS_TOKEN), lambda b, i, j: bool(IS_TOKEN[b, j])),
    "table": (BooleanMask(TABLE), lambda b, i, j: bool(TABLE[i, j])),
    "both": (BooleanMask(TABLE) & Padding(IS_TOKEN), lambda b, i, j: bool(TABLE[i, j] and IS_TOKEN[b, j])),
}


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("rows", [range(5), range(3, 5), range(4, 5)])
def test_mask_equals_its_definition(name: str, rows: range) -> None:
    mask, is_allowed = DEFINITIONS[name]
    table = mask(torch.tensor(rows), torch.arange(5))
    assert table.dtype == torch.bool
    expected = [[[is_allowed(b, i, j) for j in range(5)] for i in rows] for b in range(2)]
    assert torch.broadcast_to(table, (2, 1, len(rows), 5))[:, 0].tolist() == expected


@given(
    name=st.sampled_from(sorted(MASKS)),
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    data=st.data(),
)
def test_key_range_contains_every_allowed_key(name: str, m: int, n: int, data: st.DataObject) -> None:
    mask = MASKS[name](m, n)
    if isinstance(mask, SameDocument) and m > n:
        return
    i, j = query_key_positions(m, n)
    low = data.draw(st.integers(0, m - 1))
    high = data.draw(st.integers(low + 1, m))
    start, stop = mask.key_range(low + n - m, high + n - m, n)
    assert 0 <= start <= stop <= n
    has_query = mask(i[low:high], j).reshape(-1, n).any(0)
    assert not bool(has_query[:start].any() or has_query[stop:].any())


def test_key_ranges_are_tight() -> None:
    assert Causal().key_range(2, 4, 9) == (0, 4)
    assert Window(2).key_range(4, 6, 9) == (3, 7)
    assert (Causal() & Window(3)).key_range(4, 6, 9) == (2, 6)
    assert Chunks(3).key_range(4, 7, 9) == (3, 9)
    assert (Causal() & Chunks(3)).key_range(4, 5, 9) == (3, 5)
    assert Prefix(5).key_range(0, 2, 9) == (0, 5)
    assert Prefix(2).key_range(3, 4, 9) == (0, 4)
    assert Causal().key_range(-3, -1, 4) == (0, 0)
    assert (Causal() & Window(2)).key_range(-9, -7, 4) == (0, 0)


@pytest.mark.parametrize("name", MASKS)
def test_allows_self_holds_on_the_diagonal(name: str) -> None:
    mask = MASKS[name](9, 9)
    diagonal = mask(*query_key_positions(9, 9)).diagonal(dim1=-2, dim2=-1)
    assert not mask.allows_self or bool(diagonal.all())
    assert mask.allows_self == (name in {"none", "causal", "sliding", "window", "chunks", "prefix", "document"})


def test_masks_intersect() -> None:
    assert isinstance(NoMask() & Causal(), Causal)
    assert isinstance(Causal() & NoMask(), Causal)
    assert isinstance(Causal() & Window(2), Intersection)
    assert NoMask().allows_all
    assert not any(MASKS[name](3, 3).allows_all for name in MASKS if name != "none")


def test_as_mask_accepts_names_tensors_and_masks() -> None:
    assert [type(as_mask(argument)) for argument in (None, "none", "causal", TABLE, Window(3))] == [
        NoMask,
        NoMask,
        Causal,
        BooleanMask,
        Window,
    ]


def test_mask_of_three_axes_has_one_table_per_text() -> None:
    table = random_booleans(3, 2, 3, 4)
    assert torch.equal(BooleanMask(table)(*query_key_positions(3, 4)), table[:, None])
