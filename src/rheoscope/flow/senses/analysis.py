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
from rheoscope.flow.word_lists import rows_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import upper
from rheoscope.space.safe_arithmetic import share
from rheoscope.statistics.nulls import bootstrap, p_values

if TYPE_CHECKING:
    import xarray

Words = Mapping[str, Mapping[str, Sequence[Text]]]
"""Word → its two senses → sentences in which it stands."""
SHIPPED = Path(__file__).with_name("senses.tsv")
"""40 words with two senses, four sentences each, written for this analysis."""
MOST = 16
"""Sentences of a word: every way to split them is counted."""


def senses(
    model: Model,
    words: Words | str | None = None,
    space: str = "sphere",
    draws: int = 2000,
    seed: int = 0,
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
    asked = _checked(_read(SHIPPED if words is None else words))
    seen = _seen(model, asked, space, progress)
    own = kernel(seen.tables)
    values = {name: own[name].mean(-1) for name in ("effect", "nearest", "nearest_null")}
    values |= {"effect_null": torch.zeros_like(values["effect"])} | _by_chance(own, seen.tables, draws, seed)
    values |= {"word_effect": own["effect"], "word_p": own["p"]}
    values |= _interval("effect", own["effect"], seed) | _interval("nearest", own["nearest"], seed)
    settings = {"space": space, "draws": draws, "seed": seed, "words": _told(words), "embedding": seen.embedding}
    if control is not None:
        values |= _beside(own, seen, _seen(control, asked, space, None), seed)
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(seen.steps), "word": list(asked)}
    return SENSES.answer(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Which sentences


def _read(words: Words | str | Path) -> Words:
    if not isinstance(words, str | Path):
        return words
    found: dict[str, dict[str, list[Text]]] = {}
    for row in rows_of(words, ("word", "sense", "sentence")):
        found.setdefault(row["word"], {}).setdefault(row["sense"], []).append(row["sentence"])
    return found


def _checked(words: Words) -> Words:
    if not words:
        raise RheoscopeError("there is no word to ask about; type {'bank': {'money': […], 'river': […]}}")
    for word, by_sense in words.items():
        sizes = [len(some) for some in by_sense.values()]
        if len(sizes) != 2 or min(sizes) < 2 or sum(sizes) > MOST:
            raise RheoscopeError(
                f"a word has two senses with 2 sentences or more each, {MOST} in all, got {sizes} of {word!r}; "
                "type {'bank': {'money': ['…', '…'], 'river': ['…', '…']}}"
            )
    return words


def _told(words: Words | str | None) -> str:
    return "those of the package" if words is None else words if isinstance(words, str) else "given"


# What the model makes of them


@dataclass(frozen=True, eq=False)
class Table:
    """The distances of one word at every point, and every way to split its sentences in two, the senses first."""

    apart: Float[Tensor, "p n n"]
    splits: Bool[Tensor, "k n"]


@dataclass(frozen=True, eq=False)
class Seen:
    """A model's tables, word by word."""

    tables: list[Table]
    steps: tuple[str, ...]
    embedding: str


def _seen(model: Model, words: Words, space: str, progress: Callable[[int, int], None] | None) -> Seen:
    rows = [(word, text) for word, by_sense in words.items() for some in by_sense.values() for text in some]
    found = occurrences(model, [text for _, text in rows], [word for word, _ in rows], space, progress)
    tables, start = [], 0
    for word, (one, other) in ((word, by_sense.values()) for word, by_sense in words.items()):
        its = slice(start, start + len(one) + len(other))
        start = its.stop
        _one_token(model, word, found.ids[its])
        apart = distances_between(found.points[:, its], found.rounding[:, its]).cpu()
        tables.append(Table(apart, splits(len(one), len(other))))
    return Seen(tables, found.steps, _embedding(found, tables))


def _one_token(model: Model, word: str, ids: Int[Tensor, " n"]) -> None:
    if len(set(ids.tolist())) > 1:
        raise RheoscopeError(
            f"{word!r} ends in different tokens ({', '.join(map(repr, model.words(ids.unique())))}); write it alike in all sentences"
        )


def _embedding(found: Occurrences, tables: list[Table]) -> str:
    still = all(not bool(table.apart[0].any()) for table in tables)
    return "one point a word" if still else "with positions, so that occurrences differ"


def splits(one: int, other: int) -> Bool[Tensor, "k n"]:
    """Every way to deal out one + other sentences, the first `one` of them first; which half is called which does not matter.

    >>> splits(2, 2).int().tolist()
    [[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]
    """
    n = one + other
    ways = [way for way in combinations(range(n), one) if one != other or 0 in way]
    found = torch.zeros(len(ways), n, dtype=torch.bool)
    return found.scatter_(1, torch.tensor(ways), True)


def kernel(tables: Sequence[Table]) -> dict[str, Float[Tensor, "p w"]]:
    """Of every word: how far its senses lie apart, how rare that is among splits, and what its nearest occurrences are."""
    effects = [effects_of(table) for table in tables]
    return {
        "effect": torch.stack([effect[:, 0] for effect in effects], -1),
        "p": torch.stack([(e >= e[:, :1] - 1e-9).double().mean(-1) for e in effects], -1),
        "nearest": torch.stack([nearest(table) for table in tables], -1),
        "nearest_null": torch.stack([nearest_by_chance(table) for table in tables], -1),
    }


def effects_of(table: Table) -> Float[Tensor, "p k"]:
    """(mean distance across − mean distance within) / spread of all distances, for every split; 0 where all are equal."""
    apart = upper(table.apart)
    across = upper((table.splits[:, :, None] != table.splits[:, None, :]).double())
    far = apart @ (across / across.sum(-1, keepdim=True)).mT
    near = apart @ ((1 - across) / (1 - across).sum(-1, keepdim=True)).mT
    spread = apart.std(-1, correction=0, keepdim=True)
    return share(far - near, torch.where(spread > 1e-12 * apart.amax(-1, keepdim=True), spread, 0).expand_as(far))


def nearest(table: Table) -> Float[Tensor, " p"]:
    """Share of occurrences whose nearest other one has their sense; equally near ones share."""
    n = table.apart.shape[-1]
    own = table.splits[0]
    same = (own[:, None] == own) & ~torch.eye(n, dtype=torch.bool)
    far = table.apart + torch.diag(torch.full((n,), torch.inf, dtype=table.apart.dtype))
    closest = far == far.amin(-1, keepdim=True)
    return ((closest & same).sum(-1).double() / closest.sum(-1)).mean(-1)


def nearest_by_chance(table: Table) -> Float[Tensor, " p"]:
    """The same for any distances, the senses dealt out at random: how many of the others have the sense of one."""
    own = table.splits[0]
    one, n = int(own.sum()), len(own)
    chance = (one * (one - 1) + (n - one) * (n - one - 1)) / (n * (n - 1))
    return torch.full((len(table.apart),), chance, dtype=torch.float64)


def _by_chance(own: dict[str, Tensor], tables: Sequence[Table], draws: int, seed: int) -> dict[str, Tensor]:
    """What splits at random give, one for each word and draw; the spread is exact, since words are dealt out apart."""
    effects = [effects_of(table) for table in tables]
    variance = torch.stack([effect.var(-1, correction=0) for effect in effects]).sum(0)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.zeros(draws, len(variance), dtype=torch.float64)
    for effect in effects:
        drawn += effect[:, torch.randint(effect.shape[-1], (draws,), generator=generator)].mT / len(effects)
    p = p_values(own["effect"].mean(-1), drawn)
    return {"effect_null_sd": variance.sqrt() / len(effects), "p_value": p}


def _interval(name: str, by_word: Float[Tensor, "p w"], seed: int) -> dict[str, Tensor]:
    low, high = bootstrap(by_word, [1] * by_word.shape[-1], torch.Generator().manual_seed(seed))
    return {f"{name}_low": low, f"{name}_high": high}


def _beside(own: dict[str, Tensor], seen: Seen, control: Seen, seed: int) -> dict[str, Tensor]:
    if control.steps != seen.steps:
        raise RheoscopeError(
            f"a control has the layers of the model, got {len(control.steps) - 1} for {len(seen.steps) - 1}; "
            "type control=rs.load(…, untrained=True)"
        )
    other = kernel(control.tables)
    gain = own["effect"] - other["effect"]
    beside = {f"{name}_untrained": other[name].mean(-1) for name in ("effect", "nearest")}
    return beside | {"effect_gain": gain.mean(-1)} | _interval("effect_gain", gain, seed)


BOUND = sqrt(28 / 16 * 28 / 12)  # 1/√(share of pairs across · share within) of 4 + 4 sentences
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
            f"distances of the word: 0 at chance, at most {BOUND:.2f} for 4 + 4 sentences",
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
