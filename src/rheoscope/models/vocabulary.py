"""The tokenizer of a model that is trained here: byte-level pairs or single characters, in Hugging Face's tokenizer.json."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MASK_TOKEN = "<|mask|>"
"""The token that stands where an encoder is to say what was there; typed in a text, it is that token."""


def train_bpe(texts: Iterable[str], size: int, specials: Sequence[str]) -> "Tokenizer":
    """A byte-level BPE of at most `size` tokens, learned from `texts`: specials first, then the 256 bytes, then merges.

    Every text can be encoded, and decoding gives back its bytes. Fewer than `size` tokens come out where the texts hold
    no further pair to merge.

    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 300, ["<|endoftext|>"])
    >>> tokenizer.token_to_id("<|endoftext|>"), decode(tokenizer, encode(tokenizer, "slow ü"))
    (0, 'slow ü')
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    min_size = 256 + len(specials)
    if size < min_size:
        raise RheoscopeError(
            f"a vocabulary of {size} tokens cannot hold the 256 bytes and {', '.join(specials)}; "
            f"type {min_size} or more, or 'characters'"
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
    """One token a character of `texts`, in the order of Unicode, after the specials.

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
    """The same tokenizer, which puts `token` before every text that a model is asked about, as before every document.

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
        raise RheoscopeError(f"there is no tokenizer {path}; type the path of a tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise RheoscopeError(
            f"{path} is no tokenizer.json ({error}); get it again, or prepare the corpus again"
        ) from error


def encode(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The token ids of a text, nothing added.

    >>> encode(character_tokenizer(["ab"], []), "abc")
    Traceback (most recent call last):
    rheoscope.shapes.RheoscopeError: the vocabulary has no token for 'c'; type a text of the characters it was made from
    """
    try:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except Exception as error:  # a vocabulary of characters has no token for one that it never saw
        raise RheoscopeError(_unknown_characters_message(tokenizer, text)) from error


def decode(tokenizer: "Tokenizer", ids: Sequence[int], keep_special: bool = False) -> str:
    """The text of token ids; special tokens are written out only where `specials` is set.

    >>> tokenizer = character_tokenizer(["ab"], ["<|endoftext|>"])
    >>> decode(tokenizer, [2, 0, 1]), decode(tokenizer, [2, 0, 1], keep_special=True)
    ('ba', 'b<|endoftext|>a')
    """
    return str(tokenizer.decode(list(ids), skip_special_tokens=not keep_special))


def _unknown_characters_message(tokenizer: "Tokenizer", text: str) -> str:
    missing = sorted({character for character in text if tokenizer.token_to_id(character) is None})
    listing = ", ".join(map(repr, missing[:5])) + (", …" if len(missing) > 5 else "")
    return f"the vocabulary has no token for {listing}; type a text of the characters it was made from"
