"""rs.generate: tokens with their paths, their readout by depth and the tokens and heads that wrote them, from the cache."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from rheoscope.flow.generation.answer import AnswerSums, is_head
from rheoscope.flow.generation.generated_token import GeneratedToken, LensWord, Source, Writer
from rheoscope.flow.generation.row_attribution import GrowingAttribution, RowAttribution
from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.running.cached_network import CachedNetwork, refuse_generation
from rheoscope.running.certificate import tolerance
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.runner import RunnableModel, allocate_points, make_traces, text_string
from rheoscope.running.sampling import check_sampling, sample_token
from rheoscope.running.stream import append_points, record_points
from rheoscope.running.token_stream import count_new_tokens
from rheoscope.shapes import RheoscopeError
from rheoscope.space.predictions import next_token_logprobs
from rheoscope.space.settings import Bounds, Seed
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

BLOCK_TOKENS, BLOCK_TIMES = 32, 10
"""New tokens are explained together: at most this many, and generated in this many times the time of the last explanation."""
BLOCK_WEIGHTS = 1 << 19
"""A block has at most this many attention weights per layer (2 MiB in float32), so that its memory does not grow with the text."""
LENS_STEPS = 5
"""The logit lens reads at most this many ends of layers, at equal distances. The last one costs nothing: it is the output."""
ALLOWED_TOLERANCES = 10
"""The largest error of an attribution, relative to the sum of its parts in size, in tolerances of the certificate."""
N_LISTED = 3
"""The number of source tokens and of heads that every token lists."""


def generate(
    model: RunnableModel,
    prompt: Any,
    tokens: Annotated[int, Bounds(1, 1_000_000)] = 50,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: Seed = 0,
) -> "Generation":
    """Continue a text, and observe the flow of every new token.

    **Question** Where does each generated token come from: which depth decides it, and which tokens and heads write it?

    **Formula** Token t is sampled from softmax(logits / temperature); temperature 0 takes the most likely token. Its logit is a
    sum over components, with the scale of the final norm fixed: logit − mean = Σ_c ⟨c, u⟩. The part of a head is a sum over the
    tokens that it reads: Σ_j ⟨α_ij x̂_j F_h, u⟩. This is direct attribution: what an earlier layer moved into x_j counts to token j.

    **Returns** A `Generation`, which yields a `GeneratedToken` for each new token while the model generates. Its `text` is the
    continuation so far, `explain()` the attribution of the whole answer, `trace()` the text so far as points of E. An
    encoder-decoder reads `prompt` as its source.

    **Settings** `prompt` is a text or its token ids. `tokens` is the largest number of new tokens. Generation ends earlier at a token
    that ends a text, and at the end of the context.

    **Laws** Greedy tokens are those of generation without observation. The points are those of `model.trace` of the final text:
    under a causal mask the points of old tokens do not change, so a new token costs one row. The attributions of every token sum
    to its logit.

    **Source** direct logit attribution (Elhage et al., 2021); the logit lens (nostalgebraist, 2020).

    **See also** `rs.readout` attributes one prediction with all layers of the lens; `rs.score_attribution` explains one score.

    >>> import rheoscope as rs
    >>> generation = rs.generate(rs.load(), "The keys to the cabinet", tokens=3)
    >>> tokens = list(generation)
    >>> len(tokens), float(abs(generation.explain().error).max()) < 1e-3
    (3, True)
    """
    check_sampling(temperature, top_k, top_p)
    if not model.view.predicts_next_token:
        raise refuse_generation(model.view)
    return Generation(model, prompt, tokens, temperature, top_k, top_p, seed)


class Generation:
    """A text that a model continues: an iterator of `GeneratedToken`.

    Memory grows with the points and with two caches of keys and values: that of the network, and that of the attribution.
    """

    def __init__(
        self,
        model: RunnableModel,
        prompt: Any,
        tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        seed: int,
    ) -> None:
        self.model, self.view = model, model.view
        self.sampling = temperature, top_k, top_p, Generator(model.device).manual_seed(seed)
        self.view.check_current()
        self.source: Trace | None = None
        prompt_ids = self._open(prompt, tokens)
        self.ids: list[int] = prompt_ids.tolist()
        self.n_start, self.n_new = len(self.ids), count_new_tokens(self.view.context_length, len(prompt_ids), tokens)
        self.points = allocate_points(model.description, _empty_ids(self.n_start + self.n_new, model.device))
        self.logits, self.n_read = torch.empty(0), 0
        with self._appending():
            self._read_unread()
        self.attribution = GrowingAttribution(self._trace_of(self.n_start), self.n_start + self.n_new)
        self.sums = AnswerSums(self.n_prompt, reads_pairs=self.source is not None)
        self.steps = self._trace_of(self.n_start).steps
        self.lens_points = lens_points([index for index, step in enumerate(self.steps) if step.is_end_of_layer])
        self.seconds_to_explain = 0.0
        self._tokens = self._generate()

    def _open(self, prompt: Any, tokens: int) -> Int[Tensor, " n"]:
        """Start the cache, and return the ids that it reads first. For an encoder-decoder, run the encoder."""
        if not isinstance(self.model, EncoderDecoder):
            ids = self.model.ids(prompt)
            self.prompt_text = text_string(prompt)
            self.network: CachedNetwork = self.model.cached_network(len(ids) + tokens)
            return ids
        source = self.model.source_ids(prompt)
        sources, _ = self.model.pad_sources([source])
        points = allocate_points(self.model.source_description, self.model.source_tokens(sources))
        with record_points(self.model.source_description, points):
            self.network = self.model.cached_network(tokens + 1, sources)
        self.prompt_text = ""
        self.source = self.model.source_traces(points, [source], [text_string(prompt)])[0]
        return torch.tensor(self.network.start_ids)

    @property
    def lens_steps(self) -> list[str]:
        """The steps at which the logit lens reads the path of every token."""
        return [str(self.steps[index]) for index in self.lens_points]

    @property
    def n_prompt(self) -> int:
        """The number of prompt tokens: for an encoder-decoder, the tokens of the source."""
        return self.n_start if self.source is None else len(self.source)

    @property
    def prompt_tokens(self) -> list[str]:
        """The prompt as tokens."""
        return self.token_texts(self.ids[: self.n_start]) if self.source is None else self.source.tokens

    @property
    def new_ids(self) -> list[int]:
        """The generated tokens so far."""
        return self.ids[self.n_start :]

    @property
    def text(self) -> str:
        """The continuation so far."""
        return "".join(self.token_texts(self.new_ids))

    def token_texts(self, ids: list[int]) -> list[str]:
        """Tokens as text, each in the context of the others."""
        return self.model.token_strings_in_text(ids)

    def __iter__(self) -> Iterator[GeneratedToken]:
        return self._tokens

    def __next__(self) -> GeneratedToken:
        return next(self._tokens)

    def _generate(self) -> Iterator[GeneratedToken]:
        while self.n_new and not self.is_finished:
            log_probs = self._next_block()
            start = time.monotonic()
            tokens = self._explain_block(log_probs)
            self.seconds_to_explain = time.monotonic() - start
            yield from tokens

    @property
    def is_finished(self) -> bool:
        """Whether no token follows: the text is as long as allowed, or its last token ends it."""
        return len(self.new_ids) >= self.n_new or bool(self.new_ids and self.new_ids[-1] in self.network.stop_ids)

    @torch.no_grad()
    def _next_block(self) -> Float[Tensor, "r vocabulary"]:
        """Generate the tokens of a block, and return the log probabilities from which they come. The last one is not read yet."""
        temperature, top_k, top_p, generator = self.sampling
        block: list[Tensor] = []
        start = time.monotonic()
        with self._appending():
            while len(block) < rows_per_block(self.view.heads, len(self.ids)) and not self.is_finished:
                if block and time.monotonic() - start >= BLOCK_TIMES * self.seconds_to_explain:
                    break
                self._read_unread()
                self.ids.append(int(sample_token(self.logits, temperature, top_k, top_p, generator)))
                block.append(self.logits)
        return torch.cat(block).float().log_softmax(-1)

    def _appending(self) -> AbstractContextManager[None]:
        """Inside, the points of the tokens that the network reads are stored."""
        return append_points(self.model.description, self.points, self.n_read)

    def _read_unread(self) -> None:
        """Read the tokens that the network has not read yet: the prompt at first, and then the last token."""
        if self.n_read < len(self.ids):
            self.logits = self.network.read(torch.tensor([self.ids[self.n_read :]], device=self.model.device))
            self.n_read = len(self.ids)

    @torch.no_grad()
    def _explain_block(self, log_probs: Float[Tensor, "r vocabulary"]) -> list[GeneratedToken]:
        """The generated tokens of the last block, whose predicting points are all known."""
        n = len(log_probs)
        trace, new_ids = self._trace_of(len(self.ids) - 1), torch.tensor(self.ids[-n:])
        attribution = self.attribution.attribute(trace, new_ids)
        self._check_errors(attribution)
        self.sums.add(attribution)
        prompt, answer = self.sums.split(attribution)
        lens, heads, sources = self._lens(trace, log_probs), _largest_heads(attribution), self._sources(attribution)
        probabilities = log_probs.gather(-1, new_ids.to(log_probs.device)[:, None]).exp()[:, 0].tolist()
        first, texts = len(self.new_ids) - n, self.token_texts(self.new_ids)[-n:]
        above_mean, from_answer = attribution.components.sum(0).tolist(), answer.tolist()
        return [
            GeneratedToken(
                first + row,
                int(new_ids[row]),
                texts[row],
                len(trace) - n + row,
                probabilities[row],
                trace.points[:, len(trace) - n + row],
                lens[row],
                above_mean[row],
                prompt[row].cpu().clone(),
                from_answer[row],
                sources[row],
                heads[row],
                tuple(attribution.pairs[row]),
            )
            for row in range(n)
        ]

    def _check_errors(self, attribution: RowAttribution) -> None:
        """Raise if the network attends differently with its cache than the View of the whole text."""
        error = float((attribution.errors / attribution.components.abs().sum(0)).max())
        if not error <= ALLOWED_TOLERANCES * tolerance(self.view.dtype):
            raise RheoscopeError(
                Message(
                    "the key/value cache of {model} changes its attention (relative difference {error:.0e}), so its flow is unknown",
                    model=self.view.name,
                    error=error,
                ),
                Advice("model.trace(text)"),
            )

    def _lens(self, trace: Trace, log_probs: Float[Tensor, "r vocabulary"]) -> list[tuple[LensWord, ...]]:
        """The most likely token of the last rows at every step of the lens. The last step is the output of the network."""
        inner = next_token_logprobs(self.view, trace.points[self.lens_points[:-1], -len(log_probs) :])
        best = torch.cat([inner.to(log_probs.dtype), log_probs[None]]).max(-1)
        ids, probabilities = best.indices.tolist(), best.values.exp().tolist()
        return [
            tuple(
                LensWord(label, ids[step][row], self.model.token_strings([ids[step][row]])[0], probabilities[step][row])
                for step, label in enumerate(self.lens_steps)
            )
            for row in range(len(log_probs))
        ]

    def _sources(self, attribution: RowAttribution) -> list[tuple[Source, ...]]:
        """The source tokens with the largest sums, for every row."""
        values, n_own = torch.cat([attribution.sources, attribution.cross_sources], -1), attribution.sources.shape[-1]
        order = values.abs().topk(min(N_LISTED, values.shape[-1])).indices
        own_texts, prompt_texts = self.token_texts(self.ids[:n_own]), self.prompt_tokens
        return [
            tuple(
                Source(i, own_texts[i], value, False)
                if i < n_own
                else Source(i - n_own, prompt_texts[i - n_own], value, True)
                for i, value in zip(*row, strict=True)
            )
            for row in zip(order.tolist(), values.gather(-1, order).tolist(), strict=True)
        ]

    def _trace_of(self, n: int) -> Trace:
        """The first n tokens as a Trace, in the memory of the points."""
        ids = torch.tensor(self.ids[:n])
        traces = make_traces(
            self.view,
            self.model.description,
            self.points[:, :, :n],
            [ids],
            [self.token_texts(self.ids[:n])],
            [self.prompt_text if n == self.n_start else ""],
        )
        return traces[0] if self.source is None else traces.with_sources([self.source])[0]

    def trace_of_position(self, position: int) -> Trace:
        """One token as a Trace of its own, in the memory of the points."""
        trace = self._trace_of(position + 1)
        return replace(trace, points=trace.points[:, -1:], ids=trace.ids[-1:], tokens=trace.tokens[-1:])

    def trace(self) -> Trace:
        """The text so far as points of E, for every analysis: the prompt and the generated tokens.

        The last token is read first if it fits into the context.
        """
        if self.view.context_length is None or len(self.ids) <= self.view.context_length:
            with self._appending():
                self._read_unread()
        return self._trace_of(self.n_read)

    def explain(self) -> "xarray.Dataset":
        """The tokens generated so far, attributed to prompt tokens and components; every row sums to a logit."""
        if not self.new_ids:
            raise RheoscopeError(Message("nothing is generated yet; read a token first"), use(tokens=1))
        n_rows = sum(map(len, self.sums.rows["errors"]))
        return self.sums.dataset(
            self.prompt_tokens,
            self.token_texts(self.new_ids)[:n_rows],
            {"prompt": self.prompt_text} | {name: str(value) for name, value in self.view.facts.items()},
        )


def _largest_heads(attribution: RowAttribution) -> list[tuple[Writer, ...]]:
    """The heads with the largest contributions to every row."""
    names, indices = zip(*[(name, i) for i, name in enumerate(attribution.names) if is_head(name)], strict=True)
    values = attribution.components[list(indices)].mT
    order = values.abs().topk(min(N_LISTED, len(names))).indices
    largest = zip(order.tolist(), values.gather(-1, order).tolist(), strict=True)
    return [tuple(Writer(names[i], x) for i, x in zip(*row, strict=True)) for row in largest]


def rows_per_block(n_heads: int, n_tokens: int) -> int:
    """The number of tokens that are explained together after `n_tokens` tokens.

    >>> rows_per_block(4, 100), rows_per_block(32, 1000), rows_per_block(32, 100_000)
    (32, 16, 1)
    """
    return max(1, min(BLOCK_TOKENS, BLOCK_WEIGHTS // (n_heads * n_tokens)))


def lens_points(ends: list[int]) -> list[int]:
    """At most `LENS_STEPS` of the ends of layers, at equal distances, the last one included.

    >>> lens_points([2, 4, 6]), lens_points(list(range(0, 60, 2)))
    ([2, 4, 6], [10, 22, 34, 46, 58])
    """
    n = min(LENS_STEPS, len(ends))
    return [ends[(index + 1) * len(ends) // n - 1] for index in range(n)]


def _empty_ids(n: int, device: torch.device) -> Int[Tensor, "1 n"]:
    return torch.empty(1, n, dtype=torch.long, device=device)
