"""Training tasks: the next token of a text, its masked tokens, or the translation of a sentence.

A task provides batches and the loss of a batch. A loss is a sum over tokens with a count of them, so parts of a batch add up,
on one machine or several.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.config import set_fields
from rheoscope.models.penalty import PenaltyTerm
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PairCorpus, stack_batches
from rheoscope.models.token_corpus import IGNORE_INDEX, Corpus, seeded_generator
from rheoscope.models.vocabulary import MASK_TOKEN, PAD, load_tokenizer
from rheoscope.shapes import RheoscopeError

Batch = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
Batches = Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]]
"""Batches that may have different shapes."""
LogitsFunction = Callable[..., Tensor]
"""A model, or a function that also fills a list with the hidden states."""
InputsAndTargets = tuple[tuple[Tensor, ...], Int[Tensor, "b predicted"]]
"""The arguments of a model, and the target token at every position of its output."""


@runtime_checkable
class Task(Protocol):
    """Batches that depend only on the step, and the loss of a model on them. Targets equal to `ignore_index` do not count."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def ignore_index(self) -> int: ...

    def check(self, recipe: Recipe) -> None:
        """Raise before training if the recipe does not suit this data."""
        ...

    def batch(self, step: int, recipe: Recipe) -> Batch: ...

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]: ...

    def concat_batches(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Batches of several seeds as one, with the same number of rows for each."""
        ...

    def inputs_and_targets(self, batch: Batch) -> InputsAndTargets:
        """A batch as the arguments of a model and its targets."""
        ...

    def loss(self, model: LogitsFunction, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The sum of the losses of all predicted tokens, in nats."""
        ...

    def n_targets(self, batch: Batch) -> int:
        """The number of predicted tokens."""
        ...

    def metrics(self, nats: float, n_tokens: int) -> dict[str, float]:
        """The metrics reported for the loss on all held-out data."""
        ...


class TokenPrediction(ABC):
    """Prediction of tokens wherever the target is not `ignore_index`. By default the model receives only x."""

    @property
    @abstractmethod
    def ignore_index(self) -> int: ...

    def concat_batches(self, batches: Batches) -> tuple[Tensor, Tensor]:
        x, y = (torch.cat(side) for side in zip(*batches, strict=True))
        return x, y

    def inputs_and_targets(self, batch: Batch) -> InputsAndTargets:
        return batch[:1], batch[1]

    def loss(self, model: LogitsFunction, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        inputs, targets = self.inputs_and_targets(batch)
        return total_nats(model(*inputs), targets, smoothing, self.ignore_index)

    def n_targets(self, batch: Batch) -> int:
        return int((self.inputs_and_targets(batch)[1] != self.ignore_index).sum())

    def metrics(self, nats: float, n_tokens: int) -> dict[str, float]:
        return per_token_metrics(nats, n_tokens)


@dataclass(frozen=True)
class NextTokenTask(TokenPrediction):
    """Prediction of the next token at every position: (x, y), where y is x shifted by one."""

    corpus: Corpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "decoder", Message("text"))
        self.batch(0, recipe)
        next(iter(self.held_out_batches(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        return self.corpus.held_out_windows(recipe.context, recipe.batch // recipe.accumulate)

    def metrics(self, nats: float, n_tokens: int) -> dict[str, float]:
        return {"loss": nats / n_tokens, "bits per byte": nats / math.log(2) / self.corpus.held_out_bytes}


PREDICTED_FRACTION, MASK_TOKEN_FRACTION, RANDOM_TOKEN_FRACTION = 0.15, 0.8, 0.1
"""The fraction of tokens that is predicted, and the fractions of these that are masked and replaced at random."""
HELD_OUT_STEP = -1
"""A step number for held-out data, so that the same tokens are masked in every evaluation."""


@dataclass(frozen=True)
class MaskedTokenTask(TokenPrediction):
    """Prediction of masked tokens from all others (BERT, arXiv:1810.04805): y is ignored at positions that are not selected.

    **Formula** 15 % of the positions of each row are selected, at least one. Of these, 80 % show the mask token, 10 % a random token
    and 10 % the original token. The loss covers only the selected positions.

    **Laws** The selection is a function of (seed, step), so a run resumes exactly. Tokens at other positions stay unchanged.
    """

    corpus: Corpus
    mask_id: int

    @staticmethod
    def from_corpus(corpus: Corpus) -> "MaskedTokenTask":
        """The task with the mask token of the corpus."""
        mask_id = load_tokenizer(corpus.tokenizer).token_to_id(MASK_TOKEN)
        if mask_id is None:
            raise RheoscopeError(
                Message(
                    "{tokenizer} has no token {token}, which masked prediction needs",
                    tokenizer=str(corpus.tokenizer),
                    token=MASK_TOKEN,
                ),
                Advice("prepare(…, specials=MASKED_SPECIALS)", "--data FILE…"),
            )
        return MaskedTokenTask(corpus, mask_id)

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", Message("masked text"))
        self.batch(0, recipe)
        next(iter(self.held_out_batches(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, _ = self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)
        return self.mask_tokens(x, seeded_generator(recipe.seed, step, self.mask_id))

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        for index, x in enumerate(self.corpus.held_out_rows(recipe.context, recipe.batch // recipe.accumulate)):
            yield self.mask_tokens(x, seeded_generator(HELD_OUT_STEP, index, self.mask_id))

    def mask_tokens(self, x: Int[Tensor, "b n"], generator: torch.Generator) -> Batch:
        """The masked text and its targets."""
        is_predicted = torch.rand(x.shape, generator=generator).argsort(-1) < max(
            1, round(PREDICTED_FRACTION * x.shape[-1])
        )
        uniform, random_ids = (
            torch.rand(x.shape, generator=generator),
            torch.randint(self.vocabulary, x.shape, generator=generator),
        )
        replacement = torch.where(
            uniform < MASK_TOKEN_FRACTION,
            self.mask_id,
            torch.where(uniform < MASK_TOKEN_FRACTION + RANDOM_TOKEN_FRACTION, random_ids, x),
        )
        return torch.where(is_predicted, replacement, x), torch.where(is_predicted, x, IGNORE_INDEX)


@dataclass(frozen=True)
class TranslationTask(TokenPrediction):
    """Prediction of a target sentence, token by token, from its source: (source, target), with 0 as padding."""

    corpus: PairCorpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return PAD

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder-decoder", Message("a corpus of sentence pairs"))
        longest = max(int(pairs.widths().max(initial=0)) for pairs in (self.corpus.train, self.corpus.held_out))
        if longest > (max_tokens := min(recipe.config.context, recipe.batch * recipe.context // recipe.accumulate)):
            raise RheoscopeError(
                Message(
                    "the longest sentence has {n:,} tokens, more than the {max_tokens:,} that this recipe reads",
                    n=longest,
                    max_tokens=max_tokens,
                ),
                set_fields(context=longest),
            )

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.corpus.batch(step, recipe.batch * recipe.context, recipe.seed)

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        return self.corpus.held_out_batches(recipe.batch * recipe.context // recipe.accumulate)

    def concat_batches(self, batches: Batches) -> tuple[Tensor, Tensor]:
        return stack_batches(batches)

    def inputs_and_targets(self, batch: Batch) -> InputsAndTargets:
        source, target = batch
        return (source, target[:, :-1], source != PAD), target[:, 1:]


def per_token_metrics(nats: float, n_tokens: int) -> dict[str, float]:
    """The loss in nats per token, and the perplexity."""
    return {"loss": nats / n_tokens, "perplexity": math.exp(min(nats / n_tokens, 50))}


def total_nats(
    logits: Float[Tensor, "b t v"], targets: Int[Tensor, "b t"], smoothing: float, ignore_index: int
) -> Float[Tensor, ""]:
    """Σ -log p(target), in float32. `smoothing` spreads that fraction of the target over the vocabulary.

    >>> round(float(total_nats(torch.zeros(1, 3, 8), torch.tensor([[5, 0, -100]]), 0.0, ignore_index=-100)), 4)  # 2 log 8
    4.1589
    """
    flat = logits.flatten(0, 1).float()
    return cross_entropy(flat, targets.flatten(), ignore_index=ignore_index, reduction="sum", label_smoothing=smoothing)


class Objective(nn.Module):
    """A model and its loss as one module. Compiled together, they never materialise float32 logits of a large vocabulary.

    It returns the loss and the penalty (`penalty.py`) of the same forward pass, or None without a penalty.
    """

    def __init__(
        self, model: nn.Module, task: Task, smoothing: float, penalties: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        self.model, self.task, self.smoothing = model, task, smoothing
        self.penalty_term = PenaltyTerm(model, penalties or {})

    def forward(
        self, x: Int[Tensor, "b s"], y: Int[Tensor, "b t"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
        clouds = self.penalty_term.hidden_states()
        loss = self.task.loss(with_hidden_states(self.model, clouds), (x, y), self.smoothing)
        penalty = self.penalty_term(clouds)
        return loss, None if penalty is None else penalty.sum()


def with_hidden_states(model: nn.Module, clouds: list[Tensor] | None) -> LogitsFunction:
    """The model, which also fills a list with its hidden states if one is given."""
    return model if clouds is None else partial(model, hidden_states=clouds)


def check_form(recipe: Recipe, form: str, data: Message) -> None:
    """Raise if the form of the model does not suit this kind of data."""
    if recipe.config.form != form:
        raise RheoscopeError(
            Message(
                "{data} needs a model with form={form}, got form={received}; choose another recipe or other data",
                data=data,
                form=form,
                received=recipe.config.form,
            )
        )


def make_task(corpus: Corpus | PairCorpus, recipe: Recipe) -> Task:
    """The task that a recipe learns from a corpus."""
    if isinstance(corpus, PairCorpus):
        return TranslationTask(corpus)
    return MaskedTokenTask.from_corpus(corpus) if recipe.config.form == "encoder" else NextTokenTask(corpus)


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """The metrics on all held-out data. Every token is predicted once."""
    was_training = model.training
    model.eval()
    total, n_tokens = 0.0, 0
    for batch in task.held_out_batches(recipe):
        device_batch = (batch[0].to(device), batch[1].to(device))
        with autocast(device):
            total += float(task.loss(model, device_batch))
        n_tokens += task.n_targets(batch)
    model.train(was_training)
    return task.metrics(total, n_tokens)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of this device.

    `torch.manual_seed` would do the same, but at every step it also records a stack trace for each absent kind of device.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU and full precision on a CPU, where a run must resume bit for bit."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
