"""Runs of base texts in which one part at a time comes from the runs of donor texts.

Nothing before the patched part differs from the base run, so earlier blocks are not computed again, and the donor's part
is a constant: a head's output is made from the donor's weights, the donor's values, or both. A part that is bit-equal in both
runs is not run at all. A batch holds all pairs, once for every part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.covers.patch.pairs import PairBatch
from rheoscope.running.runner import RunnableModel
from rheoscope.space.model import Edits, Hooks, LayerEdit
from rheoscope.space.step import Step
from rheoscope.space.traces import Traces

HEAD_PARTS = ("output", "weights", "values")
"""What a head takes from the donor: its output, its attention weights (through M), or its values (through F)."""
TOKENS_PER_RUN = 4096
"""Texts run in batches of about this many tokens."""
Measure = Callable[[Float[Tensor, "c p v"]], Float[Tensor, "c p"]]


@dataclass(frozen=True, eq=False)
class PatchedRuns:
    """Base texts, donor texts with as many tokens, groups of tokens, and the metric of the log probabilities at one token."""

    model: RunnableModel
    base: Traces
    donor: Traces
    groups: Bool[Tensor, "p s n"]
    measure: Measure
    token: int
    base_metric: Float[Tensor, " p"]

    def stream(self, step: Step) -> Float[Tensor, "s p"]:
        """The metric with the donor's points at this step, for every group of tokens."""
        index = self.base.steps.index(step)
        points, base_points = self.donor.points_at(index), self.base.points_at(index)
        first_block = 0 if step.layer is None else step.layer + step.is_end_of_layer

        def changes(parts: Int[Tensor, " c"]) -> tuple[Edits, Hooks]:
            return {}, {step: partial(_set_points, points, self._masks(parts))}

        return self._run(self._differs(points - base_points), first_block, changes)

    def mlp(self, layer: int) -> Float[Tensor, "s p"]:
        """The metric with the donor's update of the MLP of a layer, for every group of tokens."""
        end = Step(layer, "resid_post")
        difference = mlp_update(self.donor, end) - mlp_update(self.base, end)

        def changes(parts: Int[Tensor, " c"]) -> tuple[Edits, Hooks]:
            return {}, {end: partial(_add_to_points, difference, self._masks(parts))}

        return self._run(self._differs(difference), layer + 1, changes)

    def heads(self, layer: int, part: str) -> Float[Tensor, "h p"]:
        """The metric with a part of the donor's head, for every head of a layer."""
        outputs, base_outputs = self.head_outputs(layer, part), self.head_outputs(layer, "")

        def changes(parts: Int[Tensor, " c"]) -> tuple[Edits, Hooks]:
            return {layer: _set_outputs(outputs[:, parts], parts)}, {}

        return self._run((outputs != base_outputs).any(-1).any(-1).any(0), layer, changes)

    def head_groups(self, layer: int, heads: Sequence[int]) -> Float[Tensor, "c s p"]:
        """The metric with the donor's output of a head at a group of tokens, for some heads and every group."""
        outputs, base_outputs = self.head_outputs(layer, "output"), self.head_outputs(layer, "")
        is_changed = (outputs != base_outputs).any(-1)[:, list(heads)]
        n_groups = self.groups.shape[1]
        differs = (is_changed[:, :, None] & self.groups[:, None]).any(-1).any(0)
        head_indices = torch.tensor(heads, device=outputs.device)

        def changes(parts: Int[Tensor, " c"]) -> tuple[Edits, Hooks]:
            chosen_heads, masks = head_indices[parts // n_groups], self._masks(parts % n_groups)
            return {layer: _set_heads_at_tokens(outputs, chosen_heads, masks)}, {}

        return self._run(differs.flatten(), layer, changes).unflatten(0, (len(heads), n_groups))

    def with_outputs(self, layer: int, heads: Sequence[int], outputs: Float[Tensor, "p c n e"]) -> Float[Tensor, "c p"]:
        """The metric with a given output of one head of a layer, for some heads and outputs."""
        head_indices = torch.tensor(heads, device=outputs.device)

        def changes(parts: Int[Tensor, " c"]) -> tuple[Edits, Hooks]:
            return {layer: _set_outputs(outputs[:, parts], head_indices[parts])}, {}

        return self._run(torch.ones_like(head_indices, dtype=torch.bool), layer, changes)

    def head_outputs(self, layer: int, part: str) -> Float[Tensor, "p h n e"]:
        """What the heads of a layer mix, with the donor's weights, the donor's values, both, or neither ("")."""
        heads = self.base.view.heads_of(layer)
        base_q, base_k, base_v = heads.qkv(self.base.layer_input(layer))
        if not part:
            return heads.mechanism.attend(base_q, base_k, base_v)
        q, k, v = heads.qkv(self.donor.layer_input(layer))
        queries_and_keys = (base_q, base_k) if part == "values" else (q, k)
        return heads.mechanism.attend(*queries_and_keys, base_v if part == "weights" else v)

    def _masks(self, groups: Int[Tensor, " c"]) -> Bool[Tensor, "b n"]:
        """The tokens of a group of every pair, for some groups; rows of one group are consecutive."""
        return self.groups[:, groups].transpose(0, 1).flatten(0, 1)

    def _differs(self, difference: Float[Tensor, "p n d"]) -> Bool[Tensor, " s"]:
        """The groups in which any token of any pair differs."""
        return ((difference != 0).any(-1)[:, None] & self.groups).any(-1).any(0)

    def _run(
        self,
        differs: Bool[Tensor, " parts"],
        first_block: int,
        changes: Callable[[Int[Tensor, " c"]], tuple[Edits, Hooks]],
    ) -> Float[Tensor, "parts p"]:
        """The metric of every part that differs, in batches; blocks before `first_block` are not computed again."""
        values = self.base_metric.repeat(len(differs), 1)
        parts_per_run = max(1, TOKENS_PER_RUN // self.base.ids.numel())
        for parts in differs.nonzero()[:, 0].split(parts_per_run):
            edits, hooks = changes(parts)
            ids = self.base.ids.repeat(len(parts), 1)
            reused = [_repeat(output, len(parts)) for output in self._block_outputs[:first_block]]
            logits = self.model.run_batch(ids, edit=edits, hooks=hooks, block_outputs=reused)[:, self.token]
            log_probs = logits.double().log_softmax(-1).unflatten(0, (len(parts), -1))
            values[parts] = self.measure(log_probs).to(values)
        return values

    @cached_property
    def _block_outputs(self) -> list[Any]:
        """The blocks' outputs for the base texts."""
        return self.model.block_outputs(self.base.ids)


def _repeat(output: Any, n_parts: int) -> Any:
    """A block's output for so many copies of the base texts."""
    if isinstance(output, Tensor):
        return output.repeat(n_parts, *[1] * (output.ndim - 1)) if output.ndim else output
    return tuple(_repeat(part, n_parts) for part in output) if isinstance(output, tuple) else output


def both_directions(batch: PairBatch) -> tuple[PatchedRuns, PatchedRuns]:
    """The runs that restore (corrupt texts with clean parts) and those that disrupt (clean texts with corrupt parts)."""
    restore, disrupt = (
        PatchedRuns(batch.model, base, donor, batch.groups, batch.measure, batch.token, metric)
        for base, donor, metric in (
            (batch.corrupt, batch.clean, batch.metrics[1]),
            (batch.clean, batch.corrupt, batch.metrics[0]),
        )
    )
    return restore, disrupt


def mlp_update(traces: Traces, end: Step) -> Float[Tensor, "p n d"]:
    """What the MLP of a layer adds to every point. `end` is the last step of the layer."""
    assert end.layer is not None
    return traces.points_at(traces.steps.index(end)) - traces.points_at(traces.mid_steps[end.layer])


def _rows(x: Float[Tensor, "p *s"], n_rows: int) -> Float[Tensor, "b *s"]:
    """A tensor of every pair, repeated for every part."""
    return x.repeat(n_rows // len(x), *[1] * (x.ndim - 1))


def _set_points(points: Float[Tensor, "p n d"], mask: Bool[Tensor, "b n"], x: Float[Tensor, "b n d"]) -> Tensor:
    """Every row with the new points of its own tokens."""
    return torch.where(mask[..., None], _rows(points, len(x)).to(x), x)


def _add_to_points(updates: Float[Tensor, "p n d"], mask: Bool[Tensor, "b n"], x: Float[Tensor, "b n d"]) -> Tensor:
    """Every row with the updates added to its own tokens."""
    return x + torch.where(mask[..., None], _rows(updates, len(x)).to(x), 0)


def _set_outputs(outputs: Float[Tensor, "p c n e"], heads: Int[Tensor, " c"]) -> LayerEdit:
    """Every row with the new output of its own head."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        rows = torch.arange(len(out), device=out.device)
        new_outputs = outputs.transpose(0, 1).flatten(0, 1)
        return out.index_put((rows, heads.repeat_interleave(len(outputs))), new_outputs.to(out))

    return edit


def _set_heads_at_tokens(
    outputs: Float[Tensor, "p h n e"], heads: Int[Tensor, " c"], mask: Bool[Tensor, "b n"]
) -> LayerEdit:
    """Every row with the new output of its own head at its own tokens."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        rows, row_heads = torch.arange(len(out), device=out.device), heads.repeat_interleave(len(outputs))
        new_outputs = outputs[:, heads].transpose(0, 1).flatten(0, 1).to(out)
        mixed_outputs = torch.where(mask[..., None], new_outputs, out[rows, row_heads])
        return out.index_put((rows, row_heads), mixed_outputs)

    return edit
