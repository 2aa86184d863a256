"""Do related words lie near each other? Words of one group against words of two, given frequency, length and spelling."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.flow.occurrences import occurrences
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import centred_inner_products, distances, upper_triangle
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Draws, Seed, SpaceName
from rheoscope.statistics.nulls import bootstrap_interval, p_values, random_permutations
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

Groups = Mapping[str, Sequence[Text]]
"""Group → its words."""
DEFAULT_WORDS_FILE = Path(__file__).with_name("relatedness.tsv")
"""20 groups of 6 words, and how often each word stands in the first 10⁸ bytes of the English Wikipedia of 2006 (enwik8)."""
CARRIERS = (
    "In the middle of the page stood the word",
    "When he woke up, the first thing he said was",
    "The answer to the riddle turned out to be",
    "On a small piece of paper she had written",
)
"""Beginnings that fit a word of any kind, so that nothing but the word differs."""


def relatedness(
    model: Model,
    words: Groups | str | None = None,
    carriers: Sequence[Text] = CARRIERS,
    space: SpaceName = "sphere",
    draws: Draws = 1000,
    seed: Seed = 0,
    control: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """Do distances between words order by what the words mean?

    **Answers** "is *hammer* nearer to *axe* than to *butter*, and after which layer most?"

    **Formula** each word stands at the end of each carrier; its point is that of its last token. The distance of two words is the mean
    over carriers of the distance of their directions around the mean of all words there (`space="sphere"`), or of their points (`raw`,
    `normed`). Nearness of all pairs, in ranks, less what follows linearly from the ranks of |Δ log frequency|, |Δ letters|, |Δ tokens| and
    of one capital among the two, is then compared with "same group": `correlation`, and `nearer`, the share of comparisons in
    which a word is nearer to one of its group than to another word.

    **Shapes** `words`: {group: [word, …]}, or the path of a file with the columns group, word and (if frequency shall count) count
    between tabs. Words and carriers may be lists of token ids. Without it the set that comes with the package: 20 groups of 6 words.

    **Null** the groups dealt out anew among the words, `draws` times. **Control** `control=rs.load(…, untrained=True)`. The first
    point is the embedding: what lies there already, no layer has made.

    **Gives** (point): `correlation` with its null, `p_value`, `nearer` with its interval over groups, with a control
    `correlation_untrained`, `nearer_untrained`; (point, group): `group_nearer`.

    **Laws** `nearer` is 1 where all words of a group lie at one point, 1/2 where nearness knows nothing of groups; the order of words
    and the names of groups change nothing.

    **Siblings** `senses` asks the same of one word that means two things.

    >>> import rheoscope as rs
    >>> found = rs.relatedness(rs.load(), {"animals": ["dog", "cat", "horse"], "numbers": ["three", "four", "five"]}, draws=20)
    >>> found.nearer.dims, bool(found.nearer.max() <= 1)
    (('point',), True)
    """
    word_list = _check_word_list(_read_word_list(DEFAULT_WORDS_FILE if words is None else words), carriers)
    word_distances = _word_distances(model, word_list, carriers, space, progress)
    values = kernel(
        word_distances.mean_distances,
        word_list.group_index,
        word_list.confounders(word_distances.token_counts),
        draws,
        seed,
    )
    low, high = bootstrap_interval(
        values["group_nearer"], [1] * len(word_list.group_names), torch.Generator().manual_seed(seed)
    )
    values |= {"nearer_low": low, "nearer_high": high}
    confounder_names = "frequency, letters, tokens, capital" if word_list.has_counts else "letters, tokens, capital"
    settings = {"space": space, "draws": draws, "seed": seed, "given": confounder_names, "carriers": len(carriers)}
    if control is not None:
        values |= _control_values(word_distances, _word_distances(control, word_list, carriers, space, None), word_list)
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(word_distances.steps), "group": list(word_list.group_names)}
    return RELATEDNESS.label(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Which words


@dataclass(frozen=True, eq=False)
class WordList:
    """Words with the number of their group, and what is known of them without a model."""

    words: list[Text]
    group_index: Int[Tensor, " n"]
    group_names: list[str]
    counts: list[int]

    @property
    def has_counts(self) -> bool:
        return bool(self.counts)

    def confounders(self, token_counts: Sequence[int]) -> Float[Tensor, "c n"]:
        """What nearness could follow from besides meaning, of every word."""
        strings = [word if isinstance(word, str) else "" for word in self.words]
        rows: list[Sequence[float]] = [
            [len(string) for string in strings],
            token_counts,
            [string[:1].isupper() for string in strings],
        ]
        rows += [[math.log(1 + count) for count in self.counts]] if self.has_counts else []
        return torch.tensor([list(map(float, row)) for row in rows], dtype=torch.float64)


def _read_word_list(words: Groups | str | Path) -> WordList:
    if isinstance(words, str | Path):
        rows = read_tsv_rows(words, ("group", "word"), ("count",))
        group_word_pairs: list[tuple[str, Text]] = [(row["group"], row["word"]) for row in rows]
        counts = [_parse_count(row["count"]) for row in rows if "count" in row]
    else:
        group_word_pairs, counts = [(group, word) for group, group_words in words.items() for word in group_words], []
    names = list(dict.fromkeys(group for group, _ in group_word_pairs))
    return WordList(
        [word for _, word in group_word_pairs],
        torch.tensor([names.index(group) for group, _ in group_word_pairs]),
        names,
        counts,
    )


def _parse_count(cell: str) -> int:
    if not cell.isdigit():
        raise RheoscopeError(f"a count is a whole number, got {cell!r}; type how often the word stands in some text")
    return int(cell)


def _check_word_list(word_list: WordList, carriers: Sequence[Text]) -> WordList:
    sizes = torch.bincount(word_list.group_index, minlength=1).tolist()
    if len(word_list.group_names) < 2 or min(sizes) < 2 or not len(carriers):
        raise RheoscopeError(
            f"there are two groups or more of two words or more, and a carrier, got groups of {sizes} words and {len(carriers)} "
            "carriers; type {'animals': ['dog', 'cat'], 'tools': ['axe', 'saw']}"
        )
    return word_list


# What the model makes of them


@dataclass(frozen=True, eq=False)
class WordDistances:
    """Mean distances of all pairs of words at every point, and how many tokens each word has."""

    mean_distances: Float[Tensor, "p pairs"]
    token_counts: list[int]
    steps: tuple[str, ...]


def _word_distances(
    model: Model,
    word_list: WordList,
    carriers: Sequence[Text],
    space: str,
    progress: Callable[[int, int], None] | None,
) -> WordDistances:
    texts = [[_join_carrier(carrier, word) for word in word_list.words] for carrier in carriers]
    total_distance = torch.zeros(())
    steps: tuple[str, ...] = ()
    for n_done, sentences in enumerate(texts, 1):
        instances = occurrences(model, sentences, word_list.words, space)
        total_distance, steps = (
            total_distance + upper_triangle(distances(centred_inner_products(instances.points))).cpu(),
            instances.steps,
        )
        if progress is not None:
            progress(n_done, len(texts))
    token_counts = [len(model.ids(text)) - len(model.ids(carriers[0])) for text in texts[0]]
    return WordDistances(total_distance / len(texts), token_counts, steps)


def _join_carrier(carrier: Text, target_word: Text) -> Text:
    if isinstance(carrier, str) and isinstance(target_word, str):
        return f"{carrier} {target_word}"
    if isinstance(carrier, str) or isinstance(target_word, str):
        raise RheoscopeError(
            f"words and carriers are both strings or both ids, got {carrier!r} and {target_word!r}; type carriers=[[1, 2], …] for ids"
        )
    return [*map(int, carrier), *map(int, target_word)]


def kernel(
    pair_distances: Float[Tensor, "p pairs"],
    group_index: Int[Tensor, " n"],
    confounders: Float[Tensor, "c n"],
    draws: int,
    seed: int,
) -> dict[str, Tensor]:
    """Nearness of all pairs, less what is given, against the groups, and against groups dealt out anew."""
    nearness, basis = residual_ranks(-pair_distances, confounders)
    orders = torch.cat([torch.arange(len(group_index))[None], random_permutations(len(group_index), draws, seed)])
    correlations = partial_correlation(nearness, basis, same_group_indicator(group_index[orders]))
    by_group = torch.stack(
        [nearer_fraction(nearness, group_index == index) for index in range(int(group_index.max()) + 1)], -1
    )
    observed, null = correlations[0], correlations[1:]
    values = {
        "correlation": observed,
        "nearer": by_group.mean(-1),
        "nearer_null": torch.full_like(observed, 0.5),
        "group_nearer": by_group,
    }
    if not draws:
        return values
    null_sd = null.std(0) if draws > 1 else torch.full_like(observed, torch.nan)
    null_values = {
        "correlation_null": null.mean(0),
        "correlation_null_sd": null_sd,
        "p_value": p_values(observed, null),
    }
    return values | null_values


def residual_ranks(
    x: Float[Tensor, "p pairs"], confounders: Float[Tensor, "c n"]
) -> tuple[Float[Tensor, "p pairs"], Float[Tensor, "pairs r"]]:
    """Ranks less what follows linearly from the ranks of how much words differ in what is given, and a basis of the latter."""
    confounder_ranks = unit_ranks(upper_triangle((confounders[:, :, None] - confounders[:, None, :]).abs()))
    U, singular_values, _ = torch.linalg.svd(confounder_ranks.mT, full_matrices=False)
    basis = U[:, singular_values > 1e-9]
    ranks = unit_ranks(x)
    residual = ranks - ranks @ basis @ basis.mT
    return torch.where(
        residual.norm(dim=-1, keepdim=True) > 1e-9, residual, 0
    ), basis  # what is left of nothing is rounding


def same_group_indicator(group_index: Int[Tensor, "draw n"]) -> Float[Tensor, "draw pairs"]:
    """1 for pairs of one group, less the mean."""
    same = upper_triangle((group_index[:, :, None] == group_index[:, None, :]).double())
    return same - same.mean(-1, keepdim=True)


def partial_correlation(
    nearness: Float[Tensor, "p pairs"], basis: Float[Tensor, "pairs r"], group_indicator: Float[Tensor, "draw pairs"]
) -> Float[Tensor, "draw p"]:
    """Correlation of both, each less what is given; `near` is so already, hence no product is moved by the other's part."""
    residual_norm = (group_indicator.square().sum(-1) - (group_indicator @ basis).square().sum(-1)).clamp(min=0).sqrt()
    return safe_divide(group_indicator @ nearness.mT, residual_norm[:, None] * nearness.norm(dim=-1))


