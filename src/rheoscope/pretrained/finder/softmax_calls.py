"""Attention on a tape, cut at the softmax: weights = softmax(cap(scale q k) + bias + mask), output = weights v."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.pretrained.finder.chains import LAYOUT_OPERATIONS, MATRIX_PRODUCTS, unknown_operation
from rheoscope.pretrained.finder.equal_operations import value_numbers
from rheoscope.pretrained.finder.key_choice import key_choices
from rheoscope.pretrained.finder.tape import ModuleCall, Operation, Tape, Value, replay, replay_as_recorded
from rheoscope.shapes import RheoscopeError

MASKED_BELOW = -1e4
"""Scores at or below this are masked."""
SOFTMAX_OPERATIONS = frozenset({"_softmax", "_safe_softmax"})
NEAR_SCORE, FAR_SCORE = 2.0**-12, 2.0**30
"""A cap leaves near scores as they are, and bounds far ones."""


@dataclass(frozen=True, eq=False)
class SoftmaxCall:
    """One call of attention: the tensors around its softmax, and what happens to a score on the way.

    `queries` is (h, n, k), `keys` (h, k, s) and `values` (h, s, e), as the two products read them. `score` is the first product and
    `output` the second. `bias` is added after the cap; `sinks` are scores of a key without a token. `further_products` have the
    values and outputs of other products with the same weights. `choices` are steps at which tokens choose their keys.
    """

    index: int
    queries: Value
    keys: Value
    values: Value
    score: Value
    scores: Value
    weights: Value
    output: Value
    scale: Float[Tensor, " h"] = torch.ones(1)
    cap: float | None = None
    bias: Float[Tensor, "h n s"] | None = None
    mask: Bool[Tensor, "n s"] = torch.ones(1, 1, dtype=torch.bool)
    sinks: Float[Tensor, " h"] | None = None
    further_products: tuple[tuple[Value, Value], ...] = ()
    choices: tuple[Operation, ...] = ()

    @property
    def chosen(self) -> set[Value]:
        """The tensors that say which keys are chosen."""
        return {value for choice in self.choices for value in choice.results}

    @property
    def boundary(self) -> set[Value]:
        """Everything of the tokens that the scores read: queries, keys, and chosen keys."""
        return {self.queries, self.keys, *self.chosen}

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The outputs of all products with these weights."""
        return (self.output, *(output for _, output in self.further_products))

    @property
    def all_values(self) -> tuple[Value, ...]:
        """The values of all products with these weights."""
        return (self.values, *(values for values, _ in self.further_products))


def softmax_indices(tape: Tape) -> list[int]:
    """The indices of all softmaxes over keys."""
    return tape.share("softmaxes", lambda: _softmax_indices(tape))


def _softmax_indices(tape: Tape) -> list[int]:
    return [
        index
        for index, operation in enumerate(tape.operations)
        if operation.name in SOFTMAX_OPERATIONS and tape.template(operation.results[0]).ndim >= 3
    ]


def distinct_softmaxes(tape: Tape) -> list[int]:
    """The softmaxes over keys without those that repeat an earlier one."""
    indices, result = softmax_indices(tape), list[int]()
    repeated: set[int] = set()
    for index in indices:
        if index not in repeated:
            result.append(index)
            repeated.update(repeated_softmaxes(tape, index))
    return result


def repeated_softmaxes(tape: Tape, index: int) -> list[int]:
    """The later softmaxes in the same call of a module that equal operations lead to (DiffLlama has one for each half of its values)."""
    numbers, call = value_numbers(tape), _innermost_call(tape, index)
    end = len(tape.operations) if call is None else call.last_operation
    later = [i for i in softmax_indices(tape) if index < i < end and _innermost_call(tape, i) is call]
    weights = [numbers[tape.operations[i].results[0]] for i in (index, *later)]
    return [i for i, number in zip(later, weights[1:], strict=True) if number == weights[0]]


def _innermost_call(tape: Tape, index: int) -> ModuleCall | None:
    """The smallest call of a module in which an operation runs."""
    around = [call for call in tape.calls if call.first_operation <= index < call.last_operation]
    return min(around, key=lambda call: call.last_operation - call.first_operation, default=None)


