"""Transformers: equal to torch and Hugging Face with copied weights, forward and backward, and their laws."""

import warnings
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rheoscope.attention.position import sinusoidal_table
from rheoscope.attention.zoo import ZOO
from rheoscope.models.config import Config
from rheoscope.models.generation_cache import GenerationCache
from rheoscope.models.transformer import Stack, build, parameter_count
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import gap, random, record_constructions
from tests.models.outside import (
    CAUSAL,
    GROWING,
    POSITIONS,
    copy_weights,
    gpt2,
    largest_gradient_gap,
    lengths,
    llama_pairs,
    random_model,
    randomised,
    texts,
    tiny,
    torch_pairs,
    translator,
    uncompared,
)
from tests.processes import run_in_fork, unload_packages

PLACEMENTS = ["pre", "post"]
AS_TORCH: dict[str, Any] = {"position": "none", "norm": "layer", "ffn": "relu", "bias": True}


# torch


def torch_stack(kind: str, placement: str) -> Any:
    """torch's own stack, with a final norm if it is pre-norm, as in ours."""
    layer, stack = {
        "encoder": (nn.TransformerEncoderLayer, nn.TransformerEncoder),
        "decoder": (nn.TransformerDecoderLayer, nn.TransformerDecoder),
    }[kind]
    torch_layer = layer(16, 4, 24, dropout=0.0, batch_first=True, norm_first=placement == "pre")
    options = {"enable_nested_tensor": False} if kind == "encoder" else {}
    return randomised(
        stack(torch_layer, 2, norm=nn.LayerNorm(16) if placement == "pre" else None, **options), seed=3
    ).train()


def future_mask(n: int) -> Tensor:
    return ~torch.ones(n, n, dtype=torch.bool).tril()


def compare(ours: Tensor, theirs: Tensor, is_compared: Tensor) -> None:
    """Check equality at these tokens, then run both backward from the same random gradient."""
    assert gap(ours[is_compared], theirs[is_compared]) < 1e-11
    g = random(5, *ours.shape) * is_compared[..., None]
    ours.backward(g)
    theirs.backward(g)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_encoder_equals_torch(placement: str, causal: bool, padded: bool) -> None:
    ours = randomised(Stack(tiny(placement=placement, **AS_TORCH), causal=causal))
    theirs = torch_stack("encoder", placement)
    pairs = torch_pairs(ours, theirs)
    copy_weights(pairs)
    ids, is_token = texts(1, 3, 7), lengths([7, 4, 2]) if padded else torch.ones(3, 7, dtype=torch.bool)
    out = ours(ids, is_token if padded else None)
    mask = {"mask": future_mask(7)} if causal else {}
    compare(out, theirs(ours.embed(ids).detach(), src_key_padding_mask=~is_token if padded else None, **mask), is_token)
    assert largest_gradient_gap(pairs) < 1e-11
    assert uncompared(ours, pairs) == {"embed.weight"}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_decoder_equals_torch(placement: str, padded: bool) -> None:
    ours = randomised(Stack(tiny(placement=placement, **AS_TORCH), causal=True, has_cross=True))
    theirs = torch_stack("decoder", placement)
    pairs = torch_pairs(ours, theirs)
    copy_weights(pairs)
    ids, is_token = texts(2, 3, 5), lengths([6, 3, 1])
    memory, reference_memory = (random(6, 3, 6, 16).requires_grad_() for _ in range(2))
    out = ours(ids, None, None, memory, is_token if padded else None)
    mask = {"memory_key_padding_mask": ~is_token} if padded else {}
    expected = theirs(ours.embed(ids).detach(), reference_memory, tgt_mask=future_mask(5), **mask)
    compare(out, expected, torch.ones(3, 5, dtype=torch.bool))
    assert largest_gradient_gap(pairs) < 1e-11
    assert gap(memory.grad, reference_memory.grad) < 1e-11
    assert uncompared(ours, pairs) == {"embed.weight"}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_translator_equals_torch(placement: str) -> None:
    """Encoder and decoder with a padded source and the embeddings of 2017: times √d, plus sines, tied three ways."""
    config = tiny(form="encoder-decoder", placement=placement, scaled_embedding=True, **AS_TORCH)
    ours = randomised(build(replace(config, position="sinusoidal")))
    parts = {f"custom_{kind}": torch_stack(kind, placement) for kind in ("encoder", "decoder")}
    theirs = nn.Transformer(16, 4, 2, 2, 24, dropout=0.0, batch_first=True, dtype=torch.float64, **parts)
    pairs = torch_pairs(ours.encoder, theirs.encoder) + torch_pairs(ours.decoder, theirs.decoder)
    copy_weights(pairs)
    table = nn.Parameter(ours.unembed.weight.detach().clone())

    def embed_with_positions(ids: Tensor) -> Tensor:
        return 4.0 * table[ids] + sinusoidal_table(torch.arange(ids.shape[1]), 16).float()

    source, target, is_token = texts(3, 3, 6), texts(4, 3, 5), lengths([6, 4, 1])
    expected = theirs(
        embed_with_positions(source),
        embed_with_positions(target),
        tgt_mask=future_mask(5),
        src_key_padding_mask=~is_token,
        memory_key_padding_mask=~is_token,
    )
    out = ours(source, target, is_token)
    compare(out, expected @ table.T, torch.ones(3, 5, dtype=torch.bool))
    assert largest_gradient_gap(pairs) < 1e-11
    assert gap(ours.unembed.weight.grad, table.grad) < 1e-11
    assert uncompared(ours, pairs) == {"encoder.embed.weight"}  # compared above


