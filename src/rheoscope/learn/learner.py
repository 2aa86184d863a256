"""What takes a step: all seeds at once (packed), or one by itself; who drives it cannot tell which.

losses ─► gradient of each seed ─► clipped, each by its own length ─► AdamW or Muon
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rheoscope.learn.packed_model import Packed
from rheoscope.learn.packed_optimiser import clip_each, packed_optimisers
from rheoscope.models.cuda_graph_steps import Recorder
from rheoscope.models.optimiser import optimisers, rate_at, recordable, set_rate
from rheoscope.models.penalty import Penalised
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, Task, autocast, filling, seed_draws
from rheoscope.models.train import Piece
from rheoscope.models.training_state import optimiser_tensors, put_back
from rheoscope.models.transformer import Stack

Losses = Float[Tensor, " seeds"]
"""A number for each seed."""


class SeedLoss(nn.Module):
    """From points to nats of each seed, summed over its tokens: logits of a large vocabulary need never exist in float32."""

    def __init__(self, unembed: nn.Module, seeds: int, ignored: int) -> None:
        super().__init__()
        self.unembed, self.seeds, self.ignored = unembed, seeds, ignored

    def forward(self, points: Float[Tensor, "sb n d"], y: Int[Tensor, "sb n"], smoothing: float = 0.0) -> Losses:
        flat = self.unembed(points).flatten(0, 1).float()
        each = cross_entropy(flat, y.flatten(), ignore_index=self.ignored, reduction="none", label_smoothing=smoothing)
        return each.view(self.seeds, -1).sum(1)


class SeedObjective(nn.Module):
    """Packed models with their losses, and what is kept small besides, of one forward pass, as one module to compile."""

    def __init__(self, model: Packed, task: Task, told: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.task, self.loss = model, task, SeedLoss(model.unembed, model.seeds, task.ignored)
        self.besides = Penalised(model.body, told)

    def forward(
        self, x: Int[Tensor, "sb s"], y: Int[Tensor, "sb t"], smoothing: float = 0.0
    ) -> tuple[Losses, Losses | None]:
        (given, wanted), clouds = self.task.given((x, y)), self.besides.hidden_states()
        return self.loss(self.model.points(*given, hidden_states=clouds), wanted, smoothing), self.besides(clouds)


class OneObjective(nn.Module):
    """One model with its loss, and what is kept small besides, whatever the task: a row of one seed."""

    def __init__(self, model: nn.Module, task: Task, told: Mapping[str, float]) -> None:
        super().__init__()
        self.model, self.task, self.besides = model, task, Penalised(model, told)

    def forward(
        self, x: Int[Tensor, "b s"], y: Int[Tensor, "b t"], smoothing: float = 0.0
    ) -> tuple[Losses, Losses | None]:
        clouds = self.besides.hidden_states()
        return self.task.loss(filling(self.model, clouds), (x, y), smoothing)[None], self.besides(clouds)


@dataclass(frozen=True, eq=False)
class Learner:
    """Seeds that learn together; `seeds` are their numbers, in the order of the rows of a batch.

    A batch of theirs is (seeds · b, n), the rows of the first seed first.
    """

    seeds: tuple[int, ...]
    objective: nn.Module
    optimisers: list[torch.optim.Optimizer]
    clip: Callable[[float], object]
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def model(self) -> nn.Module:
        model = self.objective.model
        assert isinstance(model, nn.Module)
        return model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def first(self) -> nn.Module:
        """The model of the first seed by itself, as it is now: on the CPU where seeds are packed."""
        return self.model.unpack(0) if isinstance(self.model, Packed) else self.model

    def compile(self, blocks: bool = False) -> None:
        """Have `torch.compile` make one graph of model and loss; or one of a block, which serves them all, and one of the loss."""
        stacks = [one for one in self.model.modules() if isinstance(one, Stack)]
        parts = [block for stack in stacks for block in stack.blocks]
        heads = [one for one in self.objective.modules() if isinstance(one, SeedLoss | Penalised)]
        for part in [*parts, *heads] if blocks else [self.objective]:
            part.compile()

    def record(self) -> None:
        """From now on record steps and play them: on a GPU, where the optimisers read their rate from the device."""
        self.recorder.on = recordable(self.optimisers)

    def step(self, recipe: Recipe, step: int, batch: Batch, tokens: Float[Tensor, " seeds"]) -> Losses:
        """One step of the optimisers, `tokens` of each seed predicted; gives each seed's loss per token before it."""
        if recipe.config.dropout or recipe.config.attention_dropout:
            seed_draws((step * 1_000_003 + self.seeds[0]) % 2**63, self.device)
        set_rate(self.optimisers, rate_at(recipe, step))
        return self.recorder(lambda *given: self._step(recipe, *given), *batch, tokens)

    def _step(self, recipe: Recipe, x: Tensor, y: Tensor, tokens: Float[Tensor, " seeds"]) -> Losses:
        """All of it that a device does."""
        total = torch.zeros(len(self.seeds), device=self.device)
        for piece in self._pieces((x, y), recipe.accumulate):
            with autocast(self.device):
                nats, besides = self.objective(*piece, recipe.label_smoothing)
                losses = nats / tokens
                asked = losses if besides is None else losses + besides / recipe.accumulate
            asked.sum().backward()
            total += losses.detach()
        self.clip(recipe.clip)
        for one in self.optimisers:
            one.step()
            one.zero_grad(set_to_none=True)
        return total

    def _pieces(self, batch: Batch, pieces: int) -> list[Piece]:
        """Some rows of every seed at a time."""
        apart = [part.unflatten(0, (len(self.seeds), -1)).chunk(pieces, 1) for part in batch]
        return [(x.flatten(0, 1), y.flatten(0, 1)) for x, y in zip(*apart, strict=True)]

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], count: Callable[[Batch], int]) -> Losses:
        """The loss per token of each seed on batches that are the same for all."""
        self.model.eval()
        total, tokens = torch.zeros(len(self.seeds), device=self.device, dtype=torch.float64), 0
        for x, y in batches:
            rows = [part.to(self.device).repeat(len(self.seeds), 1) for part in (x, y)]
            with autocast(self.device), uncompiled():
                total += self.objective(*rows)[0]
            tokens += count((x, y))
        self.model.train()
        return (total / tokens).float()

    def tensors(self, resumable: bool = True) -> dict[str, Tensor]:
        """All that it is, on the CPU: weights and, where it is to go on, what its optimisers remember."""
        weights = {f"weights.{name}": p.detach().cpu() for name, p in self.model.named_parameters()}
        return weights | (optimiser_tensors(self.optimisers, "optimiser.") if resumable else {})

    def fill(self, held: dict[str, Tensor], device: torch.device) -> None:
        """Be what was kept, on a device."""
        self.recorder.forget()
        self.model.to(device)  # tables of positions
        for name, own in self.model.named_parameters():
            own.data = held[f"weights.{name}"].to(device, copy=True)
        put_back(self.optimisers, held, "optimiser.")

    def leave(self) -> None:
        """Give the device back: what it was is kept elsewhere. What `torch.compile` made of it stays."""
        self.recorder.forget()
        for own in self.model.parameters():
            own.data = own.data.new_empty(0)
            own.grad = None
        for one in self.optimisers:
            one.state.clear()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the memory of recordings


@contextmanager
def uncompiled() -> Iterator[None]:
    """Meanwhile nothing is compiled: held-out batches have many shapes, and are few; so torch need not say that they take longer."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield


def packed_learner(models: Sequence[nn.Module], seeds: Sequence[int], recipe: Recipe, task: Task) -> Learner:
    """All seeds at once; models that cannot be packed are refused."""
    packed = Packed(models).train()
    parameters, objective = list(packed.parameters()), SeedObjective(packed, task, recipe.penalty)
    return Learner(tuple(seeds), objective, packed_optimisers(packed, recipe), lambda to: clip_each(parameters, to))


def lone_learner(model: nn.Module, seed: int, recipe: Recipe, task: Task) -> Learner:
    """One seed by itself: any model, any task."""
    parameters, objective = list(model.train().parameters()), OneObjective(model, task, recipe.penalty)
    made = optimisers(model, recipe)
    return Learner((seed,), objective, made, lambda to: nn.utils.clip_grad_norm_(parameters, to))
