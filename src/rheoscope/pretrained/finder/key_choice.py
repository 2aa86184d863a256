"""Sparse attention whose tokens choose their keys: it is plain attention in texts so short that every key is chosen."""

from typing import Any

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.tape import Operation, Tape, Value
from rheoscope.shapes import RheoscopeError


def key_choices(tape: Tape, scores: Value, boundary: set[Value]) -> list[Operation]:
    """The choices of the largest numbers that decide about scores. `boundary` are the queries and keys."""
    choices: dict[int, Operation] = {}
    pending, seen = [scores], set(boundary)
    while pending:
        current = pending.pop()
        operation = tape.operation_of(current)
        if current in seen or operation is None:
            continue
        seen.add(current)
        if operation.name == "topk":
            choices[tape.producer[current]] = operation
        else:
            pending.extend(operation.operands)
    return list(choices.values())


def longest_text_without_choice(choices: tuple[Operation, ...]) -> int | None:
    """The longest text in which every query chooses every key; None if keys are not chosen."""
    return min((_n_chosen_keys(choice.module) for choice in choices), default=None)


def _n_chosen_keys(module: Any) -> int:
    """How many keys a query chooses, one by one (DeepSeek V3.2) or in blocks (MiniMax M3)."""
    if hasattr(module, "index_topk"):
        return int(module.index_topk)
    if hasattr(module, "topk_blocks") and hasattr(module, "block_size"):
        return int(module.topk_blocks * module.block_size)
    raise RheoscopeError(
        Message(
            "{module}: topk chooses the keys of each query, so weights are no function of M",
            module=type(module).__name__,
        )
    )
