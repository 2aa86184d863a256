"""Text generation: a decoder continues a text, an encoder-decoder translates one.

    p(next) = softmax( filter( logits / temperature ) )

`generate` returns the whole text, `stream` yields it token by token, and `translate` decodes with or without a beam. All of
them cache keys and values (`GenerationCache`), so a new token costs one row of the model.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.zoo import ZOO
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.models.config import Config
from rheoscope.models.generation_cache import GenerationCache
from rheoscope.models.transformer import Ids, Transformer, Translator
from rheoscope.running.eval_mode import eval_mode
from rheoscope.running.sampling import NextTokens, check_sampling, sample_token
from rheoscope.shapes import RheoscopeError

Logits = Float[Tensor, "b v"]


def generate(
    model: Transformer,
    ids: Ids,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    cached: bool = True,
    stop: int | None = None,
) -> Int[Tensor, "b longer"]:
    """The texts `ids` with up to `tokens` more tokens each.

    **Formula** The next token is sampled from softmax(logits / temperature) over the tokens that `top_k` and `top_p` retain. At
    temperature 0 it is the most likely token.

    **Returns** (b, n + t) with t ≤ `tokens`, for prompts (b, n) of one length. A text that has produced `stop` repeats it until
    all texts have, and then generation ends.

    **Settings** `cached=False` reads the whole text again for every token. A mechanism that is defined only for square attention
    (`shaped`) is always read this way.

    **Laws** The same seed gives the same text. Caching does not change the logits.

    **See also** `stream` yields the same tokens one by one. `translate` is for encoder-decoders.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))
    >>> generate(model, torch.tensor([[1, 2]]), tokens=3).shape
    torch.Size([1, 5])
    """
    new_tokens = list(stream(model, ids, tokens, temperature, top_k, top_p, seed, cached, stop))
    return torch.cat([ids, torch.stack(new_tokens, 1)], 1) if new_tokens else ids


def stream(
    model: Transformer,
    ids: Ids,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    cached: bool = True,
    stop: int | None = None,
) -> Iterator[NextTokens]:
    """The tokens of `generate` as they are sampled, (b,) at a time.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2))
    >>> sum(1 for token in stream(model, torch.tensor([[1, 2]]), tokens=3))
    3
    """
    check_prompt(model.config, ids, tokens)
    check_sampling(temperature, top_k, top_p)
    generator = Generator(ids.device).manual_seed(seed)
    is_stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    with eval_mode(model):
        continuation = Continuation(model, ids, tokens, cached)
        for n_left in range(tokens, 0, -1):
            token = sample_token(continuation.logits, temperature, top_k, top_p, generator)
            if stop is not None:
                token = token.masked_fill(is_stopped, stop)
                is_stopped = token == stop
            yield token
            if n_left == 1 or (stop is not None and bool(is_stopped.all())):
                return
            continuation.append(token)


class Continuation:
    """Texts that grow token by token, with the logits of the next token."""

    def __init__(self, model: Transformer, ids: Ids, tokens: int, cached: bool) -> None:
        self.model, self.ids, config = model, ids, model.config
        is_square_only = ZOO[config.mechanism].domain.requires_square
        self.cache = GenerationCache(config.depth, ids.shape[1] + tokens) if cached and not is_square_only else None
        self.logits = self._next_logits(ids)

    def append(self, token: NextTokens) -> None:
        if self.cache is None:
            self.ids = torch.cat([self.ids, token[:, None]], 1)
        self.logits = self._next_logits(self.ids if self.cache is None else token[:, None])

    @torch.no_grad()  # not on `stream`, where it would also disable gradients of the caller between tokens
    def _next_logits(self, ids: Ids) -> Logits:
        return self.model.unembed(self.model.stack(ids, None, self.cache)[:, -1])


@torch.no_grad()
def translate(
    model: Translator,
    source: Ids,
    start: int,
    end: int,
    max_tokens: int,
    beam: int = 1,
    is_token: Bool[Tensor, "b s"] | None = None,
    length_penalty: float = 0.6,
) -> Int[Tensor, "b t"]:
    """The translation of every source: tokens after `start`, up to `end`. Shorter ones are padded with `end`.

    **Formula** `beam=1` takes the most likely token each time. A larger beam keeps that many unfinished targets. It returns the
    finished target with the largest log p(target) / ((5 + length) / 6)^length_penalty (arXiv:1609.08144), where the length counts
    `end`. If none finishes within `max_tokens` tokens, it returns the most likely unfinished target. The paper of 2017
    (arXiv:1706.03762) uses beam 4 and length_penalty .6.

    **Returns** (b, t) with t ≤ `max_tokens`, for sources (b, s). `is_token` (b, s) is False at padding.

    **Laws** Padding changes nothing. A beam that holds every target finds the best one.

    >>> import torch
    >>> from rheoscope.models.config import Config
    >>> model = Translator(Config(vocabulary=9, width=8, depth=1, heads=2, form="encoder-decoder"))
    >>> translate(model, torch.tensor([[5, 6, 7]]), start=1, end=2, max_tokens=4, beam=3).shape[1] <= 4
    True
    """
    check_translation(model.config, source, start, end, max_tokens, beam)
    with eval_mode(model):
        target = TargetDecoder(model, source, is_token, max_tokens)
        first_log_probs = target.next_log_probs(torch.full((len(source), 1), start, device=source.device))
        return (
            greedy(target, first_log_probs, end)
            if beam == 1
            else Beam(target, first_log_probs, end, beam, length_penalty).search()
        )


class TargetDecoder:
    """Targets that grow token by token. The sources are read once, and their keys and values are cached."""

    def __init__(self, model: Translator, source: Ids, is_token: Bool[Tensor, "b s"] | None, max_tokens: int) -> None:
        self.model, self.max_tokens = model, max_tokens
        self.memory, self.is_token = model.encoder(source, is_token), is_token
        self.cache = GenerationCache(model.config.depth, max_tokens)

    def next_log_probs(self, last: Int[Tensor, "r 1"]) -> Float[Tensor, "r v"]:
        """log p(next) of every target, after its last token."""
        points = self.model.decoder(last, None, self.cache, self.memory, self.is_token)
        return self.model.unembed(points[:, -1]).float().log_softmax(-1)

    def repeat_sources(self, n_repeats: int) -> None:
        """Repeat every source, so that it serves `n_repeats` targets."""
        self.cache.repeat_texts(n_repeats)
        self.memory = self.memory.repeat_interleave(n_repeats, 0)
        self.is_token = None if self.is_token is None else self.is_token.repeat_interleave(n_repeats, 0)


def greedy(target: TargetDecoder, log_probs: Float[Tensor, "b v"], end: int) -> Int[Tensor, "b t"]:
    """Take the most likely token each time. A finished target repeats `end` until all are finished."""
    is_finished = torch.zeros(len(log_probs), dtype=torch.bool, device=log_probs.device)
    ids: list[Tensor] = []
    while len(ids) < target.max_tokens:
        if ids:
            log_probs = target.next_log_probs(ids[-1][:, None])
        ids.append(log_probs.argmax(-1).masked_fill(is_finished, end))
        is_finished = ids[-1] == end
        if bool(is_finished.all()):
            break
    return torch.stack(ids, 1)


class Beam:
    """The beam search of `translate`: per source, `size` growing targets and the best finished one."""

    def __init__(
        self, target: TargetDecoder, first_log_probs: Float[Tensor, "b v"], end: int, size: int, length_penalty: float
    ) -> None:
        self.target, self.end, self.size, self.length_penalty = target, end, size, length_penalty
        target.repeat_sources(size)
        self.log_probs = first_log_probs.repeat_interleave(size, 0)
        b = len(first_log_probs)
        self.ids = torch.full((b, size, target.max_tokens), end, device=first_log_probs.device)
        self.scores = first_log_probs.new_full((b, size), -torch.inf)
        self.scores[:, 0] = 0.0  # the targets of a source start out equal, so only the first one counts
        self.best_ids, self.best_score = self.ids[:, 0].clone(), first_log_probs.new_full((b,), -torch.inf)

    def search(self) -> Int[Tensor, "b t"]:
        for length in range(1, self.target.max_tokens + 1):
            rows = self._grow(length)
            if length == self.target.max_tokens or self._is_settled():
                break
            self.target.cache.select_texts(rows)
            self.log_probs = self.target.next_log_probs(self.ids[:, :, length - 1].reshape(-1, 1))
        is_unfinished = self.best_score == -torch.inf
        result = torch.where(is_unfinished[:, None], self.ids[:, 0], self.best_ids)
        return result[:, : length if bool(is_unfinished.any()) else int((result != self.end).sum(-1).max()) + 1]

    def _grow(self, length: int) -> Int[Tensor, " rows"]:
        """Add one token. Targets that end compete for the best; the most likely others grow. Returns their source rows."""
        b, size, vocabulary = *self.scores.shape, self.log_probs.shape[-1]
        totals = self.scores[..., None] + self.log_probs.unflatten(0, (b, size))
        self._finish(totals[..., self.end], length)
        totals[..., self.end] = -torch.inf
        self.scores, flat_indices = totals.flatten(1).topk(size)
        rows, tokens = flat_indices // vocabulary, flat_indices % vocabulary
        self.ids = self.ids.gather(1, rows[..., None].expand_as(self.ids))
        self.ids[:, :, length - 1] = tokens
        return (rows + size * torch.arange(b, device=rows.device)[:, None]).flatten()

    def _finish(self, end_scores: Float[Tensor, "b size"], length: int) -> None:
        score, row = (end_scores / self._length_norm(length)).max(-1)
        is_better = score > self.best_score
        # After its last token, a target is already padded with `end`.
        ids = self.ids.gather(1, row[:, None, None].expand(-1, 1, self.ids.shape[-1]))[:, 0]
        self.best_ids = torch.where(is_better[:, None], ids, self.best_ids)
        self.best_score = torch.where(is_better, score, self.best_score)

    def _is_settled(self) -> bool:
        """Whether no growing target can win: log p only decreases and is divided by at most the norm of the longest."""
        bound = self.scores[:, 0] / self._length_norm(self.target.max_tokens)
        return bool((self.best_score >= bound).all())

    def _length_norm(self, length: int) -> float:
        return ((5 + length) / 6) ** self.length_penalty


def check_prompt(config: Config, ids: Ids, tokens: int) -> None:
    """Raise if the model is not a decoder, the ids are invalid, or the text would exceed the context."""
    if config.form != "decoder":
        python = "translate(model, source, …)" if config.form == "encoder-decoder" else 'Config(form="decoder", …)'
        raise RheoscopeError(
            Message("only a decoder can continue a text, got form={form}", form=config.form), Advice(python)
        )
    _check_ids(config, ids, "ids")
    _check_count("tokens", tokens)
    if ids.shape[1] + tokens > config.context + 1:  # the last token is generated but never read
        raise RheoscopeError(
            Message(
                "{n} tokens plus {new} more exceed the context of {context} tokens, so shorten the text or generate fewer",
                n=ids.shape[1],
                new=tokens,
                context=config.context,
            ),
            use(tokens=max(config.context + 1 - ids.shape[1], 0)),
        )


def check_translation(config: Config, source: Ids, start: int, end: int, max_tokens: int, beam: int) -> None:
    """Raise if the model is not an encoder-decoder, or if ids or limits are invalid."""
    if config.form != "encoder-decoder":
        raise RheoscopeError(
            Message("only an encoder-decoder can translate, got form={form}", form=config.form),
            Advice('Config(form="encoder-decoder", …)'),
        )
    _check_ids(config, source, "source")
    _check_ids(config, torch.tensor([[start, end]]), "start and end")
    for name, value in (("max_tokens", max_tokens), ("beam", beam)):
        _check_count(name, value, minimum=1)
    if max_tokens > config.context:
        raise RheoscopeError(
            Message(
                "max_tokens must be at most the context of {context} tokens, got {value}",
                context=config.context,
                value=max_tokens,
            ),
            use(max_tokens=config.context),
        )


def _check_ids(config: Config, ids: Tensor, name: str) -> None:
    if ids.ndim != 2 or not ids.numel() or ids.is_floating_point():
        raise RheoscopeError(
            Message(
                "{name} must be integers of shape (texts, tokens) and not empty, got {dtype} of shape {shape}",
                name=name,
                dtype=str(ids.dtype),
                shape=tuple(ids.shape),
            ),
            Advice("torch.tensor([[1, 2, 3]])"),
        )
    if not 0 <= int(ids.min()) <= int(ids.max()) < config.vocabulary:
        raise RheoscopeError(
            Message(
                "{name} must be from 0 to {last}, got {lowest} to {highest}; use the model's own tokenizer",
                name=name,
                last=config.vocabulary - 1,
                lowest=int(ids.min()),
                highest=int(ids.max()),
            )
        )


def _check_count(name: str, value: int, minimum: int = 0) -> None:
    if not isinstance(value, int) or value < minimum:
        raise RheoscopeError(
            Message(
                "{name} must be an integer of at least {minimum}, got {value!r}",
                name=name,
                minimum=minimum,
                value=value,
            ),
            use(**{name: 32}),
        )
