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
from rheoscope.flow.word_lists import rows_of
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field, with_interval
from rheoscope.space.model import Model, Text
from rheoscope.space.pair_distances import distances, inner_products, upper
from rheoscope.space.safe_arithmetic import share
from rheoscope.statistics.nulls import bootstrap, p_values, permutations
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray

Groups = Mapping[str, Sequence[Text]]
"""Group → its words."""
SHIPPED = Path(__file__).with_name("relatedness.tsv")
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
    space: str = "sphere",
    draws: int = 1000,
    seed: int = 0,
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
    listed = _checked(_read(SHIPPED if words is None else words), carriers)
    seen = _seen(model, listed, carriers, space, progress)
    values = kernel(seen.apart, listed.group, listed.given(seen.tokens), draws, seed)
    low, high = bootstrap(values["group_nearer"], [1] * len(listed.names), torch.Generator().manual_seed(seed))
    values |= {"nearer_low": low, "nearer_high": high}
    given = "frequency, letters, tokens, capital" if listed.counted else "letters, tokens, capital"
    settings = {"space": space, "draws": draws, "seed": seed, "given": given, "carriers": len(carriers)}
    if control is not None:
        values |= _beside(seen, _seen(control, listed, carriers, space, None), listed)
        settings |= {"control": f"{control.view.facts['model']}, weights {control.view.facts['weights']}"}
    coords = {"point": list(seen.steps), "group": list(listed.names)}
    return RELATEDNESS.answer(values, coords, settings | {name: str(fact) for name, fact in model.view.facts.items()})


# Which words


@dataclass(frozen=True, eq=False)
class Listed:
    """Words with the number of their group, and what is known of them without a model."""

    words: list[Text]
    group: Int[Tensor, " n"]
    names: list[str]
    counts: list[int]

    @property
    def counted(self) -> bool:
        return bool(self.counts)

    def given(self, tokens: Sequence[int]) -> Float[Tensor, "c n"]:
        """What nearness could follow from besides meaning, of every word."""
        strings = [word if isinstance(word, str) else "" for word in self.words]
        known: list[Sequence[float]] = [[len(one) for one in strings], tokens, [one[:1].isupper() for one in strings]]
        known += [[math.log(1 + count) for count in self.counts]] if self.counted else []
        return torch.tensor([list(map(float, row)) for row in known], dtype=torch.float64)


def _read(words: Groups | str | Path) -> Listed:
    if isinstance(words, str | Path):
        rows = rows_of(words, ("group", "word"), ("count",))
        pairs: list[tuple[str, Text]] = [(row["group"], row["word"]) for row in rows]
        counts = [_count(row["count"]) for row in rows if "count" in row]
    else:
        pairs, counts = [(group, word) for group, some in words.items() for word in some], []
    names = list(dict.fromkeys(group for group, _ in pairs))
    return Listed([word for _, word in pairs], torch.tensor([names.index(group) for group, _ in pairs]), names, counts)


def _count(typed: str) -> int:
    if not typed.isdigit():
        raise RheoscopeError(f"a count is a whole number, got {typed!r}; type how often the word stands in some text")
    return int(typed)


def _checked(listed: Listed, carriers: Sequence[Text]) -> Listed:
    sizes = torch.bincount(listed.group, minlength=1).tolist()
    if len(listed.names) < 2 or min(sizes) < 2 or not len(carriers):
        raise RheoscopeError(
            f"there are two groups or more of two words or more, and a carrier, got groups of {sizes} words and {len(carriers)} "
            "carriers; type {'animals': ['dog', 'cat'], 'tools': ['axe', 'saw']}"
        )
    return listed


# What the model makes of them


@dataclass(frozen=True, eq=False)
class Seen:
    """Mean distances of all pairs of words at every point, and how many tokens each word has."""

    apart: Float[Tensor, "p pairs"]
    tokens: list[int]
    steps: tuple[str, ...]


def _seen(
    model: Model,
    listed: Listed,
    carriers: Sequence[Text],
    space: str,
    progress: Callable[[int, int], None] | None,
) -> Seen:
    texts = [[_joined(carrier, word) for word in listed.words] for carrier in carriers]
    apart = torch.zeros(())
    steps: tuple[str, ...] = ()
    for done, some in enumerate(texts, 1):
        found = occurrences(model, some, listed.words, space)
        apart, steps = apart + upper(distances(inner_products(found.points))).cpu(), found.steps
        if progress is not None:
            progress(done, len(texts))
    longer = [len(model.ids(text)) - len(model.ids(carriers[0])) for text in texts[0]]
    return Seen(apart / len(texts), longer, steps)


