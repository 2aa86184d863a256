"""Does a model tell the senses of a word apart? Occurrences of one sense against those of two, layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.flow.occurrences import Occurrences, distances_between, occurrences
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import upper_triangle
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Draws, Seed, SpaceName
from rheoscope.statistics.nulls import bootstrap_interval, p_values

if TYPE_CHECKING:
    import xarray

SenseSentences = Mapping[str, Mapping[str, Sequence[Text]]]
"""Word → its two senses → sentences in which it stands."""
DEFAULT_WORDS_FILE = Path(__file__).with_name("senses.tsv")
"""40 words with two senses, four sentences each, written for this analysis."""
MAX_SENTENCES = 16
"""Sentences of a word: every way to split them is counted."""


def senses(
    model: Model,
    words: SenseSentences | str | None = None,
    space: SpaceName = "sphere",
    draws: Draws = 2000,
    seed: Seed = 0,
    control: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Do occurrences of a word lie apart by what the word means there?

    **Answers** "the *bank* of a river and the *bank* with the money are one token: after which layer are they two things?"

    **Formula** of the n occurrences of a word: (mean distance between occurrences of two senses − mean distance between those of
    one) / standard deviation of all n(n−1)/2 distances; the mean over words. An occurrence is the last token of the word.
    Distances are those of directions around the mean of all occurrences (`space="sphere"`), or of points (`raw`, `normed`).

    **Shapes** `words`: {word: {sense: [sentence, …], other sense: […]}}, or the path of a file with the columns word, sense and
    sentence between tabs. Of a list of token ids the word is the last one. Without it the set that comes with the package: 40 nouns with
    two senses and four sentences each, all ending in "the WORD", no other word of content in two sentences of a word.

    **Null** the senses dealt out anew within each word: every split is counted for a word, `draws` combinations of splits for
    the mean. Its mean is 0. **Control** `control=rs.load(…, untrained=True)`: neighbours and places differ between contexts before
    anything is learned.

    **Gives** (point): `effect` with its interval over words, `effect_null`, `effect_null_sd`, `p_value`, `nearest` and its null, with a
    control `effect_untrained`, `nearest_untrained`, `effect_gain`; (point, word): `word_effect`, `word_p`.

    **Laws** 0 at the token embedding, where occurrences are one point (learned positions are part of the embedding: there it is the
    effect of places); the names of senses may change places; |effect| has a bound (2.02 for 4 + 4 sentences).

    **Siblings** `relatedness` asks the same of different words, `purity` of the clusters of one text.

    >>> import rheoscope as rs
    >>> bank = {"money": ["He has a loan from the bank", "She saved cash at the bank"],
    ...         "river": ["Reeds grew on the bank", "The boat was tied to the bank"]}
    >>> found = rs.senses(rs.load(), {"bank": bank}, draws=20)
    >>> float(found.effect.sel(point="embed")), found.effect.dims
    (0.0, ('point',))
    """
    sentences_by_word = _check_words(_read_words(DEFAULT_WORDS_FILE if words is None else words))
    sense_tables = _sense_tables(model, sentences_by_word, space, progress)
    word_values = kernel(sense_tables.tables)
    values = {name: word_values[name].mean(-1) for name in ("effect", "nearest", "nearest_null")}
    values |= {"effect_null": torch.zeros_like(values["effect"])} | _null_values(
        word_values, sense_tables.tables, draws, seed
    )
    values |= {"word_effect": word_values["effect"], "word_p": word_values["p"]}
    values |= _interval_fields("effect", word_values["effect"], seed) | _interval_fields(
        "nearest", word_values["nearest"], seed
    )
    settings = {
        "space": space,
        "draws": draws,
        "seed": seed,
        "words": _word_source(words),
        "embedding": sense_tables.embedding_note,
    }
    if control is not None:
        values |= _control_values(
            word_values, sense_tables, _sense_tables(control, sentences_by_word, space, None), seed
        )
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(sense_tables.steps), "word": list(sentences_by_word)}
    return SENSES.label(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Which sentences


def _read_words(words: SenseSentences | str | Path) -> SenseSentences:
    if not isinstance(words, str | Path):
        return words
    sentences_by_word: dict[str, dict[str, list[Text]]] = {}
    for row in read_tsv_rows(words, ("word", "sense", "sentence")):
        sentences_by_word.setdefault(row["word"], {}).setdefault(row["sense"], []).append(row["sentence"])
    return sentences_by_word


def _check_words(words: SenseSentences) -> SenseSentences:
    if not words:
        raise RheoscopeError("there is no word to ask about; type {'bank': {'money': […], 'river': […]}}")
    for target_word, by_sense in words.items():
        sizes = [len(sentences) for sentences in by_sense.values()]
        if len(sizes) != 2 or min(sizes) < 2 or sum(sizes) > MAX_SENTENCES:
            raise RheoscopeError(
                f"a word has two senses with 2 sentences or more each, {MAX_SENTENCES} in all, got {sizes} of {target_word!r}; "
                "type {'bank': {'money': ['…', '…'], 'river': ['…', '…']}}"
            )
    return words


def _word_source(words: SenseSentences | str | None) -> str:
    return "those of the package" if words is None else words if isinstance(words, str) else "given"


# What the model makes of them


@dataclass(frozen=True, eq=False)
class DistanceTable:
    """The distances of one word at every point, and every way to split its sentences in two, the senses first."""

    distances: Float[Tensor, "p n n"]
    splits: Bool[Tensor, "k n"]


@dataclass(frozen=True, eq=False)
class SenseTables:
    """A model's tables, word by word."""

    tables: list[DistanceTable]
    steps: tuple[str, ...]
    embedding_note: str


def _sense_tables(
    model: Model, words: SenseSentences, space: str, progress: Callable[[int, int], None] | None
) -> SenseTables:
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
            f"{target_word!r} ends in different tokens "
            f"({', '.join(map(repr, model.token_strings(ids.unique())))}); write it alike in all sentences"
        )


