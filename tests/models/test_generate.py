"""Generation: greedy and sampled, cached and not, against Hugging Face; beam search against all targets."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from rheoscope.models.generate import generate, stream, translate
from rheoscope.models.transformer import Transformer
from rheoscope.running.sampling import sample_token, top_k_filter, top_p_filter
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import gap, random, without_jaxtyping_checks
from tests.models.outside import CAUSAL, POSITIONS, gpt2, lengths, random_model, texts, translator

few_examples = settings(max_examples=4)
seeds = st.integers(0, 10_000)


# Decoders


def generate_uncached(model: Transformer, ids: Tensor, tokens: int) -> Tensor:
    """The most likely continuation, with the whole text read again for every token."""
    with torch.no_grad():
        for _ in range(tokens):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_temperature_0_gives_the_most_likely_text(position: str, cached: bool) -> None:
    model, ids = random_model(1, position=position, kv_heads=2), texts(1, 3, 4)
    out = generate(model, ids, 5, temperature=0.0, cached=cached)
    assert torch.equal(out, generate_uncached(model, ids, 5))


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_every_mechanism_generates(mechanism: str) -> None:
    model, ids = random_model(2, mechanism=mechanism), texts(2, 2, 3)
    assert torch.equal(generate(model, ids, 3, temperature=0.0), generate_uncached(model, ids, 3))


@few_examples
@given(seed=seeds, cached=st.booleans())
def test_the_text_depends_only_on_the_seed(seed: int, cached: bool) -> None:
    """The same samples with and without a cache, and other samples for another seed."""
    model, ids = random_model(3), texts(seed, 4, 3)
    text = generate(model, ids, 8, seed=seed, cached=cached)
    assert torch.equal(text, generate(model, ids, 8, seed=seed, cached=not cached))
    assert not torch.equal(text, generate(model, ids, 8, seed=seed + 1))
    assert torch.equal(text[:, :3], ids)
    assert text.shape == (4, 11)


def test_greedy_generation_equals_hugging_face() -> None:
    ours, theirs, _ = gpt2(seed=4)
    ids = texts(3, 3, 5)
    expected = theirs.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)
    forbidden = ours.unembed.weight.new_zeros(17)
    forbidden[0] = -1e9  # min_new_tokens forbids the end of text there

    ours.unembed.register_forward_hook(lambda module, inputs, out: out + forbidden)
    assert torch.equal(generate(ours, ids, 12, temperature=0.0), expected)


def test_the_stream_yields_the_generated_text_and_can_be_closed() -> None:
    model, ids = random_model(5).train(), texts(5, 2, 3)
    tokens = list(stream(model, ids, 6, seed=7))
    assert torch.equal(torch.stack(tokens, 1), generate(model, ids, 6, seed=7)[:, 3:])
    first = next(iter(stream(model, ids, 6, seed=7)))
    assert torch.equal(first, tokens[0])
    assert model.training
    assert torch.is_grad_enabled()


def test_the_caller_keeps_its_gradients_between_tokens() -> None:
    for _ in stream(random_model(5), texts(5, 1, 3), 2):
        assert torch.is_grad_enabled()


def test_no_graph_is_kept() -> None:
    model, requires_grad = random_model(5), []
    model.unembed.register_forward_hook(lambda module, inputs, out: requires_grad.append(out.requires_grad))
    assert generate(model, texts(5, 1, 3), 4).shape == (1, 7)
    assert requires_grad == [False] * 4


def test_generation_disables_dropout_and_restores_the_mode() -> None:
    model, ids = random_model(6, dropout=0.5), texts(6, 2, 3)
    expected = generate(model, ids, 6, temperature=0.0)
    assert torch.equal(generate(model.train(), ids, 6, temperature=0.0), expected)
    assert model.training


def test_stop_ends_a_text_and_waits_for_the_others() -> None:
    model, ids = random_model(7), texts(7, 6, 3)
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


def test_a_stop_token_at_the_first_step_ends_the_text() -> None:
    model, ids = random_model(7), texts(7, 1, 3)
    likeliest = int(generate(model, ids, 1, temperature=0.0)[0, -1])
    assert generate(model, ids, 9, temperature=0.0, stop=likeliest).shape == (1, 4)


def test_zero_tokens_and_the_longest_continuation() -> None:
    model, ids = random_model(8), texts(8, 2, 20)
    assert torch.equal(generate(model, ids, 0), ids)
    assert generate(model, ids, 5).shape == (2, 25)  # 24 are read, and the last one is only generated


# Sampling


@few_examples
@given(seed=seeds, k=st.integers(1, 30))
def test_top_k_equals_hugging_face(seed: int, k: int) -> None:
    from transformers import TopKLogitsWarper

    logits = random(seed, 3, 20)
    logits[0, 5:9] = logits[0].max()  # ties
    assert torch.equal(top_k_filter(logits, k), TopKLogitsWarper(k)(None, logits))


@few_examples
@given(seed=seeds, p=st.floats(0.02, 0.98))
def test_top_p_equals_hugging_face(seed: int, p: float) -> None:
    from transformers import TopPLogitsWarper

    logits = 2 * random(seed, 3, 20)
    assert torch.equal(top_p_filter(logits, p), TopPLogitsWarper(p)(None, logits))


def test_a_nucleus_holds_at_least_p_and_no_token_too_many() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    requires_grad = {p: int(top_p_filter(logits, p).isfinite().sum()) for p in (0.1, 0.5, 0.51, 0.75, 0.8, 1.0)}
    assert requires_grad == {0.1: 1, 0.5: 1, 0.51: 2, 0.75: 2, 0.8: 3, 1.0: 4}


@pytest.mark.parametrize("p", [1e-252, 1e-46, 1e-30])
def test_the_most_likely_token_stays_if_p_underflows_in_float32(p: float) -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 1.0]])
    assert top_p_filter(logits, p).isfinite().tolist() == [[False, True, False], [True, False, False]]
    assert sample_token(logits, 0.8, None, p, Generator().manual_seed(0)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.5, None, None), (3.0, 3, None), (1.0, None, 0.7)]
)
def test_samples_follow_their_probabilities(temperature: float, top_k: int | None, top_p: float | None) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    n = 40_000
    samples = sample_token(logits.expand(n, -1), temperature, top_k, top_p, Generator().manual_seed(1))
    probabilities = (logits / temperature).softmax(-1)
    if top_k:
        probabilities[3:4], probabilities[2] = 0, 0
    if top_p:  # .57 + .21 reach .7
        probabilities[2:] = 0
    probabilities = probabilities / probabilities.sum()
    noise = (probabilities * (1 - probabilities) / n).sqrt()
    assert bool(((samples.bincount(minlength=5) / n - probabilities).abs() <= 4.5 * noise).all())


# Encoder-decoders


def target_log_probs(model: Any, source: Tensor, targets: list[list[int]]) -> list[float]:
    """log p(target | source) of targets of equal length after the start token 0, in one forward pass."""
    ids = torch.tensor(targets)
    inputs = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
    with torch.no_grad():
        rows = model(source.expand(len(ids), -1), inputs).float().log_softmax(-1)
    return rows.gather(-1, ids[..., None]).sum((1, 2)).tolist()


def normalised_score(score: float, length: int, length_penalty: float) -> float:
    return score / ((5 + length) / 6) ** length_penalty


def best_target(model: Any, source: Tensor, vocabulary: int, max_tokens: int, length_penalty: float) -> list[int]:
    """The best target that ends (token 1) within `longest` tokens, by trying all of them."""
    tokens = [token for token in range(vocabulary) if token != 1]
    result = []
    for n in range(max_tokens):
        targets = [[*prefix, 1] for prefix in product(tokens, repeat=n)]
        scores = target_log_probs(model, source, targets)
        result += [
            (normalised_score(score, n + 1, length_penalty), target)
            for score, target in zip(scores, targets, strict=True)
        ]
    return max(result)[1]


def until_end(row: Tensor) -> list[int]:
    ids = row.tolist()
    return ids[: ids.index(1) + 1] if 1 in ids else ids


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 3.0])
def test_a_beam_that_holds_all_targets_finds_the_best(length_penalty: float) -> None:
    sizes = set()
    for seed in range(3):
        model = translator(seed=seed, vocabulary=4)
        source, is_token = texts(seed, 2, 5, vocabulary=4), lengths([5, 3])
        result = translate(
            model, source, start=0, end=1, max_tokens=4, beam=27, is_token=is_token, length_penalty=length_penalty
        )
        for row, n in enumerate((5, 3)):
            expected = best_target(model, source[row : row + 1, :n], 4, 4, length_penalty)
            assert until_end(result[row]) == expected
            assert not bool((result[row, len(expected) :] != 1).any())
            sizes.add(len(expected))
        assert result.shape[1] == max(len(until_end(row)) for row in result)
    assert len(sizes) > 1


def test_a_wider_beam_finds_better_targets() -> None:
    better = 0
    for seed in range(6, 10):
        model, source = translator(seed=seed), texts(seed, 1, 6)
        result = [until_end(translate(model, source, 0, 1, 10, beam)[0]) for beam in (2, 40)]
        scores = [
            normalised_score(target_log_probs(model, source, [ids])[0], len(ids), 0.6) if ids[-1] == 1 else -torch.inf
            for ids in result
        ]
        assert scores[1] >= scores[0] - 1e-6
        better += scores[1] > scores[0] + 1e-6
    assert better > 0


@few_examples
@given(seed=seeds, beam=st.sampled_from([1, 3]), position=st.sampled_from(POSITIONS))
def test_a_batch_equals_its_sources_translated_alone(seed: int, beam: int, position: str) -> None:
    model, token_counts = translator(seed=seed, position=position, kv_heads=2), [6, 2, 4]
    source = texts(seed, 3, 6)
    together = translate(model, source, 0, 1, 6, beam, lengths(token_counts))
    for row, n in enumerate(token_counts):
        alone = translate(model, source[row : row + 1, :n], 0, 1, 6, beam)
        assert until_end(together[row]) == until_end(alone[0])


@few_examples
@given(seed=seeds)
def test_beam_1_takes_the_most_likely_token_each_time(seed: int) -> None:
    model, source = translator(seed=seed), texts(seed, 2, 5)
    result = translate(model, source, 0, 1, 6)
    for row in range(2):
        ids: list[int] = []
        while len(ids) < 6 and 1 not in ids:
            with torch.no_grad():
                ids.append(int(model(source[row : row + 1], torch.tensor([[0, *ids]]))[0, -1].argmax()))
        assert until_end(result[row]) == ids
    assert result.shape[1] == max(len(until_end(row)) for row in result)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_target_that_never_ends_is_as_long_as_allowed(beam: int) -> None:
    model, source = translator(seed=2), texts(2, 2, 5)
    mask = model.unembed.weight.new_zeros(17)
    mask[1] = -torch.inf
    model.unembed.register_forward_hook(lambda module, inputs, out: out + mask)
    result = translate(model, source, 0, 1, 6, beam)
    assert result.shape == (2, 6)
    assert not bool((result == 1).any())
    if beam == 3:  # the most likely target of the beam, so no less likely than the greedy one
        greedy = translate(model, source, 0, 1, 6)
        for row in range(2):
            targets = [result[row].tolist(), greedy[row].tolist()]
            beam_score, greedy_score = target_log_probs(model, source[row : row + 1], targets)
            assert beam_score >= greedy_score - 1e-5


def test_cached_logits_are_the_models_own() -> None:
    from rheoscope.models.generate import TargetDecoder

    model, source, is_token = translator(seed=3), texts(3, 2, 5), lengths([5, 2])
    ids = texts(4, 2, 6)
    with torch.no_grad():
        target = TargetDecoder(model, source, is_token, max_tokens=6)
        steps = torch.stack([target.next_log_probs(ids[:, step : step + 1]) for step in range(6)], 1)
        assert gap(steps, model(source, ids, is_token).float().log_softmax(-1)) < 1e-6


# Refusals


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: generate(random_model(), texts(1, 1, 20), 6),
        "20 tokens plus 6 more exceed the context of 24 tokens, .*; type tokens=5",
    ),
    (
        lambda: generate(random_model(), texts(1, 1, 30), 1),
        "context of 24 tokens, so shorten the text .*; type tokens=0",
    ),
    (
        lambda: generate(random_model(form="encoder"), texts(1, 1, 3), 1),
        "only a decoder can continue a text, got form=encoder",
    ),
    (lambda: generate(translator(), texts(1, 1, 3), 1), r"form=encoder-decoder; type translate\(model"),
    (lambda: generate(random_model(), texts(1, 1, 3)[0], 1), r"got torch.int64 of shape \(3,\); type torch.tensor"),
    (lambda: generate(random_model(), texts(1, 1, 0), 1), "must be integers .* and not empty"),
    (lambda: generate(random_model(), texts(1, 1, 3).float(), 1), "ids must be integers"),
    (
        lambda: generate(random_model(), torch.tensor([[3, 17]]), 1),
        "ids must be from 0 to 16, got 3 to 17; use the model's",
    ),
    (lambda: generate(random_model(), torch.tensor([[-1, 2]]), 1), "got -1 to 2"),
    (
        lambda: generate(random_model(), texts(1, 1, 3), -1),
        "tokens must be an integer of at least 0, got -1; type tokens=32",
    ),
    (
        lambda: generate(random_model(), texts(1, 1, 3), 1, temperature=-0.5),
        "temperature must be finite and at least 0",
    ),
    (
        lambda: generate(random_model(), texts(1, 1, 3), 1, temperature=float("nan")),
        "temperature must be finite .*, got nan",
    ),
    (lambda: generate(random_model(), texts(1, 1, 3), 1, top_k=0), "top_k must be an integer of at least 1, got 0"),
    (lambda: generate(random_model(), texts(1, 1, 3), 1, top_p=0.0), "top_p must be above 0 and at most 1, got 0.0"),
    (lambda: generate(random_model(), texts(1, 1, 3), 1, top_p=1.5), "top_p must be above 0 and at most 1, got 1.5"),
    (
        lambda: translate(random_model(), texts(1, 1, 3), 0, 1, 4),
        "only an encoder-decoder can translate, got form=decoder",
    ),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 17, 4), "start and end must be from 0 to 16, got 0 to 17"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 25), "max_tokens must be at most .* 24 tokens, got 25"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 0), "max_tokens must be an integer of at least 1"),
    (lambda: translate(translator(), texts(1, 1, 3), 0, 1, 4, beam=0), "beam must be an integer of at least 1"),
    (lambda: translate(translator(), texts(1, 1, 25), 0, 1, 4), "the text has 25 tokens, but the model reads at most"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_invalid_calls_raise_one_line_with_advice(call: Callable[[], Any], message: str) -> None:
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
    assert "; type " in str(error.value) or "; use " in str(error.value)


@pytest.mark.parametrize("temperature", [1e-30, 1e-49, 1e-228, 5e-324])
def test_a_tiny_temperature_samples_the_most_likely_token(temperature: float) -> None:
    """Division by a number that underflows would give 0 · ∞, which is not a probability."""
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, -5.0, 0.0]])
    assert sample_token(logits, temperature, None, None, torch.Generator()).tolist() == [1, 0]
