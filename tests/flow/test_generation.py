"""rs.generate: tokens, points and attributions against the uncached model, the formula by hand, and memory."""

import collections
import gc
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.flow.generation import generation as generation_module
from rheoscope.flow.generation.answer import attribution_groups, is_head
from rheoscope.flow.generation.generated_token import GeneratedToken
from rheoscope.flow.generation.generation import Generation
from rheoscope.flow.generation.logit_directions import capped
from rheoscope.models.config import Config
from rheoscope.models.generate import generate, stream
from rheoscope.models.transformer import Transformer, Translator
from rheoscope.pretrained.cached_network import start_id
from rheoscope.shapes import RheoscopeError
from tests.cases import model, network, text
from tests.pretrained.cases import randomised
from tests.pretrained.finder.networks import NETWORKS
from tests.running.test_pair_sides import T5

N_PROMPT, N_NEW = 6, 10
TRANSFORMERS = ["gpt2", "llama", "mistral", "qwen3", "neox", "opt_post", "opt_projected", "gemma3_capped"]
OWN = [
    "own",
    "own_biased",
    "own_alibi",
    "own_values",
    "own_gated",
    "own_peri",
    "own_branch_post",
    "own_sigmoid",
    "own_sink",
]
DECODERS = TRANSFORMERS + OWN


@cache
def pair(name: str) -> Any:
    if name == "t5":
        return rs.load(randomised(hf.T5ForConditionalGeneration(hf.T5Config(**T5, eos_token_id=None))))
    config = Config(vocabulary=40, width=16, depth=2, heads=4, kv_heads=2, form="encoder-decoder", context=32)
    return rs.load(randomised(Translator(config)))


@cache
def generated(name: str) -> tuple[Generation, list[GeneratedToken]]:
    """A greedy continuation without early ends."""
    result = rs.generate(model(name), text(1, N_PROMPT), tokens=N_NEW)
    object.__setattr__(result.network, "stop_ids", frozenset())
    return result, list(result)