def read_softmax_call(tape: Tape, index: int, tokens: set[Value]) -> SoftmaxCall:
    """The attention around a softmax. `tokens` are the tensors that depend on the points."""
    softmax = tape.operations[index]
    scores, weights = softmax.args[0].value, softmax.results[0]
    product = score_product(tape, scores, tokens)
    queries, keys = (x.value for x in product.args[-2:])
    value_product = output_product(tape, index)
    call = SoftmaxCall(
        index,
        queries,
        keys,
        value_product.args[-1].value,
        product.results[0],
        scores,
        weights,
        value_product.results[0],
        choices=tuple(key_choices(tape, scores, {queries, keys})),
    )
    further = [output_product(tape, i) for i in repeated_softmaxes(tape, index)]
    constant, sinks = constant_scores(tape, call, {})
    mask = is_allowed(constant)
    bias = torch.where(mask, constant, 0.0)
    scale, cap = score_map(tape, call, mask)
    return replace(
        call,
        scale=scale * float(product.kwargs.get("alpha", 1.0)),
        cap=cap,
        bias=bias if bool(bias.abs().max() > 0) else None,
        mask=mask,
        sinks=sinks,
        further_products=tuple((x.args[-1].value, x.results[0]) for x in further),
    )


def is_allowed(constant: Float[Tensor, "h n s"]) -> Bool[Tensor, "n s"]:
    """The pairs that no head masks."""
    return (constant > MASKED_BELOW).all(0)


def score_product(tape: Tape, scores: Value, tokens: set[Value]) -> Operation:
    """The product of queries and keys before a softmax. Raises if there are several, or none."""
    products: dict[int, Operation] = {}
    pending, seen = [scores], set[Value]()
    while pending:
        current = pending.pop()
        operation = tape.operation_of(current)
        if current in seen or current not in tokens or operation is None:
            continue
        seen.add(current)
        if operation.name in MATRIX_PRODUCTS and all(x.value in tokens for x in operation.args[-2:]):
            products[tape.producer[current]] = operation
        else:  # whole numbers only choose among keys
            pending.extend(x for x in operation.operands if tape.template(x).is_floating_point())
    if len(products) != 1:
        raise RheoscopeError(
            Message(
                "{module}: scores are made of {n} products of tokens, expected 1 product of queries and keys",
                module=type(tape.operations[tape.producer[scores]].module).__name__,
                n=len(products),
            )
        )
    return next(iter(products.values()))


def output_product(tape: Tape, index: int) -> Operation:
    """The product of weights and values. Between it and the softmax, numbers may only be moved."""
    reached = set(tape.operations[index].results)
    for operation in tape.operations[index + 1 :]:
        if reached.isdisjoint(operation.operands):
            continue
        if operation.name in MATRIX_PRODUCTS:
            return operation
        if operation.name not in LAYOUT_OPERATIONS:
            raise unknown_operation(operation)
        reached.update(operation.results)
    raise RheoscopeError(Message("the weights of a softmax multiply no values"))


def constant_scores(
    tape: Tape, call: SoftmaxCall, constants: dict[Value, Tensor]
) -> tuple[Float[Tensor, "h n s"], Float[Tensor, " h"] | None]:
    """The scores of queries that are 0 (mask and bias), and those of sinks, if any."""
    zeros = {x: torch.zeros_like(tape.template(x)) for x in (call.queries, call.keys)}
    chosen = {x: tape.tensors[x] for x in call.chosen}
    table = replay_as_recorded(tape, [call.scores], {**constants, **chosen, **zeros})[0].double()
    n_heads, n_keys = _table(tape.template(call.score)).shape[0], tape.template(call.score).shape[-1]
    table = _table(table).expand(n_heads, -1, -1)
    if table.shape[-1] == n_keys:
        return table, None
    sinks = table[:, -1, -1] - table[:, -1, :-1].amax(-1)  # a shift of the whole row changes nothing
    table = table[..., :-1] - table[..., -1:]
    return torch.where(table > MASKED_BELOW, table - table.amax(-1, keepdim=True), table), sinks


def _table(x: Tensor) -> Float[Tensor, "h n s"]:
    return x.reshape(-1, *x.shape[-2:])


def score_map(tape: Tape, call: SoftmaxCall, mask: Bool[Tensor, "n s"]) -> tuple[Float[Tensor, " h"], float | None]:
    """The factor of each head's score, and the cap, if any. Scores are probed at the query with most keys and its first key."""
    row = int(mask.sum(-1).argmax())
    column, other = (int(mask[row].nonzero()[i]) for i in (0, -1))

    def probe(number: float) -> Float[Tensor, " h"]:
        product = torch.zeros_like(tape.template(call.score), dtype=torch.float64)
        product[..., row, column] = number
        table = _table(replay(tape, [call.scores], {call.score: product})[0])
        return table[:, row, column] - table[:, row, other]

    blank = probe(0.0)
    slope, far = probe(1.0) - blank, probe(FAR_SCORE) - blank
    if bool((far > FAR_SCORE / 2 * slope).all()):
        return slope.contiguous(), None
    return ((probe(NEAR_SCORE) - blank) / NEAR_SCORE).contiguous(), float(far[0])
