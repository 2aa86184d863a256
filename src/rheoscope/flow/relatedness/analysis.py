"""Word relatedness: whether words of one group are close, controlling for frequency, length and spelling."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.flow.occurrences import OnProgress, occurrences
from rheoscope.flow.word_lists import read_tsv_rows
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import centred_inner_products, distances, pair_numbers, upper_triangle
from rheoscope.space.safe_arithmetic import safe_divide
from rheoscope.space.settings import Draws, Seed, SpaceName
from rheoscope.space.trace import Trace
from rheoscope.statistics.intervals import bootstrap_t_interval, describe_intervals
from rheoscope.statistics.nulls import p_values, random_permutations
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

Groups = Mapping[str, Sequence[Text]]
"""Group → words."""
DEFAULT_WORDS_FILE = Path(__file__).with_name("relatedness.tsv")
"""209 groups of 6 words, with the count of each word in the first 10⁸ bytes of the English Wikipedia of 2006 (enwik8)."""
CARRIERS = (
    "In the middle of the page stood the word",
    "When he woke up, the first thing he said was",
    "The answer to the riddle turned out to be",
    "On a small piece of paper she had written",
)
"""Sentence beginnings that fit any word, so that only the word differs."""
NULL_WORK = 2
"""The work of the null and of the groups, in units of that of the points."""
EXAMPLE = Advice("word_list={'animals': ['dog', 'cat'], 'tools': ['axe', 'saw']}")


def _ignore(done: int, total: int) -> None:
    """The progress that nobody follows."""


def relatedness(
    model: Model,
    word_list: Groups | str | None = None,
    carrier_sentences: Sequence[Text] = CARRIERS,
    space: SpaceName = "sphere",
    draws: Draws = 1000,
    seed: Seed = 0,
    control: Model | None = None,
    progress: OnProgress | None = None,
) -> "xarray.Dataset":
    """Do distances between words reflect their meaning?

    **Question** Is *hammer* closer to *axe* than to *butter*, and after which layer most?

    **Formula** Each word ends each carrier sentence, and its point is that of its last token. The distance of two words is the mean
    over carriers of the distance between their directions around the mean of all words (`space="sphere"`) or between their points
    (`raw`, `normed`). The ranks of the closeness of all pairs are regressed on the ranks of |Δ log frequency|, |Δ letters|,
    |Δ tokens| and |Δ capital|. The residual is compared with "same group".

    The null permutes the words among the groups, `draws` times. The first point is the embedding, before any layer.

    **Returns** (point): `correlation` with its null, `p_value`, `same_group_nearer` with its interval over groups. With a control also
    `correlation_untrained` and `same_group_nearer_untrained`. (point, group): `same_group_nearer_by_group`.

    **Settings** `word_list` is {group: [word, …]}, or the path of a tab-separated file with the columns group, word and optionally
    count. The default is the list of the package, 209 groups of 6 words. `carrier_sentences` are beginnings of sentences. Words and
    carrier sentences may be lists of token ids. `control` is an untrained model, `rs.load(…, untrained=True)`.

    **Laws** `same_group_nearer` is 1 if all words of a group are at one point, and 1/2 if closeness does not depend on the group. The
    order of the words and the names of the groups do not matter.

    **See also** `senses` compares the senses of one word.

    >>> import rheoscope as rs
    >>> groups = {"animals": ["dog", "cat", "horse"], "numbers": ["three", "four", "five"]}
    >>> result = rs.relatedness(rs.load(), groups, draws=20)
    >>> result.same_group_nearer.dims, bool(result.same_group_nearer.max() <= 1)
    (('point',), True)
    """
    words = default_word_list() if word_list is None else _read_word_list(word_list)
    words = _check_word_list(words, carrier_sentences)
    n_carriers = len(carrier_sentences)
    total = (1 + NULL_WORK) * n_carriers
    on_progress = progress or _ignore
    model_distances = word_distances(model, words, carrier_sentences, space, lambda done, _: on_progress(done, total))
    values = kernel(
        model_distances.mean_distances,
        words.group_index,
        words.confounders(model_distances.token_counts),
        draws,
        seed,
        lambda done, of: on_progress(n_carriers + NULL_WORK * n_carriers * done // of, total),
    )
    low, high = bootstrap_t_interval(values["same_group_nearer_by_group"], seed=seed)
    values |= {"same_group_nearer_low": low, "same_group_nearer_high": high}
    confounders = "frequency, letters, tokens, capital" if words.has_counts else "letters, tokens, capital"
    settings = {"space": space, "draws": draws, "seed": seed, "confounders": confounders}
    settings |= {"carrier_sentences": len(carrier_sentences)}
    settings |= {"intervals": describe_intervals(Message("groups of words"), len(words.group_names))}
    if control is not None:
        control_distances = word_distances(control, words, carrier_sentences, space, None)
        values |= _control_values(model_distances, control_distances, words)
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(model_distances.steps), "group": list(words.group_names)}
    return RELATEDNESS.label(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Words


@dataclass(frozen=True, eq=False)
class WordList:
    """Words with their group numbers and, if known, their counts in a corpus."""

    words: list[Text]
    group_index: Int[Tensor, " n"]
    group_names: list[str]
    counts: list[int]

    @property
    def has_counts(self) -> bool:
        return bool(self.counts)

    def confounders(self, token_counts: Sequence[int]) -> Float[Tensor, "c n"]:
        """Properties of every word other than its meaning that could explain closeness."""
        strings = [entry if isinstance(entry, str) else "" for entry in self.words]
        rows: list[Sequence[float]] = [
            [len(string) for string in strings],
            token_counts,
            [string[:1].isupper() for string in strings],
        ]
        rows += [[math.log(1 + count) for count in self.counts]] if self.has_counts else []
        return torch.tensor([list(map(float, row)) for row in rows], dtype=torch.float64)


def default_word_list() -> WordList:
    """The words of the package."""
    return _read_word_list(DEFAULT_WORDS_FILE)


def _read_word_list(words: Groups | str | Path) -> WordList:
    if isinstance(words, str | Path):
        rows = read_tsv_rows(words, ("group", "word"), ("count",))
        group_word_pairs: list[tuple[str, Text]] = [(row["group"], row["word"]) for row in rows]
        counts = [_parse_count(row["count"]) for row in rows if "count" in row]
    else:
        group_word_pairs, counts = [(group, entry) for group, group_words in words.items() for entry in group_words], []
    names = list(dict.fromkeys(group for group, _ in group_word_pairs))
    return WordList(
        [entry for _, entry in group_word_pairs],
        torch.tensor([names.index(group) for group, _ in group_word_pairs]),
        names,
        counts,
    )


def _parse_count(cell: str) -> int:
    if not cell.isdigit():
        raise RheoscopeError(
            Message("the column count must contain non-negative integers, got {received!r}", received=cell)
        )
    return int(cell)


def _check_word_list(word_list: WordList, carriers: Sequence[Text]) -> WordList:
    sizes = torch.bincount(word_list.group_index, minlength=1).tolist()
    if len(word_list.group_names) < 2 or min(sizes) < 2:
        raise RheoscopeError(
            Message(
                "word_list must have at least 2 groups of at least 2 words, got groups of {sizes} words",
                sizes=str(sizes),
            ),
            EXAMPLE,
        )
    if not len(carriers):
        raise RheoscopeError(
            Message("carrier_sentences must contain at least one sentence, got none"),
            Advice("carrier_sentences=['The answer is']"),
        )
    return word_list


# Distances


@dataclass(frozen=True, eq=False)
class WordDistances:
    """Mean distances of all pairs of words at every point, and the number of tokens of each word."""

    mean_distances: Float[Tensor, "p pairs"]
    token_counts: list[int]
    steps: tuple[str, ...]


def word_distances(
    model: Model,
    word_list: WordList,
    carriers: Sequence[Text],
    space: str,
    progress: OnProgress | None,
    selected_points: Sequence[int] | slice = slice(None),
) -> WordDistances:
    """The mean distances over carriers of all pairs of words, at the selected points: the embedding and after every layer."""
    texts = [[_join_carrier(carrier, entry) for entry in word_list.words] for carrier in carriers]
    total_distance, n_tokens = torch.zeros(()), list[int]()
    steps: tuple[str, ...] = ()
    for n_done, sentences in enumerate(texts, 1):
        instances = occurrences(model, sentences, word_list.words, space)
        products = centred_inner_products(instances.points[selected_points])
        total_distance = total_distance + upper_triangle(distances(products)).cpu()
        steps = tuple(instances.steps[index] for index in torch.arange(len(instances.steps))[selected_points].tolist())
        n_tokens = n_tokens or instances.n_tokens
        if progress is not None:
            progress(n_done, len(texts))
    n_carrier = len(model.ids(carriers[0]))
    token_counts = [n - n_carrier for n in n_tokens]
    return WordDistances(total_distance / len(texts), token_counts, steps)


def _join_carrier(carrier: Text, target_word: Text) -> Text:
    if isinstance(carrier, str) and isinstance(target_word, str):
        return f"{carrier} {target_word}"
    if isinstance(carrier, str) or isinstance(target_word, str):
        raise RheoscopeError(
            Message(
                "words and carrier sentences must both be strings or both be token ids, got {word} and {carrier}",
                word=repr(target_word),
                carrier=repr(carrier),
            ),
            Advice("carrier_sentences=[[1, 2], …]"),
        )
    return [*as_id_list(carrier), *as_id_list(target_word)]


def as_id_list(text: Any) -> list[int]:
    """Token ids of a text that is not a string."""
    return [int(token_id) for token_id in (text.ids if isinstance(text, Trace) else text)]


def kernel(
    pair_distances: Float[Tensor, "p pairs"],
    group_index: Int[Tensor, " n"],
    confounders: Float[Tensor, "c n"],
    draws: int,
    seed: int,
    progress: OnProgress = _ignore,
) -> dict[str, Tensor]:
    """Partial correlation of closeness with the groups, its permutation null, and the share of closer same-group pairs."""
    nearness, basis = residual_ranks(-pair_distances, confounders)
    orders = torch.cat([torch.arange(len(group_index))[None], random_permutations(len(group_index), draws, seed)])
    chunks = orders.split(max(1, block_numel(group_index.device) // len(group_index) ** 2))  # limits memory
    n_groups, parts = int(group_index.max()) + 1, list[Tensor]()
    total = len(chunks) + n_groups
    for chunk in chunks:
        parts.append(partial_correlation(nearness, basis, same_group_indicator(group_index[chunk])))
        progress(len(parts), total)
    for index in range(n_groups):
        parts.append(nearer_fraction(nearness, group_index == index))
        progress(len(parts), total)
    correlations, by_group = torch.cat(parts[: len(chunks)]), torch.stack(parts[len(chunks) :], -1)
    observed, null = correlations[0], correlations[1:]
    values = {
        "correlation": observed,
        "same_group_nearer": by_group.mean(-1),
        "same_group_nearer_null": torch.full_like(observed, 0.5),
        "same_group_nearer_by_group": by_group,
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
    """Ranks after regression on the ranks of the confounder differences, and an orthonormal basis of the latter."""
    confounder_ranks = unit_ranks(upper_triangle((confounders[:, :, None] - confounders[:, None, :]).abs()))
    U, singular_values, _ = torch.linalg.svd(confounder_ranks.mT, full_matrices=False)
    basis = U[:, singular_values > 1e-9]
    ranks = unit_ranks(x)
    residual = ranks - ranks @ basis @ basis.mT
    residual = torch.where(
        residual.norm(dim=-1, keepdim=True) > 1e-9, residual, 0
    )  # a smaller residual is rounding error
    return residual, basis


def same_group_indicator(group_index: Int[Tensor, "draw n"]) -> Float[Tensor, "draw pairs"]:
    """1 for pairs of the same group, minus the mean."""
    same = upper_triangle((group_index[:, :, None] == group_index[:, None, :]).double())
    return same - same.mean(-1, keepdim=True)


def partial_correlation(
    nearness: Float[Tensor, "p pairs"], basis: Float[Tensor, "pairs r"], group_indicator: Float[Tensor, "draw pairs"]
) -> Float[Tensor, "draw p"]:
    """Correlation of the residuals. `nearness` is a residual already, so only the norm of the indicator needs correction."""
    residual_norm = (group_indicator.square().sum(-1) - (group_indicator @ basis).square().sum(-1)).clamp(min=0).sqrt()
    return safe_divide(group_indicator @ nearness.mT, residual_norm[:, None] * nearness.norm(dim=-1))


def nearer_fraction(nearness: Float[Tensor, "p pairs"], in_group: Bool[Tensor, " n"]) -> Float[Tensor, " p"]:
    """The share of comparisons in which a pair within the group is closer than a pair with one word in it; ties count half."""
    n, members, others = len(in_group), in_group.nonzero()[:, 0], in_group.logical_not().nonzero()[:, 0]
    i, j = torch.triu_indices(len(members), len(members), 1, device=members.device)
    within = nearness[:, pair_numbers(members[i], members[j], n), None]
    inside, outside = torch.cartesian_prod(members, others).unbind(-1)
    across = nearness[:, None, pair_numbers(inside, outside, n)]
    tied = (within - across).abs() <= 1e-12
    return torch.where(tied, 0.5, (within > across).double()).mean((-2, -1))


def _control_values(model_distances: WordDistances, control: WordDistances, word_list: WordList) -> dict[str, Tensor]:
    if control.steps != model_distances.steps:
        raise RheoscopeError(
            Message(
                "the control must have {expected} layers like the model, got {received}",
                expected=len(model_distances.steps) - 1,
                received=len(control.steps) - 1,
            ),
            Advice("control=rs.load(…, untrained=True)"),
        )
    values = kernel(control.mean_distances, word_list.group_index, word_list.confounders(control.token_counts), 0, 0)
    return {f"{name}_untrained": values[name] for name in ("correlation", "same_group_nearer")}


RELATEDNESS = Analysis(
    name="relatedness",
    question="Are words of one group closer to each other than to other words, layer by layer?",
    ask=relatedness,
    needs="model",
    fields={
        "correlation": Field(
            ("point",),
            "partial rank correlation between closeness of two words and being in the same group, given the confounders",
            null="correlation_null",
            null_sd="correlation_null_sd",
        ),
        "correlation_null": Field(("point",), "mean correlation after permuting the words among the groups"),
        "correlation_null_sd": Field(("point",), "standard deviation of the correlation over the permutations"),
        "p_value": Field(("point",), "two-sided p-value of the correlation against permuted groups"),
    }
    | with_interval(
        "same_group_nearer",
        Field(
            ("point",),
            "mean over groups of same_group_nearer_by_group: 1 if a word is always closer to its own group, 1/2 at chance",
            null="same_group_nearer_null",
        ),
    )
    | {
        "same_group_nearer_null": Field(("point",), "expected share if closeness does not depend on the group, 1/2"),
        "correlation_untrained": Field(("point",), "correlation in the untrained control"),
        "same_group_nearer_untrained": Field(("point",), "same_group_nearer in the untrained control"),
        "same_group_nearer_by_group": Field(
            ("point", "group"),
            "share of comparisons in which two words of the group are closer than one of them and a word of another group",
        ),
    },
)
