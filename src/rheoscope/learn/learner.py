"""Training steps of one seed or of all seeds at once (packed), behind the same interface.

losses ─► gradient of each seed ─► clipped by its own norm ─► AdamW or Muon
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rheoscope.learn.packed_model import PackedModel
from rheoscope.learn.packed_optimiser import clip_per_seed, make_packed_optimisers
from rheoscope.models.cuda_graph_steps import Recorder
from rheoscope.models.optimiser import is_recordable, learning_rate, make_optimisers, set_rate
from rheoscope.models.penalty import PenaltyTerm
from rheoscope.models.qk_clip import clip_queries_keys
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, Task, autocast, seed_generators, with_hidden_states
from rheoscope.models.train import MicroBatch
from rheoscope.models.training_schedules import set_schedules
from rheoscope.models.training_state import optimiser_tensors, restore_optimisers
from rheoscope.models.transformer import Stack

SeedLosses = Float[Tensor, " seeds"]
"""A number per seed."""


class SeedLoss(nn.Module):
    """From points to the loss of each seed in nats, summed over its tokens.

    Compiled, the logits of a large vocabulary never exist in float32.
    """

    def __init__(self, unembed: nn.Module, n_seeds: int, ignore_index: int) -> None:
        super().__init__()
        self.unembed, self.n_seeds, self.ignore_index = unembed, n_seeds, ignore_index

    def forward(self, points: Float[Tensor, "sb n d"], y: Int[Tensor, "sb n"], smoothing: float = 0.0) -> SeedLosses:
        logits = self.unembed(points).flatten(0, 1).float()
        token_losses = cross_entropy(
            logits, y.flatten(), ignore_index=self.ignore_index, reduction="none", label_smoothing=smoothing
        )
        return token_losses.view(self.n_seeds, -1).sum(1)


class SeedObjective(nn.Module):
    """Packed models, their losses and their penalties in one forward pass, as one module to compile."""

    def __init__(self, model: PackedModel, task: Task, penalties: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.task, self.loss = model, task, SeedLoss(model.unembed, model.n_seeds, task.ignore_index)
        self.penalty_term = PenaltyTerm(model.body, penalties)

    def forward(
        self, x: Int[Tensor, "sb s"], y: Int[Tensor, "sb t"], smoothing: float = 0.0
    ) -> tuple[SeedLosses, SeedLosses | None]:
        (inputs, targets), hidden_states = self.task.inputs_and_targets((x, y)), self.penalty_term.hidden_states()
        points = self.model.points(*inputs, hidden_states=hidden_states)
        return self.loss(points, targets, smoothing), self.penalty_term(hidden_states)


class SingleObjective(nn.Module):
    """One model, its loss and its penalties, for any task; the result has one row, for one seed."""

    def __init__(self, model: nn.Module, task: Task, penalties: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.task, self.penalty_term = model, task, PenaltyTerm(model, penalties)

    def forward(
        self, x: Int[Tensor, "b s"], y: Int[Tensor, "b t"], smoothing: float = 0.0
    ) -> tuple[SeedLosses, SeedLosses | None]:
        hidden_states = self.penalty_term.hidden_states()
        loss = self.task.loss(with_hidden_states(self.model, hidden_states), (x, y), smoothing)
        return loss[None], self.penalty_term(hidden_states)


@dataclass(frozen=True, eq=False)
class Learner:
    """Seeds that train together. `seeds` are their numbers, in the order of the rows of a batch.

    A batch has the shape (seeds · b, n), with the rows of the first seed first.
    """

    seeds: tuple[int, ...]
    objective: nn.Module
    optimisers: list[torch.optim.Optimizer]
    clip_gradients: Callable[[float], object]
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def model(self) -> nn.Module:
        model = self.objective.model
        assert isinstance(model, nn.Module)
        return model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def first_model(self) -> nn.Module:
        """The current model of the first seed alone; on the CPU if seeds are packed."""
        return self.model.unpack(0) if isinstance(self.model, PackedModel) else self.model

    def compile(self, per_block: bool = False) -> None:
        """Compile model and loss into one graph, or (`per_block`) one graph for all blocks and one for the loss."""
        stacks = [module for module in self.model.modules() if isinstance(module, Stack)]
        block_modules = [block for stack in stacks for block in stack.blocks]
        loss_modules = [module for module in self.objective.modules() if isinstance(module, SeedLoss | PenaltyTerm)]
        for part in [*block_modules, *loss_modules] if per_block else [self.objective]:
            part.compile()

    def enable_recording(self) -> None:
        """Record steps as CUDA graphs from now on, if the optimisers read their rate from the device."""
        self.recorder.enabled = is_recordable(self.optimisers)

    def step(self, recipe: Recipe, step: int, batch: Batch, token_counts: Float[Tensor, " seeds"]) -> SeedLosses:
        """One optimiser step; `token_counts` is the number of targets per seed.

        Returns each seed's loss per token before the step.
        """
        if recipe.config.dropout or recipe.config.attention_dropout:
            seed_generators((step * 1_000_003 + self.seeds[0]) % 2**63, self.device)
        set_rate(self.optimisers, learning_rate(recipe, step))
        set_schedules(self.objective, recipe, step)
        return self.recorder(lambda *inputs: self._device_step(recipe, *inputs), *batch, token_counts)

    def _device_step(self, recipe: Recipe, x: Tensor, y: Tensor, token_counts: Float[Tensor, " seeds"]) -> SeedLosses:
        """The part of a step that runs on the device."""
        total = torch.zeros(len(self.seeds), device=self.device)
        for micro_batch in self._micro_batches((x, y), recipe.accumulate):
            with autocast(self.device):
                nats, penalty = self.objective(*micro_batch, recipe.label_smoothing)
                losses = nats / token_counts
                total_loss = losses if penalty is None else losses + penalty / recipe.accumulate
            total_loss.sum().backward()
            total += losses.detach()
        self.clip_gradients(recipe.clip)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if recipe.config.qk_clip:
            clip_queries_keys(self.model, recipe.config.qk_clip)
        return total

    def _micro_batches(self, batch: Batch, n_micro_batches: int) -> list[MicroBatch]:
        """Micro-batches with an equal number of rows of every seed."""
        chunks_by_part = [part.unflatten(0, (len(self.seeds), -1)).chunk(n_micro_batches, 1) for part in batch]
        return [(x.flatten(0, 1), y.flatten(0, 1)) for x, y in zip(*chunks_by_part, strict=True)]

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], count_targets: Callable[[Batch], int]) -> SeedLosses:
        """The loss per token of each seed on the same batches."""
        self.model.eval()
        total, n_tokens = torch.zeros(len(self.seeds), device=self.device, dtype=torch.float64), 0
        for x, y in batches:
            device_parts = [part.to(self.device).repeat(len(self.seeds), 1) for part in (x, y)]
            with autocast(self.device), eager_mode():
                total += self.objective(*device_parts)[0]
            n_tokens += count_targets((x, y))
        self.model.train()
        return (total / n_tokens).float()

    def state_tensors(self, resumable: bool = True) -> dict[str, Tensor]:
        """The weights and, if `resumable`, the states of the optimisers, on the CPU."""
        weights = {f"weights.{name}": p.detach().cpu() for name, p in self.model.named_parameters()}
        return weights | (optimiser_tensors(self.optimisers, "optimiser.") if resumable else {})

    def load_state(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Load a saved state onto a device."""
        self.recorder.reset()
        self.objective.to(device)  # buffers, such as position tables
        for name, parameter in self.model.named_parameters():
            parameter.data = state[f"weights.{name}"].to(device, copy=True)
        restore_optimisers(self.optimisers, state, "optimiser.")

    def release_device(self) -> None:
        """Free the memory on the device. The state must have been saved; the compiled graphs stay."""
        self.recorder.reset()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.new_empty(0)
            parameter.grad = None
        for optimiser in self.optimisers:
            optimiser.state.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # frees the memory of recorded graphs


@contextmanager
def eager_mode() -> Iterator[None]:
    """Run without compiled graphs.

    Held-out batches are few and have many shapes, and torch's warning about it is silenced.
    """
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield


def make_packed_learner(models: Sequence[nn.Module], seeds: Sequence[int], recipe: Recipe, task: Task) -> Learner:
    """A learner of all seeds at once. Raises `PackingError` for models that cannot be packed."""
    packed = PackedModel(models).train()
    parameters, objective = list(packed.parameters()), SeedObjective(packed, task, recipe.penalty)
    return Learner(
        tuple(seeds),
        objective,
        make_packed_optimisers(packed, recipe),
        lambda max_norm: clip_per_seed(parameters, max_norm),
    )


def make_single_learner(model: nn.Module, seed: int, recipe: Recipe, task: Task) -> Learner:
    """A learner of one seed, for any model and task."""
    parameters, objective = list(model.train().parameters()), SingleObjective(model, task, recipe.penalty)
    optimiser_list = make_optimisers(model, recipe)
    return Learner((seed,), objective, optimiser_list, lambda max_norm: nn.utils.clip_grad_norm_(parameters, max_norm))
