"""The claims about senses and related words: loops over occurrences and pairs, order of words, planted weights."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

import rheoscope as rs
from rheoscope.flow.relatedness import claims as relatedness_claims
from rheoscope.flow.relatedness.analysis import WordList
from rheoscope.flow.relatedness.claims import group_shares
from rheoscope.flow.senses import claims as senses_claims
from rheoscope.flow.senses.claims import sense_shares
from rheoscope.shapes import RheoscopeError
from tests.cases import double, network
from tests.flow.claim_samples import assert_close, sample_of
from tests.pretrained.cases import changed

FIRST, SECOND, CARRIER = range(8, 18), range(18, 28), [3, 4]
PRIMES = [n for n in range(2, 114) if all(n % k for k in range(2, n))]
WORDS = (5, 6, 7, 30, 31, 32, 33, 34, 35, 36, 37, 38)


def random_sentences(seed: int = 0) -> Any:
    """Words with two senses: three sentences of tokens of one kind, and three of another."""
    rng = np.random.default_rng(seed)
    kinds = {"first": list(FIRST), "second": list(SECOND)}
    return {
        str(token): {
            sense: [[*rng.permutation(kind)[:4].tolist(), token] for _ in range(3)] for sense, kind in kinds.items()
        }
        for token in WORDS
    }


def groups(seed: int = 0) -> WordList:
    """Ten groups of three tokens in random order."""
    ids = np.random.default_rng(seed).permutation(np.arange(8, 38)).tolist()
    counts = [prime - 1 for prime in PRIMES]  # no two differences of log(1 + count) are equal
    return WordList([[token] for token in ids], torch.arange(30) // 3, list("abcdefghij"), counts)


def clouds(model: Any, sentences: list[list[int]]) -> np.ndarray:
    """The directions of the last tokens around their mean, at the embedding and after every layer."""
    traces = [model.trace(sentence) for sentence in sentences]
    indices = [*traces[0].input_steps, len(traces[0].steps) - 1]
    points = np.stack([[trace.points[index, -1].double().numpy() for trace in traces] for index in indices])
    centred = points - points.mean(1, keepdims=True)
    return centred / np.linalg.norm(centred, axis=-1, keepdims=True)


def slow_sense_shares(model: Any, words: Any) -> list[float]:
    points = clouds(model, [s for senses in words.values() for sentences in senses.values() for s in sentences])
    shares = []
    for start in range(0, points.shape[1], 6):
        hits = []
        for cloud in points[1:, start : start + 6]:
            for i in range(6):
                others = [j for j in range(6) if j != i]
                nearest = min(others, key=lambda j: np.linalg.norm(cloud[i] - cloud[j]))
                hits.append((i < 3) == (nearest < 3))
        shares.append(np.mean(hits))
    return shares


def slow_group_shares(model: Any, words: WordList) -> list[list[float]]:
    points, n = clouds(model, [[*CARRIER, *ids] for ids in words.words])[[0, -1]], len(words.words)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    frequency = np.log(1 + np.array(words.counts))
    gaps = rankdata([abs(frequency[i] - frequency[j]) for i, j in pairs])
    regressors = np.stack([np.ones(len(pairs)), gaps], 1)
    rows = []
    for cloud in points:
        ranks = rankdata([-np.linalg.norm(cloud[i] - cloud[j]) for i, j in pairs])
        residual = ranks - regressors @ np.linalg.lstsq(regressors, ranks, rcond=None)[0]
        near = dict(zip(pairs, residual, strict=True))
        row = []
        for group in range(10):
            members = {i for i in range(n) if int(words.group_index[i]) == group}
            within = [near[pair] for pair in pairs if len(members & set(pair)) == 2]
            across = [near[pair] for pair in pairs if len(members & set(pair)) == 1]
            row.append(np.mean([a > b for a in within for b in across]))
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_senses_equal_a_loop_and_do_not_depend_on_the_order_of_words(name: str) -> None:
    model, words = double(name), random_sentences()
    observed, chance = sense_shares(model, words)
    assert_close(observed, torch.tensor(slow_sense_shares(model, words)))
    assert_close(chance, torch.full_like(chance, 2 / 5))
    assert_close(observed.flip(0), sense_shares(model, dict(reversed(words.items())))[0])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_relatedness_equals_a_loop_and_does_not_depend_on_the_order_of_words(name: str) -> None:
    model, words = double(name), groups()
    shares = group_shares(model, words, (CARRIER,))
    assert_close(shares, torch.tensor(slow_group_shares(model, words)))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = WordList(
        [words.words[i] for i in order], words.group_index[order], words.group_names, [words.counts[i] for i in order]
    )
    assert_close(shares, group_shares(model, shuffled, (CARRIER,)))


def plant_kinds(changed_network: Any) -> None:
    """Tokens of one kind get almost equal embeddings, and the two kinds opposite ones."""
    embedding = changed_network.model.embed_tokens.weight
    direction = 4 * torch.randn(embedding.shape[1], generator=torch.Generator().manual_seed(0)).to(embedding)
    for kind, sign in ((FIRST, 1), (SECOND, -1)):
        embedding[list(kind)] = 0.05 * embedding[list(kind)] + sign * direction


def test_planted_senses_are_found_and_random_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senses_claims, "default_words", random_sentences)
    planted = changed("llama", plant_kinds)
    assert float(senses_claims.measure(sample_of(planted, [[3, 4]]))["senses"].effects.mean()) > 0.4
    random_kinds = [sense_shares(double("llama"), _mixed_kinds(seed)) for seed in range(4)]
    assert abs(float(torch.cat([observed - chance for observed, chance in random_kinds]).mean())) < 0.1


def _mixed_kinds(seed: int) -> Any:
    """The same words with sentences that are assigned to senses at random."""
    rng = np.random.default_rng(seed)
    mixed = {}
    for name, senses in random_sentences(seed).items():
        sentences = [sentence for sense in senses.values() for sentence in sense]
        order = rng.permutation(6)
        mixed[name] = {"first": [sentences[i] for i in order[:3]], "second": [sentences[i] for i in order[3:]]}
    return mixed


def test_planted_groups_are_found_and_random_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    words = groups()
    monkeypatch.setattr(relatedness_claims, "default_word_list", lambda: words)
    monkeypatch.setattr(relatedness_claims, "CARRIERS", (CARRIER,))

    def plant_groups(changed_network: Any) -> None:
        embedding = changed_network.model.embed_tokens.weight
        for group in range(10):
            members = [ids[0] for ids, index in zip(words.words, words.group_index, strict=True) if index == group]
            embedding[members] = embedding[members[:1]] + 0.05 * embedding[members]

    planted = relatedness_claims.measure(sample_of(changed("llama", plant_groups), [[3, 4]]))
    assert float(planted["embedding"].effects.mean()) > 0.4
    assert abs(float(planted["kept"].effects.mean())) < 0.1
    random_groups = [group_shares(double("llama"), groups(seed), (CARRIER,)) for seed in range(8)]
    shares = torch.cat(random_groups, -1)
    assert float((shares.mean(-1) - 0.5).abs().max()) < 0.05


def test_a_model_without_a_tokenizer_has_no_words() -> None:
    model = rs.load(network("llama"))
    for claims in (senses_claims, relatedness_claims):
        with pytest.raises(RheoscopeError):
            claims.measure(sample_of(model, [[3, 4]]))
