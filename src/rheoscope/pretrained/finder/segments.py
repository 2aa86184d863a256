"""Attention within segments of a sequence (Qwen-VL): a softmax for every image, or for every window of an image.

The tape has one softmax over the whole sequence, so that queries, keys and values are read as in any other network. The segments are
those that each block was called with, and become its mask.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rheoscope.attention.mask import BooleanMask, NoMask
from rheoscope.attention.mechanism import Mechanism
from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.blocks import Block
from rheoscope.pretrained.finder.tape import Operand, Tape
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks
from rheoscope.shapes import RheoscopeError

SEGMENT_ENDS = "cu_seqlens"
"""The argument with the ends of all segments, from 0 to the number of tokens."""


@contextmanager
def one_segment(network: nn.Module) -> Iterator[None]:
    """Inside, every module that is called with segments computes as if the whole sequence were one."""
    with apply_module_hooks([ModuleHook(module, "in", _join) for module in network.modules()]):
        yield


def _join(args: Any, kwargs: dict[str, Any]) -> Any:
    ends = kwargs.get(SEGMENT_ENDS)
    return (args, kwargs | {SEGMENT_ENDS: ends[[0, -1]]}) if isinstance(ends, Tensor) else (args, kwargs)


def within_segments(tape: Tape, block: Block, mechanism: Mechanism) -> Mechanism:
    """The mechanism with the segments of a block as its mask. One segment of all tokens is no mask."""
    ends = block.call.kwargs.get(SEGMENT_ENDS)
    if not isinstance(ends, Operand) or len(tape.tensors[ends.value]) == 2:
        return mechanism
    if not isinstance(mechanism.mask, NoMask):
        raise RheoscopeError(Message("attention within segments has a mask of its own"))
    numbers = torch.bucketize(
        torch.arange(tape.n_tokens, device=tape.tensors[ends.value].device), tape.tensors[ends.value], right=True
    )
    return replace(mechanism, mask=BooleanMask(numbers[:, None] == numbers))
