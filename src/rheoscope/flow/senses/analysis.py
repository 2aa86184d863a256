"""Word senses: whether occurrences of a word are separated by meaning, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.flow.occurrences import Occurrences, distances_between, occurrences
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import upper_triangle
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Draws, Seed, SpaceName
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals
from rheoscope.statistics.nulls import p_values

if TYPE_CHECKING:
    import xarray

SenseSentences = Mapping[str, Mapping[str, Sequence[Text]]]
"""Word → sense → sentences that contain the word."""
DEFAULT_WORDS_FILE = Path(__file__).with_name("senses.tsv")
"""100 words with two senses and four sentences per sense, written for this analysis."""
EXAMPLE = Advice("word_list={'bank': {'money': ['…', '…'], 'river': ['…', '…']}}")
MAX_SENTENCES = 16
"""The largest number of sentences per word, because all splits are enumerated."""


def senses(
    model: Model,
    word_list: SenseSentences | str | None = None,
    space: SpaceName = "sphere",
    draws: Draws = 2000,
    seed: Seed = 0,
    control: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Are occurrences of a word separated by what the word means?

    **Question** The *bank* of a river and the *bank* with the money are one token. After which layer are they separated?

    **Formula** For the n occurrences of a word: (mean distance between senses − mean distance within senses) / standard deviation
    of all n(n−1)/2 distances, then the mean over words. An occurrence is the last token of the word. Distances are between
    directions around the mean of all occurrences (`space="sphere"`) or between points (`raw`, `normed`).

    The null permutes the senses within each word. For a word all splits are enumerated, and `draws` combinations for the mean.
    Neighbouring words and positions differ between contexts even without training. Therefore compare with
    `control=rs.load(…, untrained=True)`.

    **Returns** (point): `effect` with its interval over words, `effect_null`, `effect_null_sd`, `p_value`, `nearest_same_sense` with
    its interval and null. With a control also `effect_untrained`, `nearest_same_sense_untrained`, `effect_gain`. (point, word):
    `word_effect`, `word_p`.

    **Settings** `word_list` is {word: {sense: [sentence, …], other sense: […]}}, or the path of a tab-separated file with the columns
    word, sense and sentence. In a list of token ids the word is the last one. The default is the list of the package, 100 nouns with
    two senses and four sentences each. They all end in "the WORD" and share no other content word.

    **Laws** The effect is 0 at the token embedding, where all occurrences are one point. Learned position embeddings are part of the
    embedding and can give an effect there. Exchanging the senses changes nothing. |effect| is bounded (2.02 for 4 + 4 sentences).

    **See also** `relatedness` compares different words, `purity` the clusters of one text.

    >>> import rheoscope as rs
    >>> bank = {"money": ["He has a loan from the bank", "She saved cash at the bank"],
    ...         "river": ["Reeds grew on the bank", "The boat was tied to the bank"]}
    >>> result = rs.senses(rs.load(), {"bank": bank}, draws=20)
    >>> float(result.effect.sel(point="embed")), result.effect.dims
    (0.0, ('point',))
    """
    sentences_by_word = default_words() if word_list is None else _check_words(_read_words(word_list))
    tables_of_model = sense_tables(model, sentences_by_word, space, progress)
    word_values = kernel(tables_of_model.tables)
    values = {name: word_values[name].mean(-1) for name in ("effect", "nearest_same_sense", "nearest_same_sense_null")}
    values |= {"effect_null": torch.zeros_like(values["effect"])} | _null_values(
        word_values, tables_of_model.tables, draws, seed
    )
    values |= {"word_effect": word_values["effect"], "word_p": word_values["p"]}
    values |= _interval_fields("effect", word_values["effect"], seed) | _interval_fields(
        "nearest_same_sense", word_values["nearest_same_sense"], seed
    )
    settings = {
        "space": space,
        "draws": draws,
        "seed": seed,
        "word_list": _word_source(word_list),
        "embedding": tables_of_model.embedding_note,
        "intervals": describe_intervals(Message("words"), len(sentences_by_word)),
    }
    if control is not None:
        values |= _control_values(
            word_values, tables_of_model, sense_tables(control, sentences_by_word, space, None), seed
        )
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(tables_of_model.steps), "word": list(sentences_by_word)}
    return SENSES.label(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Sentences


def default_words() -> SenseSentences:
    """The words of the package."""
    return _check_words(_read_words(DEFAULT_WORDS_FILE))


def _read_words(word_list: SenseSentences | str | Path) -> SenseSentences:
    if not isinstance(word_list, str | Path):
        return word_list
    sentences_by_word: dict[str, dict[str, list[Text]]] = {}
    for row in read_tsv_rows(word_list, ("word", "sense", "sentence")):
        sentences_by_word.setdefault(row["word"], {}).setdefault(row["sense"], []).append(row["sentence"])
    return sentences_by_word


def _check_words(words: SenseSentences) -> SenseSentences:
    if not words:
        raise RheoscopeError(Message("word_list must contain at least one word, got none"), EXAMPLE)
    for target_word, by_sense in words.items():
        sizes = [len(sentences) for sentences in by_sense.values()]
        if len(sizes) != 2 or min(sizes) < 2 or sum(sizes) > MAX_SENTENCES:
            raise RheoscopeError(
                Message(
                    "a word needs two senses with at least 2 sentences each and at most {high} in total, got {sizes} for {word!r}",
                    high=MAX_SENTENCES,
                    sizes=str(sizes),
                    word=target_word,
                ),
                EXAMPLE,
            )
    return words


def _word_source(word_list: SenseSentences | str | None) -> str:
    if word_list is None:
        return Message("the list of the package")
    return word_list if isinstance(word_list, str) else Message("a list of the caller")


# Distances


@dataclass(frozen=True, eq=False)
class DistanceTable:
    """The distances between the occurrences of one word at every point, and all splits into two groups, the senses first."""

    distances: Float[Tensor, "p n n"]
    splits: Bool[Tensor, "k n"]


@dataclass(frozen=True, eq=False)
class SenseTables:
    """The distance tables of all words in a model."""

    tables: list[DistanceTable]
    steps: tuple[str, ...]
    embedding_note: str


def sense_tables(
    model: Model, words: SenseSentences, space: str, progress: Callable[[int, int], None] | None
) -> SenseTables:
    """The distances between the occurrences of every word, at the embedding and after every layer."""
    rows = [
        (target_word, text)
        for target_word, by_sense in words.items()
        for sentences in by_sense.values()
        for text in sentences
    ]
    instances = occurrences(
        model, [text for _, text in rows], [target_word for target_word, _ in rows], space, progress
    )
    tables, start = [], 0
    for target_word, (first_sense, second_sense) in (
        (target_word, by_sense.values()) for target_word, by_sense in words.items()
    ):
        word_slice = slice(start, start + len(first_sense) + len(second_sense))
        start = word_slice.stop
        _check_one_token(model, target_word, instances.ids[word_slice])
        distances = distances_between(instances.points[:, word_slice], instances.rounding[:, word_slice]).cpu()
        tables.append(DistanceTable(distances, sense_splits(len(first_sense), len(second_sense))))
    return SenseTables(tables, instances.steps, _embedding_note(instances, tables))


def _check_one_token(model: Model, target_word: str, ids: Int[Tensor, " n"]) -> None:
    if len(set(ids.tolist())) > 1:
        raise RheoscopeError(
            Message(
                "the word {word!r} must end in the same token in all sentences, got {tokens}; write it the same way everywhere",
                word=target_word,
                tokens=", ".join(map(repr, model.token_strings(ids.unique()))),
            )
        )


def _embedding_note(instances: Occurrences, tables: list[DistanceTable]) -> str:
    all_equal = all(not bool(table.distances[0].any()) for table in tables)
    if all_equal:
        return Message("all occurrences of a word are one point")
    return Message("includes positions, so occurrences of a word differ")


def sense_splits(n_first: int, n_second: int) -> Bool[Tensor, "k n"]:
    """All splits into groups of the two sizes, up to exchanging equal groups. The split into the first and the rest comes first.

    >>> sense_splits(2, 2).int().tolist()
    [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """
    n = n_first + n_second
    subsets = [subset for subset in combinations(range(n), n_first) if n_first != n_second or 0 in subset]
    is_first = torch.zeros(len(subsets), n, dtype=torch.bool)
    return is_first.scatter_(1, torch.tensor(subsets), True)


def kernel(tables: Sequence[DistanceTable]) -> dict[str, Float[Tensor, "p w"]]:
    """Effect, p-value and share of nearest occurrences with the same sense, for every word."""
    effects = [split_effects(table) for table in tables]
    return {
        "effect": torch.stack([effect[:, 0] for effect in effects], -1),
        "p": torch.stack([(e >= e[:, :1] - 1e-9).double().mean(-1) for e in effects], -1),
        "nearest_same_sense": torch.stack([nearest_same_sense(table) for table in tables], -1),
        "nearest_same_sense_null": torch.stack([nearest_same_sense_null(table) for table in tables], -1),
    }


def split_effects(table: DistanceTable) -> Float[Tensor, "p k"]:
    """(mean distance across − mean distance within) / standard deviation of all distances, for every split; 0 if all are equal."""
    pair_distances = upper_triangle(table.distances)
    is_across = upper_triangle((table.splits[:, :, None] != table.splits[:, None, :]).double())
    across_mean = pair_distances @ (is_across / is_across.sum(-1, keepdim=True)).mT
    within_mean = pair_distances @ ((1 - is_across) / (1 - is_across).sum(-1, keepdim=True)).mT
    sd = pair_distances.std(-1, correction=0, keepdim=True)
    return safe_divide(
        across_mean - within_mean,
        torch.where(sd > 1e-12 * pair_distances.amax(-1, keepdim=True), sd, 0).expand_as(across_mean),
    )


def nearest_same_sense(table: DistanceTable) -> Float[Tensor, " p"]:
    """The share of occurrences whose nearest other occurrence has the same sense. Ties count in proportion."""
    n = table.distances.shape[-1]
    is_first = table.splits[0]
    same_sense = (is_first[:, None] == is_first) & ~torch.eye(n, dtype=torch.bool)
    distance = table.distances + torch.diag(torch.full((n,), torch.inf, dtype=table.distances.dtype))
    closest = distance == distance.amin(-1, keepdim=True)
    return ((closest & same_sense).sum(-1).double() / closest.sum(-1)).mean(-1)


def nearest_same_sense_null(table: DistanceTable) -> Float[Tensor, " p"]:
    """The expected share for randomly permuted senses, which does not depend on the distances."""
    is_first = table.splits[0]
    n_first, n = int(is_first.sum()), len(is_first)
    probability = (n_first * (n_first - 1) + (n - n_first) * (n - n_first - 1)) / (n * (n - 1))
    return torch.full((len(table.distances),), probability, dtype=torch.float64)


def _null_values(
    word_values: dict[str, Tensor], tables: Sequence[DistanceTable], draws: int, seed: int
) -> dict[str, Tensor]:
    """The p-value from random splits, one per word and draw. The standard deviation is exact, since words are independent."""
    effects = [split_effects(table) for table in tables]
    variance = torch.stack([effect.var(-1, correction=0) for effect in effects]).sum(0)
    generator = torch.Generator().manual_seed(seed)
    samples = torch.zeros(draws, len(variance), dtype=torch.float64)
    for effect in effects:
        samples += effect[:, torch.randint(effect.shape[-1], (draws,), generator=generator)].mT / len(effects)
    p = p_values(word_values["effect"].mean(-1), samples)
    return {"effect_null_sd": variance.sqrt() / len(effects), "p_value": p}


def _interval_fields(name: str, values_by_word: Float[Tensor, "p w"], seed: int) -> dict[str, Tensor]:
    low, high = bootstrap_t_interval(values_by_word, seed=seed)
    return {f"{name}_low": low, f"{name}_high": high}


def _control_values(
    word_values: dict[str, Tensor], tables_of_model: SenseTables, control: SenseTables, seed: int
) -> dict[str, Tensor]:
    if control.steps != tables_of_model.steps:
        raise RheoscopeError(
            Message(
                "the control must have {expected} layers like the model, got {received}",
                expected=len(tables_of_model.steps) - 1,
                received=len(control.steps) - 1,
            ),
            Advice("control=rs.load(…, untrained=True)"),
        )
    control_values = kernel(control.tables)
    gain = word_values["effect"] - control_values["effect"]
    means = {f"{name}_untrained": control_values[name].mean(-1) for name in ("effect", "nearest_same_sense")}
    return means | {"effect_gain": gain.mean(-1)} | _interval_fields("effect_gain", gain, seed)


SENSES = Analysis(
    name="senses",
    question="Are occurrences of a word separated by what the word means, layer by layer?",
    ask=senses,
    needs="model",
    fields=with_interval(
        "effect",
        Field(
            ("point",),
            "mean over words of (mean distance between senses − mean distance within senses) / standard deviation of all "
            "distances; at most 2.02 for 4 + 4 sentences",
            null="effect_null",
            null_sd="effect_null_sd",
        ),
    )
    | {
        "effect_null": Field(
            ("point",), "mean effect over all permutations of the senses within each word, which is 0"
        ),
        "effect_null_sd": Field(
            ("point",), "exact standard deviation of the effect over all permutations of the senses"
        ),
        "p_value": Field(("point",), "two-sided p-value of the effect against permuted senses within each word"),
    }
    | with_interval(
        "nearest_same_sense",
        Field(
            ("point",),
            "share of occurrences whose nearest other occurrence has the same sense",
            null="nearest_same_sense_null",
        ),
    )
    | {
        "nearest_same_sense_null": Field(
            ("point",), "expected share for randomly permuted senses, 3/7 for 4 + 4 sentences"
        ),
        "effect_untrained": Field(("point",), "effect in the untrained control"),
        "nearest_same_sense_untrained": Field(("point",), "nearest_same_sense in the untrained control"),
    }
    | with_interval(
        "effect_gain", Field(("point",), "effect minus the effect in the untrained control, mean over words")
    )
    | {
        "word_effect": Field(("point", "word"), "the effect of one word"),
        "word_p": Field(
            ("point", "word"),
            "one-sided p-value of the word's effect, the share of all splits with at least this effect",
        ),
    },
)
