"""Trained weights: the exactness bars where streams are large and attention is sharp.

The models are directories under RHEOSCOPE_REAL_MODELS (default ../shared/models); those that are not there are skipped.
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
pytestmark = pytest.mark.real_weights
each = pytest.mark.parametrize("name", TEXTS)


@cache
def model(name: str, dtype: str | None = None) -> Any:
    if not (MODELS / name / "config.json").is_file():
        pytest.skip(f"{name} is not under {MODELS}")
    return rs.load(MODELS / name, dtype=dtype)


@cache
def trace(name: str) -> Any:
    return model(name).trace(TEXTS[name])


@each
def test_the_certificate_of_a_trained_model(name: str) -> None:
    found = model(name).view.facts["certificate"]
    assert found.weights_error <= 1e-6
    assert max(found.closure_error, found.operators_error) <= 5e-5


@each
@torch.no_grad()
def test_logits_and_points_are_those_of_the_untouched_model(name: str) -> None:
    of = model(name)
    ids = of.ids(TEXTS[name])
    untouched = type(of.network).from_pretrained(MODELS / name, dtype=torch.float32).eval()
    states = untouched.base_model(input_ids=ids[None], output_hidden_states=True).hidden_states
    assert torch.equal(trace(name).points_at("embed"), states[0][0])
    assert torch.equal(trace(name).points_at("L1.resid_post"), states[2][0])
    if of.view.unembed is not None:
        assert torch.equal(of.trace(TEXTS[name], logits=True).logits, untouched(input_ids=ids[None]).logits[0])


@each
def test_weights_and_displacements_of_a_trained_model(name: str) -> None:
    """Closure is told as a share of the stream: where tokens are huge, x + Delta is rounded by more than 1e-6 of Delta."""
    again, own = trace_eager(model(name), model(name).ids(TEXTS[name]))
    for layer, theirs in enumerate(own):
        ours = torch.stack([again.weights(layer, head) for head in range(len(theirs))])
        assert float((ours - theirs).abs().max()) <= 2e-6
        before, after = (trace(name).points[at[layer]] for at in (trace(name).input_steps, trace(name).mid_steps))
        rebuilt = before + trace(name).displacements(layer).sum(0) + trace(name).bias(layer)
        assert float((rebuilt - after).norm() / after.norm()) <= 1e-6
        assert closure_error(trace(name), layer) <= 5e-5


@each
@torch.no_grad()
def test_M_reproduces_the_scores_of_a_trained_model(name: str) -> None:
    """x̂_i M(i−j) x̂_j^T plus the terms of the biases, where there are none of a LayerNorm to carry along."""
    for layer, block in enumerate(model(name).view.layer_heads):
        if block.norm.bias is not None or block.b_Q is not None:
            continue
        x = trace(name).layer_input(layer)
        hat, n = block.norm.normalise(x), len(x)
        found, M = torch.zeros(block.n_heads, n, n), block.M()
        for offset in range(1 - n, n):
            found.diagonal(-offset, -2, -1).copy_(M(offset).bilinear_form(hat, hat).diagonal(-offset, -2, -1))
        wanted = torch.stack([trace(name).scores(layer, head) for head in range(block.n_heads)])
        assert float((found - wanted).abs().max()) <= 1e-4 * max(1.0, float(wanted.abs().max()) / 10)


@each
def test_a_trained_model_in_half_precision(name: str) -> None:
    of = model(name, "bfloat16")
    assert of.view.facts["dtype"] == "bfloat16"
    close = of.trace(TEXTS[name]).points[1].float(), trace(name).points[1]
    assert float((close[0] - close[1]).norm() / close[1].norm()) <= 5e-2


@each
def test_operators_of_a_trained_model_are_not_those_of_its_control(name: str) -> None:
    found, control = (
        rs.operators(model(name).view),
        rs.operators(rs.load(MODELS / name, untrained=True).view),
    )
    assert found.sizes == control.sizes
    for data in (found, control):
        assert all(bool(data[field].notnull().all()) for field in data.data_vars)
    assert float(abs(control.symmetry).mean()) < 0.25
    assert float(abs(found.symmetry - control.symmetry).max()) > 0.1


def test_nano_sort_sorts_all_its_inputs() -> None:
    """All 729 inputs as one batch: six digits, then what the model says of each next one, told the right ones before."""
    of = model("gpt-nano-sort")
    inputs = list(itertools.product(range(3), repeat=6))
    traces = of.trace([[*digits, *sorted(digits)[:5]] for digits in inputs], logits=True)
    said = [one.logits[5:].argmax(-1).tolist() for one in traces]
    assert sum(answer == sorted(digits) for digits, answer in zip(inputs, said, strict=True)) == 729


@pytest.mark.parametrize("digits", [[2, 2, 2, 0, 0, 1], [0, 1, 2, 0, 1, 2], [1, 0, 0, 0, 0, 0]])
def test_nano_sort_by_itself(digits: list[int]) -> None:
    of, ids = model("gpt-nano-sort"), list(digits)
    for _ in range(6):
        ids.append(int(of.run(ids)[-1].argmax()))
    assert ids[6:] == sorted(digits)


def test_nano_sort_needs_its_heads() -> None:
    """Without attention, told the right digits before each, it sorts few of the inputs."""
    of = model("gpt-nano-sort")
    silent = {(at, head): lambda q, k, v, mechanism: torch.zeros_like(v) for at in range(3) for head in range(3)}
    inputs = list(itertools.product(range(3), repeat=6))[::31]
    said = [of.run([*digits, *sorted(digits)[:5]], edit=silent)[5:].argmax(-1).tolist() for digits in inputs]
    right = sum(answer == sorted(digits) for digits, answer in zip(inputs, said, strict=True))
    assert right < len(inputs) / 2


def test_stories_go_on_as_stories() -> None:
    of = model("stories260k")
    ids = of.ids("Once upon a time, there was a little").tolist()
    for _ in range(30):
        ids.append(int(of.run(ids)[-1].argmax()))
    told = of.tokenizer.decode(ids, skip_special_tokens=True)
    assert told.startswith("Once upon a time, there was a little")
    assert "named" in told
    assert any(word in told for word in ("She", "He", "she", "he", "They"))


def test_stories_are_likelier_than_their_words_in_another_order() -> None:
    of = model("stories260k")

    def loss(text: str) -> float:
        found = of.trace(text, logits=True)
        return float(torch.nn.functional.cross_entropy(found.logits[:-1], found.ids[1:]))

    told = loss("Once upon a time, there was a little girl named Lily.")
    assert told < 1.5
    assert loss("Lily time named, girl upon a little a was there Once.") > told + 2


def test_smollm2_knows_where_the_tower_is() -> None:
    of = model("smollm2")
    law = of.run("The Eiffel Tower is in the city of")[-1].softmax(-1)
    (paris,) = of.tokenizer(" Paris", add_special_tokens=False)["input_ids"]
    assert float(law[paris].detach()) == pytest.approx(0.656, abs=0.03)


def cosines(name: str) -> tuple[float, float]:
    """Of a paraphrase and of another sentence, tokens of the last layer averaged."""

    def meaning(text: str) -> torch.Tensor:
        return model(name).trace(text).points[-1].mean(0)

    first = meaning("A man is playing a guitar.")
    others = "Someone plays the guitar.", "The stock market fell sharply today."
    near, far = (float(torch.cosine_similarity(first, meaning(other), dim=0)) for other in others)
    return near, far


def test_minilm_tells_a_paraphrase() -> None:
    near, far = cosines("minilm")
    assert near > 0.6
    assert far < 0.2


def test_gte_small_tells_a_paraphrase_and_has_no_pooler() -> None:
    near, far = cosines("gte-small")
    assert near > 0.9
    assert far == pytest.approx(0.71, abs=0.02)
    assert model("gte-small").view.facts["certificate"].ignored_weights == ("pooler.dense.bias", "pooler.dense.weight")


def test_stories15m_begins_as_stories_do() -> None:
    of = model("stories15m")
    assert of.words(of.run("Once upon a")[-1].argmax()[None])[0].strip() == "time"
