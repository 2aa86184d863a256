"""Tokenizers of models trained here: byte-level BPE or single characters, stored as tokenizer.json."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.models.config import set_fields
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASK_TOKEN = "<|mask|>"
"""The token that an encoder predicts over. Typed in a text, it is parsed as this token."""
PAD, START, END = 0, 1, 2
SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")
"""The first tokens of an encoder-decoder, by id."""


def train_bpe(texts: Iterable[str], size: int, specials: Sequence[str]) -> "Tokenizer":
    """Train a byte-level BPE of at most `size` tokens on `texts`: specials first, then the 256 bytes, then merges.

    Every text can be encoded, and decoding restores its bytes. The vocabulary is smaller than `size` if the texts contain no
    further pair to merge.

    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 300, ["<|endoftext|>"])
    >>> tokenizer.token_to_id("<|endoftext|>"), decode(tokenizer, encode(tokenizer, "slow ü"))
    (0, 'slow ü')
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    min_size = 256 + len(specials)
    if size < min_size:
        raise RheoscopeError(
            Message(
                "a vocabulary of {size} tokens cannot hold the 256 bytes and {specials}",
                size=size,
                specials=", ".join(specials),
            ),
            set_fields(vocabulary=min_size),
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def character_tokenizer(texts: Iterable[str], specials: Sequence[str]) -> "Tokenizer":
    """One token per character of `texts`, in Unicode order, after the specials.

    >>> tokenizer = character_tokenizer(["to be"], ["<|endoftext|>"])
    >>> encode(tokenizer, "bet"), tokenizer.get_vocab_size()
    ([2, 3, 5], 6)
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(text)
    vocabulary = {token: token_id for token_id, token in enumerate([*specials, *sorted(alphabet)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def with_start_token(tokenizer: "Tokenizer", token: str) -> "Tokenizer":
    """The same tokenizer, which prepends `token` to every text, as `prepare` does for every document.

    >>> tokenizer = with_start_token(character_tokenizer(["ab"], ["<|endoftext|>"]), "<|endoftext|>")
    >>> tokenizer.encode("ba").ids, encode(tokenizer, "ba")
    ([0, 2, 1], [2, 1])
    """
    from tokenizers.processors import TemplateProcessing

    tokenizer.post_processor = TemplateProcessing(f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))])
    return tokenizer


def load_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer that a tokenizer.json describes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "tokenizer.json"
    >>> character_tokenizer(["ab"], []).save(str(file))
    >>> encode(load_tokenizer(file), "ba")
    [1, 0]
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        raise RheoscopeError(Message("there is no tokenizer {path}; choose a tokenizer.json", path=str(path)))
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise RheoscopeError(
            Message(
                "{path} is not a valid tokenizer.json ({reason}); download it or prepare the corpus again",
                path=str(path),
                reason=str(error),
            )
        ) from error


def encode(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The token ids of a text, without special tokens.

    >>> encode(character_tokenizer(["ab"], []), "abc")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: the vocabulary has no token for 'c'; use only characters of the training text
    """
    try:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except Exception as error:  # a vocabulary of characters lacks those that it never saw
        raise _unknown_characters(tokenizer, text) from error


def decode(tokenizer: "Tokenizer", ids: Sequence[int], keep_special: bool = False) -> str:
    """The text of token ids. Special tokens are included only with `keep_special`.

    >>> tokenizer = character_tokenizer(["ab"], ["<|endoftext|>"])
    >>> decode(tokenizer, [2, 0, 1]), decode(tokenizer, [2, 0, 1], keep_special=True)
    ('ba', 'b<|endoftext|>a')
    """
    return str(tokenizer.decode(list(ids), skip_special_tokens=not keep_special))


def _unknown_characters(tokenizer: "Tokenizer", text: str) -> RheoscopeError:
    missing = sorted({character for character in text if tokenizer.token_to_id(character) is None})
    listing = [*map(repr, missing[:5]), *(["…"] if len(missing) > 5 else [])]
    return RheoscopeError(
        Message(
            "the vocabulary has no token for {characters}; use only characters of the training text",
            characters=", ".join(listing),
        )
    )
