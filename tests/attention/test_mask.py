"""Masks against their definitions, pair by pair; the span of a block never hides a permitted key."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.attention.definition import positions
from rheoscope.attention.mask import Both, Causal, Document, Mask, NoMask, Padding, Prefix, Table, Window, as_mask
from tests.attention.cases import MASKS, coins

IDS, REAL, TABLE = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]]), coins(1, 2, 5), coins(2, 5, 5)
DEFINITIONS: dict[str, tuple[Mask, Callable[[int, int, int], bool]]] = {
    "none": (NoMask(), lambda b, i, j: True),
    "causal": (Causal(), lambda b, i, j: j <= i),
    "window": (Window(2), lambda b, i, j: abs(i - j) < 2),
    "sliding": (Causal() & Window(2), lambda b, i, j: i - 2 < j <= i),
    "prefix": (Prefix(2), lambda b, i, j: j <= i or j < 2),
    "document": (Document(IDS), lambda b, i, j: bool(IDS[b, i] == IDS[b, j])),
    "padding": (Padding(REAL), lambda b, i, j: bool(REAL[b, j])),
    "table": (Table(TABLE), lambda b, i, j: bool(TABLE[i, j])),
    "both": (Table(TABLE) & Padding(REAL), lambda b, i, j: bool(TABLE[i, j] and REAL[b, j])),
}


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("rows", [range(5), range(3, 5), range(4, 5)])
def test_definition(name: str, rows: range) -> None:
    mask, permits = DEFINITIONS[name]
    table = mask(torch.tensor(rows), torch.arange(5))
    assert table.dtype == torch.bool
    expected = [[[permits(b, i, j) for j in range(5)] for i in rows] for b in range(2)]
    assert torch.broadcast_to(table, (2, 1, len(rows), 5))[:, 0].tolist() == expected


@given(
    name=st.sampled_from(sorted(MASKS)),
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    data=st.data(),
)
def test_a_span_holds_every_permitted_key(name: str, m: int, n: int, data: st.DataObject) -> None:
    mask = MASKS[name](m, n)
    if isinstance(mask, Document) and m > n:
        return
    i, j = positions(m, n)
    low = data.draw(st.integers(0, m - 1))
    high = data.draw(st.integers(low + 1, m))
    first, last = mask.span(low + n - m, high + n - m, n)
    assert 0 <= first <= last <= n
    seen = mask(i[low:high], j).reshape(-1, n).any(0)
    assert not bool(seen[:first].any() or seen[last:].any())


def test_spans_are_tight() -> None:
    assert Causal().span(2, 4, 9) == (0, 4)
    assert Window(2).span(4, 6, 9) == (3, 7)
    assert (Causal() & Window(3)).span(4, 6, 9) == (2, 6)
    assert Prefix(5).span(0, 2, 9) == (0, 5)
    assert Prefix(2).span(3, 4, 9) == (0, 4)
    assert Causal().span(-3, -1, 4) == (0, 0)
    assert (Causal() & Window(2)).span(-9, -7, 4) == (0, 0)


@pytest.mark.parametrize("name", MASKS)
def test_sees_itself_is_no_lie(name: str) -> None:
    mask = MASKS[name](9, 9)
    itself = mask(*positions(9, 9)).diagonal(dim1=-2, dim2=-1)
    assert not mask.sees_itself or bool(itself.all())
    assert mask.sees_itself == (name in {"none", "causal", "sliding", "window", "prefix", "document"})


def test_masks_meet() -> None:
    assert isinstance(NoMask() & Causal(), Causal)
    assert isinstance(Causal() & NoMask(), Causal)
    assert isinstance(Causal() & Window(2), Both)
    assert NoMask().forbids_nothing
    assert not any(MASKS[name](3, 3).forbids_nothing for name in MASKS if name != "none")


def test_what_a_user_types() -> None:
    assert [type(as_mask(typed)) for typed in (None, "none", "causal", TABLE, Window(3))] == [
        NoMask,
        NoMask,
        Causal,
        Table,
        Window,
    ]


def test_tables_of_three_axes_are_one_a_text() -> None:
    table = coins(3, 2, 3, 4)
    assert torch.equal(Table(table)(*positions(3, 4)), table[:, None])
