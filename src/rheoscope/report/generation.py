"""`rheoscope generate`: a continuation that is printed token by token, or a translation."""

import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import load_network
from rheoscope.models.generate import check_prompt, stream, translate
from rheoscope.models.text_files import END_OF_TEXT
from rheoscope.models.transformer import Transformer, Translator
from rheoscope.models.vocabulary import END, START, decode, encode
from rheoscope.opening import DEFAULT_MODEL, is_own_model
from rheoscope.report.progress_bars import open_model
from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.runner import RunnableModel
from rheoscope.running.sampling import check_sampling
from rheoscope.running.token_stream import Sampling, stream_tokens
from rheoscope.running.weight_files import default_device
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BEAM_WIDTH = 4


def generate_text(
    prompt: str,
    model: str | Path | None = None,
    max_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Run `rheoscope generate`: print the prompt and its continuation, or the translation."""
    directory = DEFAULT_MODEL if model is None else Path(model)
    if not is_own_model(directory):
        sampling = temperature, top_k, top_p, seed
        print_chunks(continue_opened(open_model(str(model), device, None), prompt, max_tokens, sampling))
        return
    network, tokenizer = load_network(directory, device or default_device())
    if tokenizer is None:
        raise RheoscopeError(
            Message(
                "{directory} has no tokenizer.json; choose a directory that rheoscope train wrote",
                directory=str(directory),
            ),
            Advice("", "--model DIR"),
        )
    if isinstance(network, Translator):
        print(translate_text(network, tokenizer, prompt))
        return
    if network.config.form != "decoder":
        raise RheoscopeError(
            Message(
                "only a decoder continues a text, {directory} has the form {form}",
                directory=str(directory),
                form=network.config.form,
            ),
            Advice("", f'rheoscope "…" --model {directory}'),
        )
    print_chunks(continue_text(network, tokenizer, prompt, max_tokens, temperature, top_k, top_p, seed))


def print_chunks(chunks: Iterable[str]) -> None:
    """Print each chunk as soon as it is known, and end the line."""
    for chunk in chunks:
        sys.stdout.write(chunk)
        sys.stdout.flush()
    print()


def continue_opened(model: RunnableModel, prompt: str, tokens: int, sampling: Sampling) -> Iterator[str]:
    """The prompt and its continuation in chunks, by any model. An encoder-decoder writes its target alone."""
    new_tokens = stream_tokens(model, prompt, tokens, sampling)
    if not isinstance(model, EncoderDecoder):
        yield prompt
    characters = getincrementaldecoder("utf-8")("replace")
    for token_id in new_tokens:
        yield characters.decode(model.token_bytes(token_id))
    yield characters.decode(b"", final=True)


def continue_text(
    network: Transformer,
    tokenizer: "Tokenizer",
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> Iterator[str]:
    """The prompt, then the continuation in chunks: up to `max_tokens` tokens, as far as the context allows."""
    start_id, prompt_ids = tokenizer.token_to_id(END_OF_TEXT), encode(tokenizer, prompt)
    ids = torch.tensor(
        [([] if start_id is None else [start_id]) + prompt_ids], device=next(network.parameters()).device
    )
    free_context = network.config.context + 1 - ids.shape[1]
    check_prompt(network.config, ids, min(max_tokens, max(free_context, 1)))
    check_sampling(temperature, top_k, top_p)
    yield prompt
    token_stream = stream(network, ids, min(max_tokens, free_context), temperature, top_k, top_p, seed, stop=start_id)
    yield from decode_stream(tokenizer, (int(token) for token in token_stream))


def decode_stream(tokenizer: "Tokenizer", ids: Iterable[int]) -> Iterator[str]:
    """Token ids as chunks of text, each as soon as its last character is complete. Together they are the text of all ids.

    >>> from rheoscope.models.vocabulary import train_bpe
    >>> tokenizer = train_bpe(["a"], 257, ["<|endoftext|>"])
    >>> list(decode_stream(tokenizer, encode(tokenizer, "aé€")))
    ['a', 'é', '€']
    """
    pending_ids: list[int] = []
    for token in ids:
        pending_ids.append(token)
        text = decode(tokenizer, pending_ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text
            pending_ids = []
    if pending_ids:
        yield decode(tokenizer, pending_ids)


def translate_text(network: Translator, tokenizer: "Tokenizer", prompt: str) -> str:
    """The translation of a sentence, by beam search of width 4."""
    ids = torch.tensor([[*encode(tokenizer, prompt.strip()), END]], device=next(network.parameters()).device)
    if ids.shape[1] > network.config.context:
        raise RheoscopeError(
            Message(
                "the sentence has {n} tokens, the model reads at most {context}",
                n=ids.shape[1],
                context=network.config.context,
            ),
            Advice("", "a shorter sentence"),
        )
    max_length = min(network.config.context, 2 * ids.shape[1] + 20)
    output_ids = translate(network, ids, START, END, max_length, beam=BEAM_WIDTH)[0].tolist()
    return decode(tokenizer, output_ids[: output_ids.index(END)] if END in output_ids else output_ids)