def _joined(carrier: Text, word: Text) -> Text:
    if isinstance(carrier, str) and isinstance(word, str):
        return f"{carrier} {word}"
    if isinstance(carrier, str) or isinstance(word, str):
        raise RheoscopeError(
            f"words and carriers are both strings or both ids, got {carrier!r} and {word!r}; type carriers=[[1, 2], …] for ids"
        )
    return [*map(int, carrier), *map(int, word)]


def kernel(
    apart: Float[Tensor, "p pairs"], group: Int[Tensor, " n"], given: Float[Tensor, "c n"], draws: int, seed: int
) -> dict[str, Tensor]:
    """Nearness of all pairs, less what is given, against the groups, and against groups dealt out anew."""
    near, basis = beyond(-apart, given)
    orders = torch.cat([torch.arange(len(group))[None], permutations(len(group), draws, seed)])
    drawn = partial(near, basis, same_group(group[orders]))
    by_group = torch.stack([nearer(near, group == one) for one in range(int(group.max()) + 1)], -1)
    own, null = drawn[0], drawn[1:]
    values = {
        "correlation": own,
        "nearer": by_group.mean(-1),
        "nearer_null": torch.full_like(own, 0.5),
        "group_nearer": by_group,
    }
    if not draws:
        return values
    spread = null.std(0) if draws > 1 else torch.full_like(own, torch.nan)
    chance = {"correlation_null": null.mean(0), "correlation_null_sd": spread, "p_value": p_values(own, null)}
    return values | chance


def beyond(
    x: Float[Tensor, "p pairs"], given: Float[Tensor, "c n"]
) -> tuple[Float[Tensor, "p pairs"], Float[Tensor, "pairs r"]]:
    """Ranks less what follows linearly from the ranks of how much words differ in what is given, and a basis of the latter."""
    differ = unit_ranks(upper((given[:, :, None] - given[:, None, :]).abs()))
    U, sizes, _ = torch.linalg.svd(differ.mT, full_matrices=False)
    basis = U[:, sizes > 1e-9]
    ranks = unit_ranks(x)
    left = ranks - ranks @ basis @ basis.mT
    return torch.where(left.norm(dim=-1, keepdim=True) > 1e-9, left, 0), basis  # what is left of nothing is rounding


def same_group(group: Int[Tensor, "draw n"]) -> Float[Tensor, "draw pairs"]:
    """1 for pairs of one group, less the mean."""
    same = upper((group[:, :, None] == group[:, None, :]).double())
    return same - same.mean(-1, keepdim=True)


def partial(
    near: Float[Tensor, "p pairs"], basis: Float[Tensor, "pairs r"], same: Float[Tensor, "draw pairs"]
) -> Float[Tensor, "draw p"]:
    """Correlation of both, each less what is given; `near` is so already, hence no product is moved by the other's part."""
    left = (same.square().sum(-1) - (same @ basis).square().sum(-1)).clamp(min=0).sqrt()
    return share(same @ near.mT, left[:, None] * near.norm(dim=-1))


def nearer(near: Float[Tensor, "p pairs"], inside: Bool[Tensor, " n"]) -> Float[Tensor, " p"]:
    """How often a pair of the group is nearer than a pair of one of its words with another word; equally near ones count half."""
    i, j = torch.triu_indices(len(inside), len(inside), 1)
    ours, others = near[:, inside[i] & inside[j], None], near[:, None, inside[i] ^ inside[j]]
    tied = (ours - others).abs() <= 1e-12
    return torch.where(tied, 0.5, (ours > others).double()).mean((-2, -1))


def _beside(seen: Seen, control: Seen, listed: Listed) -> dict[str, Tensor]:
    if control.steps != seen.steps:
        raise RheoscopeError(
            f"a control has the layers of the model, got {len(control.steps) - 1} for {len(seen.steps) - 1}; "
            "type control=rs.load(…, untrained=True)"
        )
    found = kernel(control.apart, listed.group, listed.given(control.tokens), 0, 0)
    return {f"{name}_untrained": found[name] for name in ("correlation", "nearer")}


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