def _embedding_note(instances: Occurrences, tables: list[DistanceTable]) -> str:
    all_equal = all(not bool(table.distances[0].any()) for table in tables)
    return "one point a word" if all_equal else "with positions, so that occurrences differ"


def sense_splits(n_first: int, n_second: int) -> Bool[Tensor, "k n"]:
    """Every way to deal out one + other sentences, the first `one` of them first; which half is called which does not matter.

    >>> sense_splits(2, 2).int().tolist()
    [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """
    n = n_first + n_second
    subsets = [subset for subset in combinations(range(n), n_first) if n_first != n_second or 0 in subset]
    is_first = torch.zeros(len(subsets), n, dtype=torch.bool)
    return is_first.scatter_(1, torch.tensor(subsets), True)


def kernel(tables: Sequence[DistanceTable]) -> dict[str, Float[Tensor, "p w"]]:
    """Of every word: how far its senses lie apart, how rare that is among splits, and what its nearest occurrences are."""
    effects = [split_effects(table) for table in tables]
    return {
        "effect": torch.stack([effect[:, 0] for effect in effects], -1),
        "p": torch.stack([(e >= e[:, :1] - 1e-9).double().mean(-1) for e in effects], -1),
        "nearest": torch.stack([nearest_same_sense(table) for table in tables], -1),
        "nearest_null": torch.stack([nearest_same_sense_null(table) for table in tables], -1),
    }


def split_effects(table: DistanceTable) -> Float[Tensor, "p k"]:
    """(mean distance across − mean distance within) / spread of all distances, for every split; 0 where all are equal."""
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
    """Share of occurrences whose nearest other one has their sense; equally near ones share."""
    n = table.distances.shape[-1]
    is_first = table.splits[0]
    same_sense = (is_first[:, None] == is_first) & ~torch.eye(n, dtype=torch.bool)
    distance = table.distances + torch.diag(torch.full((n,), torch.inf, dtype=table.distances.dtype))
    closest = distance == distance.amin(-1, keepdim=True)
    return ((closest & same_sense).sum(-1).double() / closest.sum(-1)).mean(-1)


