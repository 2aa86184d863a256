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

from rheoscope.models.penalty import Penalised
from rheoscope.models.recipes import Recipe
from rheoscope.models.sentence_pairs import PAD, PairCorpus, side_by_side
from rheoscope.models.token_corpus import IGNORED, Corpus, seeded
from rheoscope.models.vocabulary import MASK, load_tokenizer
from rheoscope.shapes import RheoscopeError

Batch = tuple[Int[Tensor, "b s"], Int[Tensor, "b t"]]
Several = Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]]
"""Batches that may have different shapes."""
Says = Callable[..., Tensor]
"""From what a model is called with to logits: a model, or one that fills a list with its hidden states besides."""
Given = tuple[tuple[Tensor, ...], Int[Tensor, "b said"]]
"""What a model is called with, and the token that belongs at every place of its answer."""


@runtime_checkable
class Task(Protocol):
    """Batches that are a function of the step alone, and what a model loses on them; targets `ignored` are not predicted."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def ignored(self) -> int: ...

    def check(self, recipe: Recipe) -> None:
        """Refuse, before anything is trained, a recipe that this data cannot serve."""
        ...

    def batch(self, step: int, recipe: Recipe) -> Batch: ...

    def held_out(self, recipe: Recipe) -> Iterator[Batch]: ...

    def together(self, batches: Several) -> tuple[Tensor, Tensor]:
        """Batches of several seeds as one, the rows of the first one first, of each as many."""
        ...

    def given(self, batch: Batch) -> Given:
        """A batch as a model takes it."""
        ...

    def loss(self, model: Says, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Nats, summed over the tokens that are predicted."""
        ...

    def count(self, batch: Batch) -> int:
        """How many tokens are predicted."""
        ...

    def figures(self, nats: float, tokens: int) -> dict[str, float]:
        """What is reported of a loss on all held-out data."""
        ...


class Predicted(ABC):
    """Tokens that are to be said, wherever a batch does not have `ignored`; unless a task says more, a model is shown x alone."""

    @property
    @abstractmethod
    def ignored(self) -> int: ...

    def together(self, batches: Several) -> tuple[Tensor, Tensor]:
        x, y = (torch.cat(side) for side in zip(*batches, strict=True))
        return x, y

    def given(self, batch: Batch) -> Given:
        return batch[:1], batch[1]

    def loss(self, model: Says, batch: Batch, smoothing: float = 0.0) -> Float[Tensor, ""]:
        seen, wanted = self.given(batch)
        return nats(model(*seen), wanted, smoothing, self.ignored)

    def count(self, batch: Batch) -> int:
        return int((self.given(batch)[1] != self.ignored).sum())

    def figures(self, nats: float, tokens: int) -> dict[str, float]:
        return per_token(nats, tokens)


