"""The mask of a call of attention: which pairs of positions it allows, at any distance."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from rheoscope.attention.mask import Causal, Chunks, Mask, NoMask, Window
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.softmax_calls import SoftmaxCall, constant_scores, is_allowed
from rheoscope.pretrained.finder.tape import Tape, Value
from rheoscope.running.shared_patch import Undo, shared_patch
from rheoscope.shapes import RheoscopeError

SKIPS_MASK = "_ignore_bidirectional_mask_sdpa"
"""The function of transformers that decides whether a mask allows every pair of a text."""
FARTHEST = 1 << 24
"""A window of this size is none."""


@contextmanager
def every_mask() -> Iterator[None]:
    """Inside, transformers makes the mask of a bidirectional window for short texts too, where it allows every pair."""
    from transformers import masking_utils

    if not hasattr(masking_utils, SKIPS_MASK):
        yield
        return
    with shared_patch((masking_utils, SKIPS_MASK), partial(_never_skip, masking_utils)):
        yield


def _never_skip(module: Any) -> Undo:
    original = getattr(module, SKIPS_MASK)
    setattr(module, SKIPS_MASK, lambda *args, **kwargs: False)
    return lambda: setattr(module, SKIPS_MASK, original)


@dataclass(frozen=True, eq=False)
class QueryPositionSource:
    """What decides the mask: positions on the tape, which move by `sign` times a shift, or a stored table of pairs (sign 0)."""

    value: Value
    sign: int

    def shifted(self, tape: Tape, shift: int) -> Tensor:
        """The positions, or the table from a later row on, after queries have moved away from the keys."""
        x = tape.tensors[self.value]
        return x + self.sign * shift if self.sign else x.roll(-min(shift, x.shape[-2] - 1), -2)


def read_mask(tape: Tape, call: SoftmaxCall) -> Mask:
    """The mask of a call: causal or not, with a window or without one. Layers that read the same table share it."""
    tables = frozenset(_mask_tables(tape, call))
    return tape.share(("mask", tables), lambda: _read_mask(tape, call)) if tables else _read_mask(tape, call)


def _mask_tables(tape: Tape, call: SoftmaxCall) -> set[Value]:
    """The tables of pairs that enter the scores, before they are cut to the size of the text."""
    between = tape.ancestors(call.scores, {call.score})
    tables = {v for v in between if tape.n_tokens in tape.template(v).shape[-1:] and v < call.queries}
    read = {x for v in tables if (operation := tape.operation_of(v)) is not None for x in operation.operands}
    return (tables - read) | {v for v in between if _is_table(tape, v)}


def _read_mask(tape: Tape, call: SoftmaxCall) -> Mask:
    n = tape.n_tokens
    i, j = torch.arange(n, device=call.mask.device)[:, None], torch.arange(n, device=call.mask.device)
    is_causal = not bool(call.mask.triu(1).any())
    base: Mask = Causal() if is_causal else NoMask()
    source = _query_positions(tape, call)
    if source is None:
        size = int(call.mask[-1].sum())
        expected = ((i - j).abs() < size) & ((j <= i) | (not is_causal))
        if size < n and bool((call.mask == expected).all()):
            return base & Window(size) if is_causal else Window(size)
        _check(call.mask, (j <= i) if is_causal else torch.ones_like(call.mask))
        return base
    size = _window(tape, call, source)
    if size < FARTHEST and _is_chunked(tape, call, source, base, size):
        return base & Chunks(size)
    _check_places(tape, call, size)
    expected = ((i - j).abs() < size) & ((j <= i) | (not is_causal))
    _check(call.mask, expected)
    if size >= FARTHEST:
        return base
    return base & Window(size) if is_causal else Window(size)


def _check(mask: Bool[Tensor, "n s"], expected: Bool[Tensor, "n s"]) -> None:
    if not bool((mask == expected).all()):
        raise RheoscopeError(Message("the mask of attention is neither causal nor a window nor made of chunks"))


def _allowed(tape: Tape, call: SoftmaxCall, source: QueryPositionSource, shift: int) -> Bool[Tensor, "n s"]:
    """The allowed pairs after queries have moved away from the keys."""
    return is_allowed(constant_scores(tape, call, {source.value: source.shifted(tape, shift)})[0])


def _query_positions(tape: Tape, call: SoftmaxCall) -> QueryPositionSource | None:
    """The positions of queries in the mask, or those of keys, with the opposite sign, or a stored table."""
    n, ancestors = tape.n_tokens, sorted(tape.ancestors(call.scores, call.boundary))
    signs = {v: (1, -1) for v in ancestors if is_arange(tape, v)} | {v: (0,) for v in ancestors if _is_table(tape, v)}
    for value in signs:
        for sign in signs[value]:
            source = QueryPositionSource(value, sign)
            if not torch.equal(_allowed(tape, call, source, n), call.mask) and (
                bool(_allowed(tape, call, source, 1)[0, 0])
            ):
                return source
    return None


def is_arange(tape: Tape, value: Value) -> bool:
    operation = tape.operation_of(value)
    return operation is not None and operation.name == "arange" and tape.template(value).shape == (tape.n_tokens,)


def _is_table(tape: Tape, value: Value) -> bool:
    """Whether a tensor is a buffer of the network with an entry for every pair of positions."""
    x = tape.template(value)
    return value not in tape.producer and x.ndim >= 2 and x.shape[-1] == x.shape[-2] > tape.n_tokens


def _all_moved(tape: Tape, call: SoftmaxCall, place: int) -> Bool[Tensor, "n s"]:
    """The allowed pairs of a text that begins at a later place."""
    positions = {v for v in tape.ancestors(call.scores, call.boundary) if is_arange(tape, v)}
    return is_allowed(constant_scores(tape, call, {v: tape.tensors[v] + place for v in positions})[0])


def _is_chunked(tape: Tape, call: SoftmaxCall, source: QueryPositionSource, base: Mask, size: int) -> bool:
    """Whether the mask is that of chunks at every place of the text, and of queries that have moved away from the keys."""
    mask, i = base & Chunks(size), torch.arange(tape.n_tokens, device=call.mask.device)
    places, shifts = (0, 1, size // 2, size - 1, size, 2 * size + 1), (1, size - 1, size, size + 1)
    return all(torch.equal(_all_moved(tape, call, x), mask(i + x, i + x)) for x in places) and all(
        torch.equal(_allowed(tape, call, source, x), mask(i + x, i)) for x in shifts
    )


def _check_places(tape: Tape, call: SoftmaxCall, size: int) -> None:
    """Raise if the mask depends on the place of a text."""
    for place in (size - 1, size, size // 2):
        if size < FARTHEST:
            _check(_all_moved(tape, call, place), call.mask)


def _window(tape: Tape, call: SoftmaxCall, source: QueryPositionSource) -> int:
    """The smallest distance that is masked, by bisection. A mask may only forbid what is farther than what it allows."""

    def sees(distance: int) -> bool:
        return bool(_allowed(tape, call, source, distance)[0, 0])

    if sees(FARTHEST):
        return FARTHEST
    near, far = 0, FARTHEST
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if sees(middle) else (near, middle)
    return far