# Hugging Face


@pytest.mark.parametrize("padded", [False, True])
def test_the_decoder_equals_gpt2(padded: bool) -> None:
    ours, theirs, pairs = gpt2()
    ids, is_token = texts(5, 3, 7), lengths([7, 5, 2]) if padded else torch.ones(3, 7, dtype=torch.bool)
    compare(
        ours(ids, is_token if padded else None), theirs(input_ids=ids, attention_mask=is_token.long()).logits, is_token
    )
    assert largest_gradient_gap(pairs) < 1e-11
    assert uncompared(ours, pairs) == set()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_decoder_equals_llama(groups: int) -> None:
    """Llama's norms and rotary tables are float32, so the gaps are too."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=groups,
        head_dim=6,
        max_position_embeddings=24,
        rope_theta=500.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    theirs = randomised(LlamaForCausalLM(config), 1)
    ours = random_model(kv_heads=groups, head_width=6, base=500.0, tied=False)
    pairs = llama_pairs(ours, theirs)
    copy_weights(pairs)
    assert uncompared(ours, pairs) == set()
    ids, is_token = texts(6, 3, 20), lengths([20, 9, 3])
    out, expected = ours(ids, is_token), theirs(input_ids=ids, attention_mask=is_token.long()).logits
    assert gap(out[is_token], expected[is_token]) < 5e-6
    g = random(5, *out.shape) * is_token[..., None]
    out.backward(g)
    expected.backward(g)
    assert largest_gradient_gap(pairs) < 5e-6


# Formulas


def test_the_base_model_of_2017_has_63_million_parameters() -> None:
    """arXiv:1706.03762 prints 65 · 10⁶. Counted term by term it is 63,082,496."""
    d, ffn, vocabulary, depth = 512, 2048, 37000, 6
    config = Config(
        vocabulary=vocabulary,
        width=d,
        depth=depth,
        heads=8,
        hidden=ffn,
        form="encoder-decoder",
        position="sinusoidal",
        norm="layer",
        placement="post",
        ffn="relu",
        bias=True,
        scaled_embedding=True,
    )
    attention, ffn_size, norm = 4 * (d * d + d), 2 * d * ffn + ffn + d, 2 * d
    layers = depth * (attention + ffn_size + 2 * norm) + depth * (2 * attention + ffn_size + 3 * norm)
    with torch.device("meta"):
        model = build(config)
    assert parameter_count(model) == vocabulary * d + layers == 63_082_496
    assert parameter_count(model, include_embedding=False) == layers


@pytest.mark.parametrize("tied", [False, True])
def test_the_parameter_count_of_a_decoder(tied: bool) -> None:
    d, hidden, v, k = 16, 24, 17, 4
    model = build(tiny(tied=tied, kv_heads=2))
    layer = d * (4 + 2 * 2) * k + 4 * k * d + 3 * d * hidden + 2 * d
    assert parameter_count(model) == v * d * (1 if tied else 2) + 2 * layer + d


def test_a_block_follows_its_formula() -> None:
    """Pre-norm with a factor on every branch: x + c f(norm(x)), twice."""
    model = random_model(branch=0.25, position="none", kv_heads=2, depth=1)
    block, ids = model.stack.blocks[0], texts(1, 2, 5)
    x = model.stack.embed(ids)
    u = block.norm_attention(x)
    q, k, v = (rows.unflatten(-1, (-1, 4)).transpose(1, 2) for rows in block.attention.read(u).split((16, 8, 8), -1))
    heads = []
    for h in range(4):
        scores = (q[:, h] @ k[:, h // 2].mT / 2).masked_fill(future_mask(5), -torch.inf)
        heads.append(scores.softmax(-1) @ v[:, h // 2])
    x = x + 0.25 * block.attention.write(torch.cat(heads, -1))
    x = x + 0.25 * block.ffn(block.norm_ffn(x))
    assert gap(model.stack.norm(x) @ model.unembed.weight.T, model(ids)) < 1e-12


def test_options_reach_every_mechanism() -> None:
    model = translator(mechanism="metric", options={"sigma": 3.0})
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    parts = [block.attention for block in blocks] + [block.cross for block in model.decoder.blocks]
    assert [part.mechanism.current_mechanism().score.scale for part in parts] == [0.5 / 9] * 6


def test_output_projections_start_smaller() -> None:
    """They are divided by the square root of their number. Everything else starts as in GPT-2."""
    torch.manual_seed(0)
    model = build(tiny(width=64, hidden=0, depth=18, bias=True))
    writers = [module.write for module in model.modules() if hasattr(module, "write")]
    readers = [module.read for module in model.modules() if hasattr(module, "read")]
    assert len(writers) == len(readers) == 36
    for modules, size in ((writers, 0.02 / 6), (readers, 0.02), ([model.stack.embed], 0.02)):
        weights = torch.cat([linear.weight.detach().flatten() for linear in modules])
        assert weights.std().item() == pytest.approx(size, rel=0.05)
    assert not any(bool(linear.bias.any()) for linear in writers + readers)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_acts_in_training_only(dropout: float) -> None:
    model, ids = random_model(dropout=dropout), texts(1, 2, 6)
    expected = model(ids)
    assert torch.equal(model(ids), expected)
    trained = model.train()(ids)
    assert torch.equal(trained, expected) == (dropout == 0)


# Laws


few_examples = settings(max_examples=8)
seeds = st.integers(0, 10_000)


@few_examples
@given(seed=seeds, n=st.integers(1, 8), position=st.sampled_from(POSITIONS), placement=st.sampled_from(PLACEMENTS))
def test_logits_do_not_depend_on_later_tokens(seed: int, n: int, position: str, placement: str) -> None:
    model, ids = random_model(seed, position=position, placement=placement, kv_heads=2), texts(seed, 2, 9)
    other = torch.cat([ids[:, :n], (ids[:, n:] + 1) % 17], 1)
    a, b = model(ids), model(other)
    assert largest_difference(a[:, :n], b[:, :n]) <= 1e-12
    assert largest_difference(a[:, n:], b[:, n:]) > 1e-6


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_no_mechanism_attends_to_later_tokens(mechanism: str) -> None:
    model, ids = random_model(1, mechanism=mechanism), texts(2, 2, 9)
    other = torch.cat([ids[:, :5], (ids[:, 5:] + 1) % 17], 1)
    assert gap(model(ids)[:, :5], model(other)[:, :5]) <= 1e-10
    assert gap(model(ids)[:, :5], model(ids[:, :5])) <= 1e-10  # the length of the text does not matter either


@few_examples
@given(
    seed=seeds, placement=st.sampled_from(PLACEMENTS), mechanism=st.sampled_from(["scaled_dot", "metric", "sinkhorn"])
)
def test_an_encoder_without_position_is_equivariant(seed: int, placement: str, mechanism: str) -> None:
    model, ids = (
        random_model(seed, form="encoder", position="none", placement=placement, mechanism=mechanism),
        texts(seed, 2, 7),
    )
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert gap(model(ids[:, order]), model(ids)[:, order]) < 1e-9


@pytest.mark.parametrize("position", [kind for kind in POSITIONS if kind != "none"])
@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_every_position_encoding_breaks_permutation_equivariance(form: str, position: str) -> None:
    """The last token depends on the order of the others."""
    model, ids = random_model(3, form=form, position=position), torch.tensor([[1, 2, 3, 4]])
    assert gap(model(ids)[:, -1], model(ids[:, [2, 0, 1, 3]])[:, -1]) > 1e-4


@few_examples
@given(
    seed=seeds,
    form=st.sampled_from(["encoder", "decoder"]),
    position=st.sampled_from(POSITIONS),
    token_counts=st.lists(st.integers(1, 6), min_size=2, max_size=3),
)
def test_padding_changes_nothing(seed: int, form: str, position: str, token_counts: list[int]) -> None:
    model, is_token = random_model(seed, form=form, position=position, kv_heads=2), lengths(token_counts)
    ids = texts(seed, *is_token.shape)
    together = model(ids, is_token)
    for row, n in enumerate(token_counts):
        assert gap(together[row, :n], model(ids[row : row + 1, :n])[0]) < 1e-10


@few_examples
@given(
    seed=seeds,
    position=st.sampled_from(POSITIONS),
    token_counts=st.lists(st.integers(1, 6), min_size=2, max_size=3),
)
def test_padding_of_a_source_changes_nothing(seed: int, position: str, token_counts: list[int]) -> None:
    model, is_token = translator(seed=seed, position=position, kv_heads=2), lengths(token_counts)
    source, target = texts(seed, *is_token.shape), texts(seed + 1, len(token_counts), 4)
    together = model(source, target, is_token)
    for row, n in enumerate(token_counts):
        assert gap(together[row], model(source[row : row + 1, :n], target[row : row + 1])[0]) < 1e-10


@few_examples
@given(seed=seeds, n=st.integers(1, 4))
def test_a_target_depends_on_its_whole_source_and_its_own_past(seed: int, n: int) -> None:
    model, source, target = translator(seed=seed), texts(seed, 1, 5), texts(seed + 1, 1, 5)
    other = torch.cat([target[:, :n], (target[:, n:] + 1) % 17], 1)
    assert largest_difference(model(source, target)[:, :n], model(source, other)[:, :n]) <= 1e-12
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 17
    assert largest_difference(model(source, target)[:, 0], model(changed, target)[:, 0]) > 1e-6


def largest_difference(a: Tensor, b: Tensor) -> float:
    return (a - b).detach().abs().max().item()


def logits_in_parts(model: Any, ids: Tensor, cuts: list[int], capacity: int = 0) -> Tensor:
    cache = GenerationCache(model.config.depth, capacity)
    bounds = [0, *sorted({cut for cut in cuts if cut < ids.shape[1]}), ids.shape[1]]
    with torch.no_grad():
        return torch.cat([model(ids[:, a:b], None, cache) for a, b in pairwise(bounds)], 1)


@settings(max_examples=15)
@given(
    seed=seeds,
    cuts=st.lists(st.integers(1, 8), max_size=8),
    position=st.sampled_from(POSITIONS),
    groups=st.sampled_from([1, 2, 4]),
    capacity=st.sampled_from([0, 5, 9]),
)
def test_cached_logits_equal_uncached_ones(
    seed: int, cuts: list[int], position: str, groups: int, capacity: int
) -> None:
    model, ids = random_model(seed, position=position, kv_heads=groups), texts(seed, 2, 9)
    assert gap(logits_in_parts(model, ids, cuts, capacity), model(ids)) < 1e-10


@pytest.mark.parametrize(("position", "groups"), list(zip(POSITIONS, cycle([1, 2, 4]))))
def test_decoding_token_by_token_equals_one_pass(position: str, groups: int) -> None:
    model, ids = random_model(4, position=position, kv_heads=groups), texts(4, 2, 9)
    assert gap(logits_in_parts(model, ids, list(range(1, 9))), model(ids)) < 1e-10


@pytest.mark.parametrize("mechanism", GROWING)
def test_every_mechanism_continues_from_a_cache(mechanism: str) -> None:
    model, ids = random_model(5, mechanism=mechanism), texts(5, 2, 7)
    assert gap(logits_in_parts(model, ids, [3, 4, 5, 6]), model(ids)) < 1e-9


def test_a_cache_selects_and_repeats_texts() -> None:
    model, source, first_tokens = translator(), texts(7, 2, 5), texts(8, 2, 3)
    second_tokens, last_tokens, cache = texts(9, 4, 1), texts(10, 4, 1), GenerationCache(2)
    sources, rows = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 3, 3])
    assert len({tuple(row) for row in second_tokens.tolist()}) > 2
    with torch.no_grad():
        memory = model.encoder(source)
        model.decoder(first_tokens, None, cache, memory)
        cache.repeat_texts(2)
        model.decoder(second_tokens, None, cache, memory[sources])
        cache.select_texts(rows)
        out = model.decoder(last_tokens, None, cache, memory[sources])
        expected = model.decoder(
            torch.cat([first_tokens[sources], second_tokens[rows], last_tokens], 1), None, None, memory[sources]
        )
    assert gap(out[:, -1], expected[:, -1]) < 1e-12


def test_keys_and_values_of_the_source_are_computed_once() -> None:
    model, source = translator(), texts(7, 2, 5)
    calls: list[int] = []
    for block in model.decoder.blocks:
        block.cross.read.register_forward_hook(lambda *_: calls.append(1))
    cache, memory = GenerationCache(2), model.encoder(source)
    with torch.no_grad():
        for step in range(4):
            model.decoder(texts(step, 2, 1), None, cache, memory)
    assert len(calls) == 2


# Every mechanism trains


def step(model: nn.Module, loss: Any, rate: float = 2e-4) -> tuple[float, float]:
    """The loss before and after a small gradient step. Every parameter must have a gradient."""
    before = loss()
    before.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    return before.item(), loss().item()


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_every_mechanism_learns(mechanism: str) -> None:
    torch.manual_seed(1)
    model, ids = randomised(build(tiny(mechanism=mechanism)), 1, size=0.1), texts(3, 4, 9)
    before, after = step(model, lambda: cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
    assert after < before
    without_gradient = [name for name, parameter in model.named_parameters() if not bool(parameter.grad.any())]
    assert not ZOO[mechanism].domain.is_differentiable or without_gradient == []


@pytest.mark.parametrize(("position", "placement"), list(zip(POSITIONS, cycle(PLACEMENTS))))
def test_every_position_learns_in_a_translator(placement: str, position: str) -> None:
    model, source, ids = translator(position=position, placement=placement), texts(2, 3, 6), texts(3, 3, 5)
    before, after = step(model, lambda: cross_entropy(model(source, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
    assert after < before
    assert [name for name, parameter in model.named_parameters() if not bool(parameter.grad.any())] == []


# Refusals


def test_a_text_longer_than_the_context_is_refused() -> None:
    model, cache = random_model(), GenerationCache(2)
    with pytest.raises(RheoscopeError, match=r"the text has 25 tokens, but the model reads at most 24; use a shorter"):
        model(texts(1, 1, 25))
    with torch.no_grad():
        model(texts(1, 1, 24), None, cache)
        with pytest.raises(RheoscopeError, match="has 25 tokens"):
            model(texts(1, 1, 1), None, cache)


def test_a_mechanism_outside_its_domain_is_refused() -> None:
    decoder, model = build(tiny(mechanism="sinkhorn")), build(tiny(form="encoder-decoder", mechanism="shaped"))
    with pytest.raises(RheoscopeError, match="Sinkhorn does not support masks"):
        decoder(texts(1, 1, 4))
    with pytest.raises(RheoscopeError, match="Shaped needs square attention"):
        model(texts(1, 1, 4), texts(1, 1, 3))


def test_weight_dropout_acts_in_training_only() -> None:
    config = Config(vocabulary=9, width=8, depth=1, heads=2, attention_dropout=0.5)
    model, ids = build(config), torch.tensor([[1, 2, 3, 4, 5, 6]])
    plain = build(config.with_changes(attention_dropout=0.0)).eval()
    plain.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    first_tokens, second = model(ids), model(ids)
    assert not torch.equal(first_tokens, second)
    assert torch.equal(model.eval()(ids), plain(ids))
    with pytest.raises(
        RheoscopeError, match="needs a softmax, but 'sigmoid' normalises with Sigmoid; type attention_dropout=0"
    ):
        build(config.with_changes(mechanism="sigmoid"))


@pytest.mark.parametrize("position", POSITIONS)
def test_a_forward_pass_constructs_no_mechanism(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A construction breaks the graph of torch.compile (2.11) and makes a step of a 124M decoder a fifth slower."""
    model, ids = (
        build(Config(vocabulary=11, width=8, depth=2, heads=2, position=position)),  # type: ignore[arg-type]
        torch.tensor([[1, 2]]),
    )
    constructions = record_constructions(monkeypatch)
    assert model(ids).shape == (1, 2, 11)
    assert not constructions