def nearest_same_sense_null(table: DistanceTable) -> Float[Tensor, " p"]:
    """The same for any distances, the senses dealt out at random: how many of the others have the sense of one."""
    is_first = table.splits[0]
    n_first, n = int(is_first.sum()), len(is_first)
    probability = (n_first * (n_first - 1) + (n - n_first) * (n - n_first - 1)) / (n * (n - 1))
    return torch.full((len(table.distances),), probability, dtype=torch.float64)


def _null_values(
    word_values: dict[str, Tensor], tables: Sequence[DistanceTable], draws: int, seed: int
) -> dict[str, Tensor]:
    """What splits at random give, one for each word and draw; the spread is exact, since words are dealt out apart."""
    effects = [split_effects(table) for table in tables]
    variance = torch.stack([effect.var(-1, correction=0) for effect in effects]).sum(0)
    generator = torch.Generator().manual_seed(seed)
    samples = torch.zeros(draws, len(variance), dtype=torch.float64)
    for effect in effects:
        samples += effect[:, torch.randint(effect.shape[-1], (draws,), generator=generator)].mT / len(effects)
    p = p_values(word_values["effect"].mean(-1), samples)
    return {"effect_null_sd": variance.sqrt() / len(effects), "p_value": p}


def _interval_fields(name: str, values_by_word: Float[Tensor, "p w"], seed: int) -> dict[str, Tensor]:
    low, high = bootstrap_interval(values_by_word, [1] * values_by_word.shape[-1], torch.Generator().manual_seed(seed))
    return {f"{name}_low": low, f"{name}_high": high}


def _control_values(
    word_values: dict[str, Tensor], sense_tables: SenseTables, control: SenseTables, seed: int
) -> dict[str, Tensor]:
    if control.steps != sense_tables.steps:
        raise RheoscopeError(
            f"a control has the layers of the model, got {len(control.steps) - 1} for {len(sense_tables.steps) - 1}; "
            "type control=rs.load(…, untrained=True)"
        )
    control_values = kernel(control.tables)
    gain = word_values["effect"] - control_values["effect"]
    means = {f"{name}_untrained": control_values[name].mean(-1) for name in ("effect", "nearest")}
    return means | {"effect_gain": gain.mean(-1)} | _interval_fields("effect_gain", gain, seed)


MAX_EFFECT = sqrt(28 / 16 * 28 / 12)  # 1/√(share of pairs across · share within) of 4 + 4 sentences
SENSES = Analysis(
    name="senses",
    question="Do occurrences of one word lie apart by what it means there, layer by layer?",
    ask=senses,
    needs="model",
    fields=with_interval(
        "effect",
        Field(
            ("point",),
            "mean over words of (mean distance between occurrences of two senses − that of one sense) / standard deviation of all "
            f"distances of the word: 0 at chance, at most {MAX_EFFECT:.2f} for 4 + 4 sentences",
            null="effect_null",
            null_sd="effect_null_sd",
        ),
    )
    | {
        "effect_null": Field(("point",), "the same over all ways to deal out the senses within each word: 0"),
        "effect_null_sd": Field(("point",), "standard deviation of the same over all these ways, exact"),
        "p_value": Field(
            ("point",), "how often senses dealt out at random within each word give an effect as far from 0, two-sided"
        ),
    }
    | with_interval(
        "nearest",
        Field(
            ("point",),
            "share of occurrences whose nearest other occurrence of the word has the same sense",
            null="nearest_null",
        ),
    )
    | {
        "nearest_null": Field(("point",), "the same for senses dealt out at random: 3/7 for 4 + 4 sentences"),
        "effect_untrained": Field(("point",), "effect in the untrained control"),
        "nearest_untrained": Field(("point",), "nearest in the untrained control"),
    }
    | with_interval("effect_gain", Field(("point",), "effect less that of the untrained control, word by word"))
    | {
        "word_effect": Field(("point", "word"), "the effect of one word"),
        "word_p": Field(
            ("point", "word"), "share of all ways to deal out its senses that give at least this effect, one-sided"
        ),
    },
)
