"""The default model: opened without transformers, small, exact, and with known structure."""

from pathlib import Path

import pytest
import torch

import rheoscope as rs
from rheoscope.opening import DEFAULT_MODEL


@pytest.fixture(scope="module")
def model():  # type: ignore[no-untyped-def]
    return rs.load()


def test_the_default_model_is_small_and_has_a_card_and_a_licence() -> None:
    sizes = {file.name: file.stat().st_size for file in Path(DEFAULT_MODEL).iterdir() if file.is_file()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "LICENSE"} <= set(sizes)
    assert sum(sizes.values()) <= 12_000_000


def test_the_default_model_is_certified_and_tokenises_text(model) -> None:  # type: ignore[no-untyped-def]
    assert model.view.facts["certificate"].closure_error <= 1e-5
    assert model.view.facts["model"] == "the default model"
    trace = model.trace("The keys to the cabinet are", logits=True)
    assert trace.tokens[0] == "<|endoftext|>"
    assert "".join(trace.tokens[1:]) == "The keys to the cabinet are"
    assert trace.logits is not None


def nats(model, ids: list[int]) -> torch.Tensor:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        log_probs = model.run(ids).log_softmax(-1)
    return -log_probs[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_a_random_sequence_is_predicted_far_better_the_second_time(model) -> None:  # type: ignore[no-untyped-def]
    """Induction. The untrained control shows none."""
    control, gains = rs.load(untrained=True), {"trained": 0.0, "untrained": 0.0}
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        tokens = torch.randint(260, 4096, (48,), generator=generator).tolist()
        for name, candidate in (("trained", model), ("untrained", control)):
            cost = nats(candidate, [0, *tokens, *tokens])
            gains[name] += float(cost[:48].mean() - cost[49:].mean()) / 8
    assert gains["trained"] > 3
    assert abs(gains["untrained"]) < 0.5


def test_english_is_predicted_better_than_shuffled_english(model) -> None:  # type: ignore[no-untyped-def]
    ids = model.ids(
        "The city lies on the river, and in the nineteenth century it was the capital of the country."
    ).tolist()
    shuffled = [
        0,
        *(ids[1 + int(index)] for index in torch.randperm(len(ids) - 1, generator=torch.Generator().manual_seed(1))),
    ]
    assert float(nats(model, ids).mean()) < 4.5 < 6 < float(nats(model, shuffled).mean())


def test_some_heads_are_sinks(model) -> None:  # type: ignore[no-untyped-def]
    """A head attends to the first token far more than uniform attention would."""
    trace = model.trace(
        "The keys to the cabinet are on the table. The city of London lies on the river Thames, in England."
    )
    uniform_share = 1 / torch.arange(2, len(trace) + 1)
    largest_share = max(
        float(trace.statistics(layer)["first"][:, 1:].mean(-1).max()) for layer in range(trace.view.layers)
    )
    assert largest_share > 3 * float(uniform_share.mean())