MECHANISMS = ("metric", "softmax_sink")
ON_CPU = ("rotary", "learned", "alibi", "buckets")
ON_CUDNN = {"scaled_dot": "rotary", "cosine": "sinusoidal"}
"""Mechanisms that run on cuDNN's kernel, each with a position. The position `none` is compiled on another device."""


class Together(nn.ModuleList):
    """Modules that read the same input. Compiling them together is faster than one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([module(x) for module in self])


def print_graph_breaks() -> None:
    """Print whether the compiled layers agree, and the graph breaks of the models."""
    unload_packages()
    from torch._dynamo import explain, reset

    import rheoscope as rs
    from rheoscope.attention.lower import cudnn
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import build

    warnings.simplefilter("ignore")
    layers, x = (
        Together(rs.nn.MultiHeadAttention(8, heads=2, mechanism=name) for name in MECHANISMS),
        torch.randn(1, 5, 8),
    )
    for layer in layers:
        layer.attention.mechanism = layer.attention.mechanism.with_mask("causal")
    compiled, expected = torch.compile(layers, backend="eager", fullgraph=True)(x), layers(x)
    print("layers", *((a - b).abs().max().item() <= 1e-6 for a, b in zip(compiled, expected, strict=True)))
    reset()
    config = Config(vocabulary=9, width=8, depth=1, heads=2, position="none")
    bare = config.with_changes(norm="none", ffn="relu")  # the other models compile norms and gates
    models = Together(build(bare.with_changes(position=position)) for position in ON_CPU)
    print("positions", explain(models)(torch.tensor([[1, 2, 3]])).graph_break_count)
    ids = torch.zeros(1, 64, dtype=torch.long, device="meta")
    print("away", explain(build(config).to("meta"))(ids).graph_break_count)  # only on the CPU rows are aligned first
    cudnn.input_refusal = lambda q, k: ""  # as on a GPU that has the kernel
    wide = bare.with_changes(width=32, heads=1)
    models = Together(
        build(wide.with_changes(mechanism=name, position=position)) for name, position in ON_CUDNN.items()
    )
    explanation = explain(models.to("meta", torch.bfloat16))(ids)
    calls = [str(node.target) for graph in explanation.graphs for node in graph.graph.nodes]
    print("cudnn", explanation.graph_break_count, sum("cudnn" in call for call in calls))


@pytest.mark.slow
def test_a_layer_and_a_model_are_one_graph() -> None:
    """torch.compile traces each without a break and computes the same. Shape checks would break it, so it runs in a fork."""
    process = run_in_fork(print_graph_breaks)
    expected = ["layers True True", "positions 0", "away 0", f"cudnn 0 {len(ON_CUDNN)}"]
    assert process.stdout.splitlines() == expected, process.stderr
    assert {*ON_CPU, *ON_CUDNN.values(), "none"} == set(POSITIONS)


@pytest.mark.parametrize("position", ["rotary", "learned"])
def test_values_of_another_width_are_cached_counted_and_trained(position: Any) -> None:
    """Decoding with a cache equals one pass, there are fewer parameters, and the model learns."""
    config = tiny(position=position, kv_heads=2, value_width=3)
    model, cache, ids = randomised(build(config)), GenerationCache(depth=2), texts(1, 1, 7)
    with torch.no_grad():
        expected = model(ids)
        parts = torch.cat([model(ids[:, i : i + 1], cache=cache) for i in range(7)], 1)
    assert gap(parts, expected) < 1e-11
    n_saved = 2 * (2 + 4) * 16 * (4 - 3)  # depth · (kv_heads + heads) · width · (d_k − d_v)
    assert parameter_count(build(config.with_changes(value_width=4))) - parameter_count(model) == n_saved
    initial_loss, *_ = losses = [loss(model, ids) for _ in range(6)]
    assert losses[-1] < 0.9 * initial_loss


def loss(model: Any, ids: Tensor) -> float:
    """The loss of the next tokens, followed by one gradient step."""
    value = cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    gradients = torch.autograd.grad(value, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.data -= 0.02 * gradient
    return float(value.detach())