@dataclass(frozen=True)
class Prose(Predicted):
    """The next token, everywhere: (x, y) with y the tokens after x."""

    corpus: Corpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignored(self) -> int:
        return IGNORED

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "decoder", "text is")
        self.batch(0, recipe)
        next(iter(self.held_out(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        return self.corpus.windows(recipe.context, recipe.batch // recipe.accumulate)

    def figures(self, nats: float, tokens: int) -> dict[str, float]:
        return {"loss": nats / tokens, "bits per byte": nats / math.log(2) / self.corpus.held_out_bytes}


CHOSEN, HIDDEN, REPLACED = 0.15, 0.8, 0.1
"""The share of tokens that is predicted; of these, the shares that are hidden and that are replaced by another token."""
HELD_OUT = -1
"""In the place of a step: held-out tokens are hidden in the same places whenever they are asked for."""


@dataclass(frozen=True)
class Masked(Predicted):
    """The hidden tokens, from all others (BERT, arXiv:1810.04805): (x, y) with y the tokens at chosen places, ignored elsewhere.

    **Formula** 15 % of the places of each row are chosen, at least one; of these 80 % show the token `mask`, 10 % a token
    drawn at random, 10 % what was there. The loss is over the chosen places alone.

    **Laws** what is chosen is a function of (seed, step), so that a run resumes exactly; tokens at places that are not
    chosen stay.
    """

    corpus: Corpus
    mask: int

    @staticmethod
    def of(corpus: Corpus) -> "Masked":
        """With the token of the corpus that hides others."""
        mask = load_tokenizer(corpus.tokenizer).token_to_id(MASK)
        if mask is None:
            raise RheoscopeError(
                f"{corpus.tokenizer} has no token {MASK}, so nothing can be hidden; type other --data, or prepare with specials=MASKED"
            )
        return Masked(corpus, mask)

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignored(self) -> int:
        return IGNORED

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder", "masked text is")
        self.batch(0, recipe)
        next(iter(self.held_out(recipe)))

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, _ = self.corpus.batch(step, recipe.batch, recipe.context, recipe.seed)
        return self.hidden(x, seeded(recipe.seed, step, self.mask))

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        for at, x in enumerate(self.corpus.rows(recipe.context, recipe.batch // recipe.accumulate)):
            yield self.hidden(x, seeded(HELD_OUT, at, self.mask))

    def hidden(self, x: Int[Tensor, "b n"], draw: torch.Generator) -> Batch:
        """What is seen of a text, and what is to be said of it."""
        chosen = torch.rand(x.shape, generator=draw).argsort(-1) < max(1, round(CHOSEN * x.shape[-1]))
        fate, other = torch.rand(x.shape, generator=draw), torch.randint(self.vocabulary, x.shape, generator=draw)
        shown = torch.where(fate < HIDDEN, self.mask, torch.where(fate < HIDDEN + REPLACED, other, x))
        return torch.where(chosen, shown, x), torch.where(chosen, x, IGNORED)


@dataclass(frozen=True)
class Translation(Predicted):
    """A target sentence, token by token, from its source: (source, target), 0 is padding."""

    corpus: PairCorpus

    @property
    def vocabulary(self) -> int:
        return self.corpus.vocabulary

    @property
    def ignored(self) -> int:
        return PAD

    def check(self, recipe: Recipe) -> None:
        check_form(recipe, "encoder-decoder", "sentence pairs are")
        widest = max(int(part.widths().max(initial=0)) for part in (self.corpus.train, self.corpus.held_out))
        if widest > (most := min(recipe.config.context, recipe.batch * recipe.context // recipe.accumulate)):
            raise RheoscopeError(
                f"the longest sentence takes {widest:,} tokens, this recipe reads {most:,}; type --set context={widest}, "
                "or leave such pairs out"
            )

    def batch(self, step: int, recipe: Recipe) -> Batch:
        return self.corpus.batch(step, recipe.batch * recipe.context, recipe.seed)

    def held_out(self, recipe: Recipe) -> Iterator[Batch]:
        return self.corpus.held_out_batches(recipe.batch * recipe.context // recipe.accumulate)

    def together(self, batches: Several) -> tuple[Tensor, Tensor]:
        return side_by_side(batches)

    def given(self, batch: Batch) -> Given:
        source, target = batch
        return (source, target[:, :-1], source != PAD), target[:, 1:]


def per_token(nats: float, tokens: int) -> dict[str, float]:
    """Nats a token, and how many equally likely tokens that would be."""
    return {"loss": nats / tokens, "perplexity": math.exp(min(nats / tokens, 50))}


def nats(
    logits: Float[Tensor, "b t v"], wanted: Int[Tensor, "b t"], smoothing: float, ignored: int
) -> Float[Tensor, ""]:
    """Σ -log p(wanted), in float32; `smoothing` spreads that share of the target over the vocabulary.

    >>> round(float(nats(torch.zeros(1, 3, 8), torch.tensor([[5, 0, -100]]), 0.0, ignored=-100)), 4)  # 2 log 8
    4.1589
    """
    flat = logits.flatten(0, 1).float()
    return cross_entropy(flat, wanted.flatten(), ignore_index=ignored, reduction="sum", label_smoothing=smoothing)


class Objective(nn.Module):
    """A model with its loss, as one module: compiled together, logits of a large vocabulary never exist in float32.

    It gives the loss, and what else is to be kept small (`penalty.py`), if anything: of the same forward pass.
    """

    def __init__(self, model: nn.Module, task: Task, smoothing: float, told: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.model, self.task, self.smoothing, self.besides = model, task, smoothing, Penalised(model, told or {})

    def forward(
        self, x: Int[Tensor, "b s"], y: Int[Tensor, "b t"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""] | None]:
        clouds = self.besides.hidden_states()
        loss, besides = self.task.loss(filling(self.model, clouds), (x, y), self.smoothing), self.besides(clouds)
        return loss, None if besides is None else besides.sum()


def filling(model: nn.Module, clouds: list[Tensor] | None) -> Says:
    """The model, filling a list with its hidden states where there is one."""
    return model if clouds is None else partial(model, hidden_states=clouds)


def check_form(recipe: Recipe, form: str, what: str) -> None:
    """Refuse a recipe whose model is of another form than this data is for."""
    if recipe.config.form != form:
        raise RheoscopeError(
            f"{what} for form={form}, this recipe has form={recipe.config.form}; type another recipe or other data"
        )


def task_of(corpus: Corpus | PairCorpus, recipe: Recipe) -> Task:
    """What a recipe learns from a corpus."""
    if isinstance(corpus, PairCorpus):
        return Translation(corpus)
    return Masked.of(corpus) if recipe.config.form == "encoder" else Prose(corpus)


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, recipe: Recipe, device: torch.device) -> dict[str, float]:
    """The loss on all held-out data, every token predicted once."""
    was_training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for batch in task.held_out(recipe):
        on_device = (batch[0].to(device), batch[1].to(device))
        with autocast(device):
            total += float(task.loss(model, on_device))
        tokens += task.count(batch)
    model.train(was_training)
    return task.figures(total, tokens)


def seed_draws(seed: int, device: torch.device) -> None:
    """What is drawn next, on the CPU or on this device, is a function of the seed.

    At every step `torch.manual_seed` would do the same, and keep a stack trace for each kind of device that is not there.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU, nothing on a CPU: there a run must resume bit for bit."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
