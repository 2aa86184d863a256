"""What is learned: the next token of prose, its hidden tokens, or the translation of a sentence.

A task gives batches and the loss of a batch.

Losses are sums over tokens beside how many tokens they are of, so that pieces of a batch, on one machine or many, add up.
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

from rheoscope.models.penalty import PenaltyTerm
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PAD, PairCorpus, stack_batches
from rheoscope.models.token_corpus import IGNORE_INDEX, Corpus, seeded_generator
from rheoscope.models.vocabulary import MASK_TOKEN, load_tokenizer
from rheoscope.shapes import RheoscopeError

Batch = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
Batches = Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]]
"""Batches that may have different shapes."""
LogitsFunction = Callable[..., Tensor]
"""From what a model is called with to logits: a model, or one that fills a list with its hidden states besides."""
InputsAndTargets = tuple[tuple[Tensor, ...], Int[Tensor, "b said"]]
"""What a model is called with, and the token that belongs at every place of its answer."""


@runtime_checkable
class Task(Protocol):
    """Batches that are a function of the step alone, and what a model loses on them; targets `ignored` are not predicted."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def ignore_index(self) -> int: ...

    def check(self, recipe: Recipe) -> None:
        """Refuse, before anything is trained, a recipe that this data cannot serve."""
        ...

    def batch(self, step: int, recipe: Recipe) -> Batch: ...

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]: ...

    def concat_batches(self, batches: Batches) -> tuple[Tensor, Tensor]:
        """Batches of several seeds as one, the rows of the first one first, of each as many."""
        ...

    def inputs_and_targets(self, batch: Batch) -> InputsAndTargets:
        """A batch as a model takes it."""
        ...

    def loss(self, model: LogitsFunction, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Nats, summed over the tokens that are predicted."""
        ...

    def n_targets(self, batch: Batch) -> int:
        """How many tokens are predicted."""
        ...

    def metrics(self, nats: float, n_tokens: int) -> dict[str, float]:
        """What is reported of a loss on all held-out data."""
        ...


class TokenPrediction(ABC):
    """Tokens that are to be said, wherever a batch does not have `ignored`; unless a task says more, a model is shown x alone."""

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
    """The next token, everywhere: (x, y) with y the tokens after x."""

    corpus: Corpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "decoder", "text is")
        self.batch(0, recipe)
        next(iter(self.held_out_batches(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        return self.corpus.held_out_windows(recipe.context, recipe.batch // recipe.accumulate)

    def metrics(self, nats: float, n_tokens: int) -> dict[str, float]:
        return {"loss": nats / n_tokens, "bits per byte": nats / math.log(2) / self.corpus.held_out_bytes}


PREDICTED_FRACTION, MASK_TOKEN_FRACTION, RANDOM_TOKEN_FRACTION = 0.15, 0.8, 0.1
"""The share of tokens that is predicted; of these, the shares that are hidden and that are replaced by another token."""
HELD_OUT_STEP = -1
"""In the place of a step: held-out tokens are hidden in the same places whenever they are asked for."""


@dataclass(frozen=True)
class MaskedTokenTask(TokenPrediction):
    """The hidden tokens, from all others (BERT, arXiv:1810.04805): (x, y) with y the tokens at chosen places, ignored elsewhere.

    **Formula** 15 % of the places of each row are chosen, at least one; of these 80 % show the token `mask`, 10 % a token
    drawn at random, 10 % what was there. The loss is over the chosen places alone.

    **Laws** what is chosen is a function of (seed, step), so that a run resumes exactly; tokens at places that are not
    chosen stay.
    """

    corpus: Corpus
    mask_id: int

    @staticmethod
    def from_corpus(corpus: Corpus) -> "MaskedTokenTask":
        """With the token of the corpus that hides others."""
        mask_id = load_tokenizer(corpus.tokenizer).token_to_id(MASK_TOKEN)
        if mask_id is None:
            raise RheoscopeError(
                f"{corpus.tokenizer} has no token {MASK_TOKEN}, so nothing can be hidden; type other --data, "
                "or prepare with specials=MASKED"
            )
        return MaskedTokenTask(corpus, mask_id)

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return IGNORE_INDEX

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", "masked text is")
        self.batch(0, recipe)
        next(iter(self.held_out_batches(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, _ = self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)
        return self.mask_tokens(x, seeded_generator(recipe.seed, step, self.mask_id))

    def held_out_batches(self, recipe: Recipe) -> Iterator[Batch]:
        for index, x in enumerate(self.corpus.held_out_rows(recipe.context, recipe.batch // recipe.accumulate)):
            yield self.mask_tokens(x, seeded_generator(HELD_OUT_STEP, index, self.mask_id))

    def mask_tokens(self, x: Int[Tensor, "b n"], generator: torch.Generator) -> Batch:
        """What is seen of a text, and what is to be said of it."""
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
    """A target sentence, token by token, from its source: (source, target), 0 is padding."""

    corpus: PairCorpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignore_index(self) -> int:
        return PAD

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder-decoder", "sentence pairs are")
        longest = max(int(pairs.widths().max(initial=0)) for pairs in (self.corpus.train, self.corpus.held_out))
        if longest > (max_tokens := min(recipe.config.context, recipe.batch * recipe.context // recipe.accumulate)):
            raise RheoscopeError(
                f"the longest sentence takes {longest:,} tokens, this recipe reads {max_tokens:,}; type --set context={longest}, "
                "or leave such pairs out"
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
    """Nats a token, and how many equally likely tokens that would be."""
    return {"loss": nats / n_tokens, "perplexity": math.exp(min(nats / n_tokens, 50))}


def total_nats(
    logits: Float[Tensor, "b t v"], targets: Int[Tensor, "b t"], smoothing: float, ignore_index: int
) -> Float[Tensor, ""]:
    """Σ -log p(wanted), in float32; `smoothing` spreads that share of the target over the vocabulary.

    >>> round(float(total_nats(torch.zeros(1, 3, 8), torch.tensor([[5, 0, -100]]), 0.0, ignore_index=-100)), 4)  # 2 log 8
    4.1589
    """
    flat = logits.flatten(0, 1).float()
    return cross_entropy(flat, targets.flatten(), ignore_index=ignore_index, reduction="sum", label_smoothing=smoothing)


class Objective(nn.Module):
    """A model with its loss, as one module: compiled together, logits of a large vocabulary never exist in float32.

    It gives the loss, and what else is to be kept small (`penalty.py`), if anything: of the same forward pass.
    """

    def __init__(
        self, model: nn.Module, task: Task, smoothing: float, penalties: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        self.model, self.task, self.smoothing, self.besides = (
            model,
            task,
            smoothing,
            PenaltyTerm(model, penalties or {}),
        )

    def forward(
        self, x: Int[Tensor, "b s"], y: Int[Tensor, "b t"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
        clouds = self.besides.hidden_states()
        loss, penalty = (
            self.task.loss(with_hidden_states(self.model, clouds), (x, y), self.smoothing),
            self.besides(clouds),
        )
        return loss, None if penalty is None else penalty.sum()


def with_hidden_states(model: nn.Module, clouds: list[Tensor] | None) -> LogitsFunction:
    """The model, filling a list with its hidden states where there is one."""
    return model if clouds is None else partial(model, hidden_states=clouds)


def check_form(recipe: Recipe, form: str, subject: str) -> None:
    """Refuse a recipe whose model is of another form than this data is for."""
    if recipe.config.form != form:
        raise RheoscopeError(
            f"{subject} for form={form}, this recipe has form={recipe.config.form}; type another recipe or other data"
        )


def make_task(corpus: Corpus | PairCorpus, recipe: Recipe) -> Task:
    """What a recipe learns from a corpus."""
    if isinstance(corpus, PairCorpus):
        return TranslationTask(corpus)
    return MaskedTokenTask.from_corpus(corpus) if recipe.config.form == "encoder" else NextTokenTask(corpus)


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """The loss on all held-out data, every token predicted once."""
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
    """What is drawn next, on the CPU or on this device, is a function of the seed.

    At every step `torch.manual_seed` would do the same, and keep a stack trace for each kind of device that is not there.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU, nothing on a CPU: there a run must resume bit for bit."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