@cache
def reference(name: str) -> Any:
    """The same text, traced at once and without a cache."""
    return model(name).trace(generated(name)[0].ids, logits=True)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    ids = network(name).generate(
        text(1, N_PROMPT)[None], max_new_tokens=N_NEW, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert ids[0].tolist() == generated(name)[0].ids


@pytest.mark.parametrize("name", OWN)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    ids = generate(network(name), text(1, N_PROMPT)[None], N_NEW, temperature=0.0)
    assert ids[0].tolist() == generated(name)[0].ids


def test_sampled_tokens_are_those_of_generate() -> None:
    settings: dict[str, Any] = {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "seed": 3}
    expected = [int(token) for token in stream(network("own"), text(1, N_PROMPT)[None], N_NEW, **settings)]
    assert [token.id for token in rs.generate(model("own"), text(1, N_PROMPT), N_NEW, **settings)] == expected


@pytest.mark.parametrize("name", DECODERS)
def test_points_are_those_of_the_final_text_step_by_step(name: str) -> None:
    (result, tokens), expected = generated(name), reference(name).points
    torch.testing.assert_close(
        result.trace().points, expected, rtol=1e-4, atol=1e-5 * float(expected.norm(dim=-1).max())
    )
    for token in tokens:
        assert token.position == N_PROMPT + token.index - 1
        torch.testing.assert_close(token.path, result.trace().points[:, token.position], rtol=0, atol=0)


@pytest.mark.parametrize("name", DECODERS)
def test_attributions_sum_to_the_logits(name: str) -> None:
    (result, tokens), logits = generated(name), reference(name).logits
    explained = result.explain()
    expected = torch.stack([logits[token.position, token.id] for token in tokens])
    above_mean = explained.component_attribution.sum("component")
    total = torch.tensor((above_mean + explained.mean_logit).values)
    size = float(torch.tensor(abs(explained.component_attribution).sum("component").values).max())
    torch.testing.assert_close(capped(model(name).view, total), expected, rtol=0, atol=1e-5 * size)
    sources = explained.prompt_attribution.sum("prompt_token") + explained.answer_attribution
    heads = explained.component_attribution.sel(component=[is_head(str(c)) for c in explained.component.values])
    assert float(abs(sources - heads.sum("component")).max()) <= 1e-5 * size
    assert float(explained.error.max()) <= 1e-5 * size
    assert sum(attribution_groups(explained).values()) == pytest.approx(float(above_mean.sum()), abs=1e-4 * size)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3_capped", "own_values"])
def test_components_are_those_of_the_readout(name: str) -> None:
    (result, tokens), trace = generated(name), reference(name)
    token = tokens[4]
    readout = rs.readout(trace, token=token.position, target=token.id, draws=0)
    ours = result.explain().component_attribution.isel(token=4)
    shared = [component for component in readout.component.values if component in ours.component.values]
    torch.testing.assert_close(
        torch.tensor(ours.sel(component=shared).values),
        torch.tensor(readout.attribution.sel(component=shared).values),
        rtol=1e-3,
        atol=1e-3,
    )
    assert len(shared) >= len(readout.component) - 1


@torch.no_grad()
def test_the_split_by_source_is_the_formula() -> None:
    """α_ij ⟨x̂_j F, u_i⟩ with explicit weights and F, head by head and token by token."""
    (result, tokens), trace, view = generated("llama"), reference("llama"), model("llama").view
    explained, token = result.explain(), tokens[5]
    x, norm = trace.points[-1, token.position], view.final_norm
    u = norm.scale(x) * norm.gain * (view.unembed[:, token.id] - view.unembed.mean(-1))
    expected = torch.zeros(token.position + 1)
    for layer in range(view.layers):
        normalised = view.layer_heads[layer].norm.normalise(trace.layer_input(layer))
        for head in range(view.heads):
            weights = trace.weights(layer, head)[token.position, : token.position + 1]
            expected += weights * (normalised[: token.position + 1] @ (view.head(layer, head).F.dense() @ u))
    prompt = torch.tensor(explained.prompt_attribution.values[5])
    torch.testing.assert_close(prompt, expected[:N_PROMPT], rtol=1e-3, atol=1e-4)
    assert float(explained.answer_attribution[5]) == pytest.approx(float(expected[N_PROMPT:].sum()), abs=1e-3)
    first = max(range(len(expected)), key=lambda j: abs(float(expected[j])))
    assert token.sources[0].position == first
    assert token.sources[0].value == pytest.approx(float(expected[first]), abs=1e-3)


def test_the_largest_pairs_are_parts_of_their_heads() -> None:
    result, tokens = generated("own")
    for row, token in enumerate(tokens):
        sizes = [abs(pair.value) for pair in token.pairs]
        assert sizes == sorted(sizes, reverse=True)
        assert all(0 <= pair.source <= token.position for pair in token.pairs)
        values = result.explain().component_attribution.isel(token=row)
        assert float(values.sel(component=token.heads[0].name)) == pytest.approx(token.heads[0].value)
        assert abs(token.heads[0].value) == pytest.approx(
            max(abs(float(v)) for c, v in zip(values.component.values, values.values, strict=True) if is_head(str(c)))
        )


@pytest.mark.parametrize("name", ["gpt2", "gemma3_capped", "own"])
def test_the_lens_ends_in_the_token_and_its_probability(name: str) -> None:
    _, tokens = generated(name)
    logits = reference(name).logits
    for token in tokens:
        assert token.lens[-1].id == token.id
        assert token.lens[-1].probability == pytest.approx(token.probability)
        assert token.probability == pytest.approx(float(logits[token.position].softmax(-1)[token.id]), abs=1e-4)
        assert token.decided_at in {prediction.step for prediction in token.lens}


def test_the_size_of_blocks_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "BLOCK_TOKENS", 3)
    result = rs.generate(model("own"), text(1, N_PROMPT), tokens=N_NEW)
    pairs = [token.pairs for token in result]
    for name, values in generated("own")[0].explain().items():
        torch.testing.assert_close(
            torch.tensor(result.explain()[name].values), torch.tensor(values.values), rtol=1e-4, atol=1e-5
        )
    assert [[p[:4] for p in row[:1]] for row in pairs] == [
        [p[:4] for p in token.pairs[:1]] for token in generated("own")[1]
    ]


