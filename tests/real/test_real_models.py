"""Trained weights: accuracy where streams are large and attention is sharp.

The models are directories under RHEOSCOPE_REAL_MODELS (default ../shared/models). Missing ones are skipped.
"""

import itertools
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.pretrained.certificate import trace_eager
from rheoscope.running.certificate import closure_error

torch.set_num_threads(1)  # two threads on two shared cores wait for each other for minutes
MODELS = Path(os.environ.get("RHEOSCOPE_REAL_MODELS", Path(__file__).parents[3] / "shared" / "models"))
TEXTS = {
    "stories260k": "Once upon a time, there was a girl named Lily.",
    "gpt-nano-sort": [2, 0, 1, 1, 0, 2, 0, 0, 1, 1],
    "smollm2": "When Mary and John went to the store, John gave a drink to Mary. The Eiffel Tower is in Paris",
    "minilm": "The keys to the cabinet are on the table, and the cabinet is in the hall.",
    "gte-small": "The keys to the cabinet are on the table, and the cabinet is in the hall.",
    "stories15m": "Once upon a time, there was a girl named Lily.",
}
REACTION = "CC(=O)O.OCC>>CC(=O)OCC.O"
SENTENCE = "The keys to the cabinet are on the table, and the cabinet is in the hall."
TEXTS_OF_DOMAIN: dict[str, Any] = {"rxnmapper-albert": REACTION, "rxnfp-bert": REACTION}
TARGET_IDS = torch.tensor([0, 11, 12, 13, 14, 15, 16, 17])
CHECKPOINTS = sorted(file.parent.name for file in MODELS.glob("*/config.json"))
"""Every model that is there, those without a test of their own included."""
pytestmark = pytest.mark.real_weights
every_checkpoint = pytest.mark.parametrize("name", CHECKPOINTS)
every_model = pytest.mark.parametrize("name", TEXTS)


MAX_DOUBLE_PARAMETERS = 200_000_000


@cache
def model(name: str, dtype: str | None = None) -> Any:
    if not (MODELS / name / "config.json").is_file():
        pytest.skip(f"{name} is not under {MODELS}")
    return rs.load(MODELS / name, dtype=dtype)


@cache
def trace(name: str) -> Any:
    return model(name).trace(TEXTS[name])


@every_model
def test_the_certificate_of_a_trained_model(name: str) -> None:
    """In float32 the weights of padded texts and of far positions differ by up to 2e-5; the next test shows that this is rounding."""
    result = model(name).view.facts["certificate"]
    assert result.weights_error <= 2e-5
    assert max(result.closure_error, result.operators_error) <= 5e-5


@every_model
def test_the_errors_of_the_certificate_are_rounding(name: str) -> None:
    """In float64 they almost vanish. Rotary angles stay float32, so they are not 0."""
    if model(name).parameter_count > MAX_DOUBLE_PARAMETERS:
        pytest.skip(f"{name} is too large for float64")
    result = rs.load(MODELS / name, dtype="float64").view.facts["certificate"]
    assert max(result.weights_error, result.closure_error, result.operators_error) <= 1e-6


@every_model
@torch.no_grad()
def test_logits_and_points_are_those_of_the_untouched_model(name: str) -> None:
    loaded = model(name)
    ids = loaded.ids(TEXTS[name])
    untouched = type(loaded.network).from_pretrained(MODELS / name, dtype=torch.float32).eval()
    states = untouched.base_model(input_ids=ids[None], output_hidden_states=True).hidden_states
    assert torch.equal(trace(name).points_at("embed"), states[0][0])
    assert torch.equal(trace(name).points_at("L1.resid_post"), states[2][0])
    if loaded.view.unembed is not None:
        assert torch.equal(loaded.trace(TEXTS[name], logits=True).logits, untouched(input_ids=ids[None]).logits[0])


def one_text(name: str) -> tuple[Any, Any]:
    """A model of one text with a text of its domain: the decoder for a source, if the model has two sides."""
    loaded, text = model(name), TEXTS.get(name, TEXTS_OF_DOMAIN.get(name, SENTENCE))
    if not hasattr(loaded, "encoder"):
        return loaded, text
    return rs.target_model(loaded, text if loaded.tokenizer is not None else [5, 6, 7, 8, 9, 1]), TARGET_IDS