def nearer_fraction(nearness: Float[Tensor, "p pairs"], in_group: Bool[Tensor, " n"]) -> Float[Tensor, " p"]:
    """How often a pair of the group is nearer than a pair of one of its words with another word; equally near ones count half."""
    i, j = torch.triu_indices(len(in_group), len(in_group), 1)
    within, across = nearness[:, in_group[i] & in_group[j], None], nearness[:, None, in_group[i] ^ in_group[j]]
    tied = (within - across).abs() <= 1e-12
    return torch.where(tied, 0.5, (within > across).double()).mean((-2, -1))


def _control_values(word_distances: WordDistances, control: WordDistances, word_list: WordList) -> dict[str, Tensor]:
    if control.steps != word_distances.steps:
        raise RheoscopeError(
            f"a control has the layers of the model, got {len(control.steps) - 1} for {len(word_distances.steps) - 1}; "
            "type control=rs.load(…, untrained=True)"
        )
    values = kernel(control.mean_distances, word_list.group_index, word_list.confounders(control.token_counts), 0, 0)
    return {f"{name}_untrained": values[name] for name in ("correlation", "nearer")}


RELATEDNESS = Analysis(
    name="relatedness",
    question="Do words of one kind lie nearer to each other than to other words, layer by layer?",
    ask=relatedness,
    needs="model",
    fields={
        "correlation": Field(
            ("point",),
            "rank correlation of the nearness of two words with being of one group, given frequency, length and capitals",
            null="correlation_null",
            null_sd="correlation_null_sd",
        ),
        "correlation_null": Field(("point",), "mean of the same with the groups dealt out anew among the words"),
        "correlation_null_sd": Field(("point",), "standard deviation of the same"),
        "p_value": Field(
            ("point",), "how often groups dealt out anew give a correlation as far from chance, two-sided"
        ),
    }
    | with_interval(
        "nearer",
        Field(
            ("point",),
            "mean over groups of group_nearer: 1 where a word is always nearer to its own group, 1/2 at chance",
            null="nearer_null",
        ),
    )
    | {
        "nearer_null": Field(("point",), "the same at chance: 1/2"),
        "correlation_untrained": Field(("point",), "correlation in the untrained control"),
        "nearer_untrained": Field(("point",), "nearer in the untrained control"),
        "group_nearer": Field(
            ("point", "group"),
            "how often two words of the group are nearer than one of them and a word of another, given the same",
        ),
    },
)