@pytest.mark.parametrize("name", ["t5", "own"])
def test_encoder_decoders_attribute_the_answer_to_the_source(name: str) -> None:
    source = text(2, 9)
    result = rs.generate(pair(name), source, tokens=7)
    tokens = list(result)
    linked = pair(name).trace((source, torch.tensor(result.ids)), logits=True)
    torch.testing.assert_close(result.trace().points, linked.target.points, rtol=1e-4, atol=1e-4)
    expected = torch.stack([linked.target.logits[token.position, token.id] for token in tokens])
    explained = result.explain()
    total = torch.tensor(explained.component_attribution.sum("component").values + explained.mean_logit.values)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
    assert explained.sizes["prompt_token"] == 9
    assert float(abs(explained.prompt_attribution).max()) > 0
    assert any(source.is_cross for token in tokens for source in token.sources)
    greedy = pair(name).greedy_targets([source], 7)[0]
    assert result.ids[: len(greedy)] == greedy.tolist()


def test_generation_ends_at_an_end_token_and_at_the_context() -> None:
    ids = generated("own")[0].new_ids
    result = rs.generate(model("own"), text(1, N_PROMPT), tokens=N_NEW)
    object.__setattr__(result.network, "stop_ids", frozenset((ids[2],)))
    assert [token.id for token in result] == ids[: ids.index(ids[2]) + 1]
    assert list(result) == []
    long = rs.generate(model("own"), text(1, 60), tokens=N_NEW)
    assert len(list(long)) == 5
    assert len(long.trace()) == 64


@cache
def minimax() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return rs.load(randomised(NETWORKS["minimax"]()))


def test_positions_do_not_depend_on_how_a_cache_counts_its_tokens() -> None:
    """The cache of MiniMax begins with a recurrent layer, which counts no tokens."""
    result = rs.generate(minimax(), text(1, N_PROMPT), tokens=N_NEW)
    object.__setattr__(result.network, "stop_ids", frozenset())
    assert len(list(result)) == N_NEW
    torch.testing.assert_close(result.trace().points, minimax().trace(result.ids).points, rtol=1e-4, atol=1e-4)


def test_a_cache_that_changes_the_attention_is_refused() -> None:
    result = rs.generate(minimax(), text(1, N_PROMPT), tokens=N_NEW)
    result.network.read.takes_positions = False
    with pytest.raises(RheoscopeError, match=r"the key/value cache of MiniMax.* changes its attention"):
        list(result)


def test_a_target_starts_with_a_token_of_the_config() -> None:
    config = hf.T5Config(**T5)
    config.decoder_start_token_id, config.bos_token_id = None, 3
    network = hf.T5ForConditionalGeneration(config)
    assert start_id(network) == 3
    config.bos_token_id = None
    with pytest.raises(RheoscopeError, match="names no token with which a target starts"):
        start_id(network)


def live_numbers() -> int:
    """The number of values that live tensors hold, each memory counted once."""
    gc.collect()
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in gc.get_objects()
        if type(x) is torch.Tensor
    }
    return sum(storages.values()) // 4


def test_memory_grows_by_the_points_and_the_caches() -> None:
    """Per token: its points, and its keys and values in the cache of the network and in that of the attribution."""
    network = Transformer(Config(vocabulary=40, width=16, depth=2, heads=2, context=512))
    small = rs.load(network)

    def retained(n_new: int) -> int:
        before = live_numbers()
        result = rs.generate(small, text(1, N_PROMPT), tokens=n_new)
        collections.deque(result, maxlen=0)
        retained_numbers = live_numbers() - before
        return retained_numbers if len(result.new_ids) == n_new else 0

    retained(20)  # caches of the package
    per_token = (retained(120) - retained(20)) / 100
    points, keys_values, rows = 5 * 16, 2 * 2 * 2 * 16, 20
    assert points + keys_values <= per_token <= points + keys_values + rows


def test_what_cannot_generate_is_refused_in_one_line() -> None:
    with pytest.raises(RheoscopeError, match="does not generate text token by token; choose a decoder"):
        rs.generate(model("bert"), text(1, N_PROMPT))
    with pytest.raises(RheoscopeError, match="attention by shaped reads whole texts, so it has no key/value cache"):
        rs.generate(model("own_shaped"), text(1, N_PROMPT))
    with pytest.raises(RheoscopeError, match="temperature must be finite"):
        rs.generate(model("own"), text(1, N_PROMPT), temperature=-1.0)
    with pytest.raises(RheoscopeError, match="nothing is generated yet"):
        rs.generate(model("own"), text(1, N_PROMPT)).explain()