@every_checkpoint
@torch.no_grad()
def test_every_model_has_the_outputs_of_the_untouched_model(name: str) -> None:
    """Logits to the last bit. Without an unembedding, the points after the last layer, if no norm follows it."""
    loaded, text = one_text(name)
    untouched = type(loaded.network).from_pretrained(MODELS / name, dtype=torch.float32).eval()
    ids = loaded.ids(text)[None]
    if hasattr(loaded, "sources"):
        expected = untouched(input_ids=loaded.sources[0][None], decoder_input_ids=ids).logits[0]
        assert torch.equal(loaded.trace(text, logits=True).logits, expected)
    elif loaded.view.unembed is not None or loaded.view.prediction_head is not None:
        assert torch.equal(loaded.trace(text, logits=True).logits, untouched(input_ids=ids).logits[0])
    else:
        assert torch.equal(loaded.trace(text).points[-1], untouched.base_model(input_ids=ids).last_hidden_state[0])


@every_checkpoint
def test_every_model_has_a_story(name: str) -> None:
    loaded, text = one_text(name)
    story = rs.story(loaded, loaded.trace(text))
    sentences = dict(zip(story.line.values.tolist(), story.sentence.values.tolist(), strict=True))
    assert not any("internal error" in sentence for sentence in sentences.values())
    assert "straightness" in sentences["movement"]
    assert ("in first place since" in sentences["next_token"]) is loaded.view.predicts_next_token
    assert ("of the path" in sentences.get("from_source", "")) is hasattr(loaded, "sources")


@every_model
def test_weights_and_displacements_of_a_trained_model(name: str) -> None:
    """Closure is relative to the stream: for massive tokens, rounding of x + Δ exceeds 1e-6 of Δ."""
    eager_trace, eager_weights = trace_eager(model(name), model(name).ids(TEXTS[name]))
    for layer, layer_weights in enumerate(eager_weights):
        recomputed = torch.stack([eager_trace.weights(layer, head) for head in range(len(layer_weights))])
        assert float((recomputed - layer_weights).abs().max()) <= 2e-6
        before, after = (trace(name).points[steps[layer]] for steps in (trace(name).input_steps, trace(name).mid_steps))
        rebuilt = before + trace(name).displacements(layer).sum(0) + trace(name).bias(layer)
        assert float((rebuilt - after).norm() / after.norm()) <= 1e-6
        assert closure_error(trace(name), layer) <= 5e-5


@every_model
@torch.no_grad()
def test_M_reproduces_the_scores_of_a_trained_model(name: str) -> None:
    """x̂_i M(i−j) x̂_jᵀ equals the score in layers without biases of the LayerNorm or the queries."""
    for layer, block in enumerate(model(name).view.layer_heads):
        if block.norm.bias is not None or block.b_Q is not None:
            continue
        x = trace(name).layer_input(layer)
        hat, n = block.norm.normalise(x), len(x)
        result, M = torch.zeros(block.n_heads, n, n), block.M()
        for offset in range(1 - n, n):
            result.diagonal(-offset, -2, -1).copy_(M(offset).bilinear_form(hat, hat).diagonal(-offset, -2, -1))
        expected = torch.stack([trace(name).scores(layer, head) for head in range(block.n_heads)])
        assert float((result - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max()) / 10)


@every_model
def test_a_trained_model_in_half_precision(name: str) -> None:
    loaded = model(name, "bfloat16")
    assert loaded.view.facts["dtype"] == "bfloat16"
    points = loaded.trace(TEXTS[name]).points[1].float(), trace(name).points[1]
    assert float((points[0] - points[1]).norm() / points[1].norm()) <= 5e-2


@every_model
def test_operators_of_a_trained_model_are_not_those_of_its_control(name: str) -> None:
    result, control = (
        rs.operators(model(name).view),
        rs.operators(rs.load(MODELS / name, untrained=True).view),
    )
    assert result.sizes == control.sizes
    for data in (result, control):
        assert all(bool(data[field].notnull().all()) for field in data.data_vars)
    assert float(abs(control.symmetry).mean()) < 0.25
    assert float(abs(result.symmetry - control.symmetry).max()) > 0.1


