"""Generation: the likeliest and the drawn, cached and not, against Hugging Face; beams against all targets there are."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from rheoscope.models.generate import generate, sample_token, stream, top_k_filter, top_p_filter, translate
from rheoscope.models.transformer import Transformer
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import gap, random, without_jaxtyping_checks
from tests.models.outside import CAUSAL, POSITIONS, gpt2, lengths, made, texts, translator

few = settings(max_examples=4)
seeds = st.integers(0, 10_000)


# Decoders


def by_hand(model: Transformer, ids: Tensor, tokens: int) -> Tensor:
    """The likeliest token, the whole text read again each time."""
    with torch.no_grad():
        for _ in range(tokens):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_the_likeliest_text(position: str, cached: bool) -> None:
    model, ids = made(1, position=position, kv_heads=2), texts(1, 3, 4)
    out = generate(model, ids, 5, temperature=0.0, cached=cached)
    assert torch.equal(out, by_hand(model, ids, 5))


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_every_mechanism_generates(mechanism: str) -> None:
    model, ids = made(2, mechanism=mechanism), texts(2, 2, 3)
    assert torch.equal(generate(model, ids, 3, temperature=0.0), by_hand(model, ids, 3))


@few
@given(seed=seeds, cached=st.booleans())
def test_a_seed_is_a_text(seed: int, cached: bool) -> None:
    """The same draws from the same chances, with a cache or without; another seed says something else."""
    model, ids = made(3), texts(seed, 4, 3)
    once = generate(model, ids, 8, seed=seed, cached=cached)
    assert torch.equal(once, generate(model, ids, 8, seed=seed, cached=not cached))
    assert not torch.equal(once, generate(model, ids, 8, seed=seed + 1))
    assert torch.equal(once[:, :3], ids)
    assert once.shape == (4, 11)


def test_hugging_face_says_the_same() -> None:
    ours, theirs, _ = gpt2(seed=4)
    ids = texts(3, 3, 5)
    expected = theirs.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    forbidden = ours.unembed.weight.new_zeros(17)
    forbidden[0] = -1e9  # min_new_tokens forbids their end of text

    ours.unembed.register_forward_hook(lambda module, inputs, out: out + forbidden)
    assert torch.equal(generate(ours, ids, 12, temperature=0.0), expected)


def test_the_stream_is_the_text_and_can_be_left() -> None:
    model, ids = made(5).train(), texts(5, 2, 3)
    tokens = list(stream(model, ids, 6, seed=7))
    assert torch.equal(torch.stack(tokens, 1), generate(model, ids, 6, seed=7)[:, 3:])
    first = next(iter(stream(model, ids, 6, seed=7)))
    assert torch.equal(first, tokens[0])
    assert model.training
    assert torch.is_grad_enabled()


def test_the_caller_keeps_its_gradients_between_tokens() -> None:
    for _ in stream(made(5), texts(5, 1, 3), 2):
        assert torch.is_grad_enabled()


def test_no_graph_is_kept() -> None:
    model, kept = made(5), []
    model.unembed.register_forward_hook(lambda module, inputs, out: kept.append(out.requires_grad))
    assert generate(model, texts(5, 1, 3), 4).shape == (1, 7)
    assert kept == [False] * 4


def test_dropout_rests_while_a_text_is_made() -> None:
    model, ids = made(6, dropout=0.5), texts(6, 2, 3)
    still = generate(model, ids, 6, temperature=0.0)
    assert torch.equal(generate(model.train(), ids, 6, temperature=0.0), still)
    assert model.training


def test_stop_ends_a_text_and_waits_for_the_others() -> None:
    model, ids = made(7), texts(7, 6, 3)
    free = generate(model, ids, 12, seed=3)[:, 3:]
    stop = int(free[0, 4])
    out = generate(model, ids, 12, seed=3, stop=stop)[:, 3:]
    ends = [row.index(stop) if stop in row else 11 for row in free.tolist()]
    assert len(set(ends)) > 1
    assert out.shape[1] == max(ends) + 1
    row = 0
    assert torch.equal(out[row, : ends[row] + 1], free[row, : ends[row] + 1])
    for row, end in enumerate(ends):
        assert not bool((out[row, :end] == stop).any()) or end == 11
    first = min(range(6), key=lambda row: ends[row])
    assert bool((out[first, ends[first] :] == stop).all())


def test_stop_at_once() -> None:
    model, ids = made(7), texts(7, 1, 3)
    likeliest = int(generate(model, ids, 1, temperature=0.0)[0, -1])
    assert generate(model, ids, 9, temperature=0.0, stop=likeliest).shape == (1, 4)


def test_no_token_and_the_last_that_fits() -> None:
    model, ids = made(8), texts(8, 2, 20)
    assert torch.equal(generate(model, ids, 0), ids)
    assert generate(model, ids, 5).shape == (2, 25)  # 24 are read, the last is only said


# What is drawn


@few
@given(seed=seeds, k=st.integers(1, 30))
def test_among_best_is_hugging_faces(seed: int, k: int) -> None:
    from transformers import TopKLogitsWarper

    logits = random(seed, 3, 20)
    logits[0, 5:9] = logits[0].max()  # equals
    assert torch.equal(top_k_filter(logits, k), TopKLogitsWarper(k)(None, logits))


@few
@given(seed=seeds, p=st.floats(0.02, 0.98))
def test_the_nucleus_is_hugging_faces(seed: int, p: float) -> None:
    from transformers import TopPLogitsWarper

    logits = 2 * random(seed, 3, 20)
    assert torch.equal(top_p_filter(logits, p), TopPLogitsWarper(p)(None, logits))


def test_a_nucleus_holds_at_least_p_and_no_token_too_many() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    kept = {p: int(top_p_filter(logits, p).isfinite().sum()) for p in (0.1, 0.5, 0.51, 0.75, 0.8, 1.0)}
    assert kept == {0.1: 1, 0.5: 1, 0.51: 2, 0.75: 2, 0.8: 3, 1.0: 4}


@pytest.mark.parametrize("p", [1e-252, 1e-46, 1e-30])
def test_the_likeliest_token_stays_though_the_probability_be_0_in_float32(p: float) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]])
    assert top_p_filter(logits, p).isfinite().tolist() == [[False, True, False], [True, False, False]]
    assert sample_token(logits, 0.8, None, p, Generator().manual_seed(0)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.5, None, None), (3.0, 3, None), (1.0, None, 0.7)]
)
def test_draws_follow_their_chances(temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    n = 40_000
    drawn = sample_token(logits.expand(n, -1), temperature, top_k, top_p, Generator().manual_seed(1))
    chances = (logits / temperature).softmax(-1)
    if top_k:
        chances[3:4], chances[2] = 0, 0
    if top_p:  # .57 + .21 reach .7
        chances[2:] = 0
    chances = chances / chances.sum()
    noise = (chances * (1 - chances) / n).sqrt()
    assert bool(((drawn.bincount(minlength=5) / n - chances).abs() <= 4.5 * noise).all())


# Encoder-decoders


def chances(model: Any, source: Tensor, targets: list[list[int]]) -> list[float]:
    """log p(target | source) of targets of one length after the start 0, read in one piece."""
    said = torch.tensor(targets)
    given = torch.cat([torch.zeros_like(said[:, :1]), said[:, :-1]], 1)
    with torch.no_grad():
        rows = model(source.expand(len(said), -1), given).float().log_softmax(-1)
    return rows.gather(-1, said[..., None]).sum((1, 2)).tolist()


def normed(score: float, length: int, favour: float) -> float:
    return score / ((5 + length) / 6) ** favour


def best_of_all(model: Any, source: Tensor, vocabulary: int, longest: int, favour: float) -> list[int]:
    """By trying every target that ends (token 1) within `longest`."""
    words = [token for token in range(vocabulary) if token != 1]
    found = []
    for n in range(longest):
        targets = [[*word, 1] for word in product(words, repeat=n)]
        scores = chances(model, source, targets)
        found += [(normed(score, n + 1, favour), target) for score, target in zip(scores, targets, strict=True)]
    return max(found)[1]


def ended(row: Tensor) -> list[int]:
    ids = row.tolist()
    return ids[: ids.index(1) + 1] if 1 in ids else ids


@pytest.mark.parametrize("favour", [0.0, 0.6, 3.0])
def test_a_beam_that_holds_everything_finds_the_best(favour: float) -> None:
    sizes = set()
    for seed in range(3):
        model = translator(seed=seed, vocabulary=4)
        source, real = texts(seed, 2, 5, vocabulary=4), lengths([5, 3])
        found = translate(model, source, start=0, end=1, max_tokens=4, beam=27, is_token=real, length_penalty=favour)
        for row, n in enumerate((5, 3)):
            expected = best_of_all(model, source[row : row + 1, :n], 4, 4, favour)
            assert ended(found[row]) == expected
            assert not bool((found[row, len(expected) :] != 1).any())
            sizes.add(len(expected))
        assert found.shape[1] == max(len(ended(row)) for row in found)
    assert len(sizes) > 1


def test_a_wider_beam_is_no_worse_here_and_often_better() -> None:
    better = 0
    for seed in range(6, 10):
        model, source = translator(seed=seed), texts(seed, 1, 6)
        found = [ended(translate(model, source, 0, 1, 10, beam)[0]) for beam in (2, 40)]
        scores = [
            normed(chances(model, source, [ids])[0], len(ids), 0.6) if ids[-1] == 1 else -torch.inf for ids in found
        ]
        assert scores[1] >= scores[0] - 1e-6
        better += scores[1] > scores[0] + 1e-6
    assert better > 0


@few
@given(seed=seeds, beam=st.sampled_from([1, 3]), position=st.sampled_from(POSITIONS))
def test_a_batch_is_each_alone(seed: int, beam: int, position: str) -> None:
    model, real = translator(seed=seed, position=position, kv_heads=2), [6, 2, 4]
    source = texts(seed, 3, 6)
    together = translate(model, source, 0, 1, 6, beam, lengths(real))
    for row, n in enumerate(real):
        alone = translate(model, source[row : row + 1, :n], 0, 1, 6, beam)
        assert ended(together[row]) == ended(alone[0])


@few
@given(seed=seeds)
def test_greedy_is_the_likeliest_token_each_time(seed: int) -> None:
    model, source = translator(seed=seed), texts(seed, 2, 5)
    found = translate(model, source, 0, 1, 6)
    for row in range(2):
        ids: list[int] = []
        while len(ids) < 6 and 1 not in ids:
            with torch.no_grad():
                ids.append(int(model(source[row : row + 1], torch.tensor([[0, *ids]]))[0, -1].argmax()))
        assert ended(found[row]) == ids
    assert found.shape[1] == max(len(ended(row)) for row in found)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_target_that_never_ends_is_as_long_as_allowed(beam: int) -> None:
    model, source = translator(seed=2), texts(2, 2, 5)
    never = model.unembed.weight.new_zeros(17)
    never[1] = -torch.inf
    model.unembed.register_forward_hook(lambda module, inputs, out: out + never)
    found = translate(model, source, 0, 1, 6, beam)
    assert found.shape == (2, 6)
    assert not bool((found == 1).any())
    if beam == 3:  # the likeliest of what was kept, so no less likely than the likeliest token each time
        greedy = translate(model, source, 0, 1, 6)
        for row in range(2):
            mine, plain = chances(model, source[row : row + 1], [found[row].tolist(), greedy[row].tolist()])
            assert mine >= plain - 1e-5


def test_cached_logits_are_the_models_own() -> None:
    from rheoscope.models.generate import TargetDecoder

    model, source, real = translator(seed=3), texts(3, 2, 5), lengths([5, 2])
    ids = texts(4, 2, 6)
    with torch.no_grad():
        target = TargetDecoder(model, source, real, max_tokens=6)
        steps = torch.stack([target.next_log_probs(ids[:, at : at + 1]) for at in range(6)], 1)
        assert gap(steps, model(source, ids, real).float().log_softmax(-1)) < 1e-6


# Refusals


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: generate(made(), texts(1, 1, 20), 6),
        "20 tokens and 6 more are longer than the 24 that the model reads; type tokens=5",
    ),
    (lambda: generate(made(), texts(1, 1, 30), 1), "type tokens=0 or a shorter text"),
    (lambda: generate(made(form="encoder"), texts(1, 1, 3), 1), "only a decoder continues a text, this is an encoder"),
    (lambda: generate(translator(), texts(1, 1, 3), 1), r"encoder-decoder; type translate\(model"),
    (lambda: generate(made(), texts(1, 1, 3)[0], 1), r"got torch.int64 \(3,\); for one text type"),
    (lambda: generate(made(), texts(1, 1, 0), 1), "at least one of each"),
    (lambda: generate(made(), texts(1, 1, 3).float(), 1), "whole numbers"),
    (lambda: generate(made(), torch.tensor([[3, 17]]), 1), "reach from 3 to 17, the vocabulary from 0 to 16"),
    (lambda: generate(made(), torch.tensor([[-1, 2]]), 1), "reach from -1 to 2"),
    (lambda: generate(made(), texts(1, 1, 3), -1), "tokens is a whole number of 0 or more, got -1; type tokens=32"),
    (lambda: generate(made(), texts(1, 1, 3), 1, temperature=-0.5), "temperature is a finite number of 0 or more"),
    (lambda: generate(made(), texts(1, 1, 3), 1, temperature=float("nan")), "temperature is a finite number"),
    (lambda: generate(made(), texts(1, 1, 3), 1, top_k=0), "top_k is how many tokens stay"),
    (lambda: generate(made(), texts(1, 1, 3), 1, top_p=0.0), "top_p is a probability above 0 and up to 1, got 0.0"),
    (lambda: generate(made(), texts(1, 1, 3), 1, top_p=1.5), "top_p is a probability"),
    (lambda: translate(made(), texts(1, 1, 3), 0, 1, 4), "only an encoder-decoder translates, this is a decoder"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 17, 4), "start and end reach from 0 to 17"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 25), "longest is 25, the model reads at most 24 tokens"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 0), "longest is a whole number of 1 or more"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 4, beam=0), "beam is a whole number of 1 or more"),
    (lambda: translate(translator(), texts(1, 1, 25), 0, 1, 4), "the text has 25 tokens, the model reads at most 24"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_are_one_line(call: Callable[[], Any], message: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)
    assert "type " in str(refusal.value)


@pytest.mark.parametrize("temperature", [1e-30, 1e-49, 1e-228, 5e-324])
def test_the_smallest_temperature_draws_the_likeliest(temperature: float) -> None:
    """Divided by as they are, some machines multiply by 1/0: 0 · ∞ is no probability."""
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -5.0, 0.0]])
    assert sample_token(logits, temperature, None, None, torch.Generator()).tolist() == [1, 0]
