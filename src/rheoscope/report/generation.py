"""`rheoscope generate` as a person sees it: text that appears as it is made, or a translation."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rheoscope.models.checkpoint import CONFIG, opened
from rheoscope.models.generate import check_prompt, check_sampling, stream, translate
from rheoscope.models.sentence_pairs import END, START
from rheoscope.models.text_files import END_OF_TEXT
from rheoscope.models.transformer import Transformer, Translator
from rheoscope.models.vocabulary import decode, encode
from rheoscope.opening import DEFAULT
from rheoscope.running.weight_files import usual_device
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BEAM = 4


def show(
    prompt: str,
    model: Path | None = None,
    tokens: int = 100,
    temperature: float = 0.8,
    top_k: int | None = 50,
    top_p: float | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """What `rheoscope generate` does: the text and what the model makes follow it, written as it comes."""
    directory = DEFAULT if model is None else model
    check_ours(directory)
    network, tokenizer = opened(directory, device or usual_device())
    if tokenizer is None:
        raise RheoscopeError(f"{directory} holds no tokenizer.json; type a directory that rheoscope train made")
    if isinstance(network, Translator):
        print(translated(network, tokenizer, prompt))
        return
    if network.config.form != "decoder":
        raise RheoscopeError(
            f"only a decoder continues a text, {directory} holds an {network.config.form}; "
            f'type rheoscope "…" --model {directory} to look at it'
        )
    for piece in continued(network, tokenizer, prompt, tokens, temperature, top_k, top_p, seed):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


def continued(
    network: Transformer,
    tokenizer: "Tokenizer",
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
) -> Iterator[str]:
    """The prompt, then pieces of text as the model makes them: up to `tokens` tokens, as many as its context has room for."""
    start, text = tokenizer.token_to_id(END_OF_TEXT), encode(tokenizer, prompt)
    ids = torch.tensor([([] if start is None else [start]) + text], device=next(network.parameters()).device)
    room = network.config.context + 1 - ids.shape[1]
    check_prompt(network.config, ids, min(tokens, max(room, 1)))
    check_sampling(temperature, top_k, top_p)
    yield prompt
    made = stream(network, ids, min(tokens, room), temperature, top_k, top_p, seed, stop=start)
    yield from pieces(tokenizer, (int(token) for token in made))


def pieces(tokenizer: "Tokenizer", ids: Iterable[int]) -> Iterator[str]:
    """Token ids as text, a piece as soon as its last character is whole; together they are the text of all ids.

    >>> from rheoscope.models.vocabulary import byte_pairs
    >>> tokenizer = byte_pairs(["a"], 257, ["<|endoftext|>"])
    >>> list(pieces(tokenizer, encode(tokenizer, "aé€")))
    ['a', 'é', '€']
    """
    waiting: list[int] = []
    for token in ids:
        waiting.append(token)
        text = decode(tokenizer, waiting)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text
            waiting = []
    if waiting:
        yield decode(tokenizer, waiting)


def translated(network: Translator, tokenizer: "Tokenizer", prompt: str) -> str:
    """The translation of a sentence, by a beam of 4."""
    ids = torch.tensor([[*encode(tokenizer, prompt.strip()), END]], device=next(network.parameters()).device)
    if ids.shape[1] > network.config.context:
        raise RheoscopeError(
            f"the sentence has {ids.shape[1]} tokens, the model reads {network.config.context}; type a shorter one"
        )
    longest = min(network.config.context, 2 * ids.shape[1] + 20)
    made = translate(network, ids, START, END, longest, beam=BEAM)[0].tolist()
    return decode(tokenizer, made[: made.index(END)] if END in made else made)


def check_ours(directory: Path) -> None:
    """Refuse a model that somebody else generates with."""
    if not directory.is_dir():
        raise RheoscopeError(
            f"there is no directory {directory}; type one that rheoscope train made (for a hub name use transformers' generate)"
        )
    kind = _kind(directory / CONFIG)
    if kind not in (None, "rheoscope"):
        raise RheoscopeError(
            f"{directory} is a model of transformers ({kind}); type "
            f"AutoModelForCausalLM.from_pretrained({str(directory)!r}).generate(…) in Python"
        )


def _kind(file: Path) -> Any:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told.get("model_type") if isinstance(told, dict) else None