def test_nano_sort_sorts_all_its_inputs() -> None:
    """All 729 inputs as one batch: six digits, then the prediction of each next digit given the correct ones before."""
    loaded = model("gpt-nano-sort")
    inputs = list(itertools.product(range(3), repeat=6))
    traces = loaded.trace([[*digits, *sorted(digits)[:5]] for digits in inputs], logits=True)
    predictions = [prediction_trace.logits[5:].argmax(-1).tolist() for prediction_trace in traces]
    assert sum(predicted == sorted(digits) for digits, predicted in zip(inputs, predictions, strict=True)) == 729


@pytest.mark.parametrize("digits", [[2, 2, 2, 0, 0, 1], [0, 1, 2, 0, 1, 2], [1, 0, 0, 0, 0, 0]])
def test_nano_sort_sorts_its_own_predictions(digits: list[int]) -> None:
    loaded, ids = model("gpt-nano-sort"), list(digits)
    for _ in range(6):
        ids.append(int(loaded.run(ids)[-1].argmax()))
    assert ids[6:] == sorted(digits)


def test_nano_sort_needs_its_heads() -> None:
    """Without attention, it sorts few of the inputs, even given the correct digits before each one."""
    loaded = model("gpt-nano-sort")
    ablate = {(layer, head): lambda q, k, v, mechanism: torch.zeros_like(v) for layer in range(3) for head in range(3)}
    inputs = list(itertools.product(range(3), repeat=6))[::31]
    predictions = [loaded.run([*digits, *sorted(digits)[:5]], edit=ablate)[5:].argmax(-1).tolist() for digits in inputs]
    n_correct = sum(predicted == sorted(digits) for digits, predicted in zip(inputs, predictions, strict=True))
    assert n_correct < len(inputs) / 2


def test_stories_are_continued_as_stories() -> None:
    loaded = model("stories260k")
    ids = loaded.ids("Once upon a time, there was a little").tolist()
    for _ in range(30):
        ids.append(int(loaded.run(ids)[-1].argmax()))
    story = loaded.tokenizer.decode(ids, skip_special_tokens=True)
    assert story.startswith("Once upon a time, there was a little")
    assert "named" in story
    assert any(pronoun in story for pronoun in ("She", "He", "she", "he", "They"))


def test_stories_are_more_likely_than_shuffled_words() -> None:
    loaded = model("stories260k")

    def loss(text: str) -> float:
        result = loaded.trace(text, logits=True)
        return float(torch.nn.functional.cross_entropy(result.logits[:-1], result.ids[1:]))

    story = loss("Once upon a time, there was a little girl named Lily.")
    assert story < 1.5
    assert loss("Lily time named, girl upon a little a was there Once.") > story + 2


def test_smollm2_predicts_paris() -> None:
    loaded = model("smollm2")
    probabilities = loaded.run("The Eiffel Tower is in the city of")[-1].softmax(-1)
    (paris,) = loaded.tokenizer(" Paris", add_special_tokens=False)["input_ids"]
    assert float(probabilities[paris].detach()) == pytest.approx(0.656, abs=0.03)


def cosines(name: str) -> tuple[float, float]:
    """The cosines to a paraphrase and to an unrelated sentence, with the points of the last layer averaged."""

    def mean_point(text: str) -> torch.Tensor:
        return model(name).trace(text).points[-1].mean(0)

    first = mean_point("A man is playing a guitar.")
    others = "Someone plays the guitar.", "The stock market fell sharply today."
    paraphrase, unrelated = (float(torch.cosine_similarity(first, mean_point(other), dim=0)) for other in others)
    return paraphrase, unrelated


def test_minilm_recognises_a_paraphrase() -> None:
    paraphrase, unrelated = cosines("minilm")
    assert paraphrase > 0.6
    assert unrelated < 0.2


def test_gte_small_recognises_a_paraphrase_and_has_no_pooler() -> None:
    paraphrase, unrelated = cosines("gte-small")
    assert paraphrase > 0.9
    assert unrelated == pytest.approx(0.71, abs=0.02)
    assert model("gte-small").view.facts["certificate"].ignored_weights == ("pooler.dense.bias", "pooler.dense.weight")


def test_stories15m_continues_once_upon_a_time() -> None:
    loaded = model("stories15m")
    assert loaded.token_strings(loaded.run("Once upon a")[-1].argmax()[None])[0].strip() == "time"
