"""Equal to what others wrote, forward and backward, with copied weights; and the laws that need no peer."""

import warnings
from dataclasses import replace
from itertools import pairwise
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
    copy,
    furthest_gradient,
    gpt2,
    left_out,
    lengths,
    made,
    of_llama,
    of_torch,
    stirred,
    texts,
    tiny,
    translator,
)
from tests.processes import run_in_fork, unload_packages

PLACEMENTS = ["pre", "post"]
AS_TORCH: dict[str, Any] = {"position": "none", "norm": "layer", "ffn": "relu", "bias": True}


# torch


def torch_stack(kind: str, placement: str) -> Any:
    """torch's own stack; a final norm where it is pre-norm, as ours."""
    layer, stack = {
        "encoder": (nn.TransformerEncoderLayer, nn.TransformerEncoder),
        "decoder": (nn.TransformerDecoderLayer, nn.TransformerDecoder),
    }[kind]
    one = layer(16, 4, 24, dropout=0.0, batch_first=True, norm_first=placement == "pre")
    options = {"enable_nested_tensor": False} if kind == "encoder" else {}
    return stirred(stack(one, 2, norm=nn.LayerNorm(16) if placement == "pre" else None, **options), seed=3).train()


def later(n: int) -> Tensor:
    return ~torch.ones(n, n, dtype=torch.bool).tril()


def compare(ours: Tensor, theirs: Tensor, at: Tensor) -> None:
    """The same at real tokens; then both backward from the same random gradient there."""
    assert gap(ours[at], theirs[at]) < 1e-11
    g = random(5, *ours.shape) * at[..., None]
    ours.backward(g)
    theirs.backward(g)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_torch_encoder(placement: str, causal: bool, padded: bool) -> None:
    ours = stirred(Stack(tiny(placement=placement, **AS_TORCH), causal=causal))
    theirs = torch_stack("encoder", placement)
    pairs = of_torch(ours, theirs)
    copy(pairs)
    ids, real = texts(1, 3, 7), lengths([7, 4, 2]) if padded else torch.ones(3, 7, dtype=torch.bool)
    out = ours(ids, real if padded else None)
    mask = {"mask": later(7)} if causal else {}
    compare(out, theirs(ours.embed(ids).detach(), src_key_padding_mask=~real if padded else None, **mask), real)
    assert furthest_gradient(pairs) < 1e-11
    assert left_out(ours, pairs) == {"embed.weight"}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_torch_decoder(placement: str, padded: bool) -> None:
    ours = stirred(Stack(tiny(placement=placement, **AS_TORCH), causal=True, has_cross=True))
    theirs = torch_stack("decoder", placement)
    pairs = of_torch(ours, theirs)
    copy(pairs)
    ids, real = texts(2, 3, 5), lengths([6, 3, 1])
    memory, remembered = (random(6, 3, 6, 16).requires_grad_() for _ in range(2))
    out = ours(ids, None, None, memory, real if padded else None)
    mask = {"memory_key_padding_mask": ~real} if padded else {}
    expected = theirs(ours.embed(ids).detach(), remembered, tgt_mask=later(5), **mask)
    compare(out, expected, torch.ones(3, 5, dtype=torch.bool))
    assert furthest_gradient(pairs) < 1e-11
    assert gap(memory.grad, remembered.grad) < 1e-11
    assert left_out(ours, pairs) == {"embed.weight"}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_torch_transformer(placement: str) -> None:
    """Encoder and decoder as one, padding in the source, embeddings of 2017: times √d, plus sines, tied three ways."""
    config = tiny(form="encoder-decoder", placement=placement, scaled_embedding=True, **AS_TORCH)
    ours = stirred(build(replace(config, position="sinusoidal")))
    parts = {f"custom_{kind}": torch_stack(kind, placement) for kind in ("encoder", "decoder")}
    theirs = nn.Transformer(16, 4, 2, 2, 24, dropout=0.0, batch_first=True, dtype=torch.float64, **parts)
    pairs = of_torch(ours.encoder, theirs.encoder) + of_torch(ours.decoder, theirs.decoder)
    copy(pairs)
    table = nn.Parameter(ours.unembed.weight.detach().clone())

    def placed(ids: Tensor) -> Tensor:
        return 4.0 * table[ids] + sinusoidal_table(torch.arange(ids.shape[1]), 16).float()

    source, target, real = texts(3, 3, 6), texts(4, 3, 5), lengths([6, 4, 1])
    expected = theirs(
        placed(source),
        placed(target),
        tgt_mask=later(5),
        src_key_padding_mask=~real,
        memory_key_padding_mask=~real,
    )
    out = ours(source, target, real)
    compare(out, expected @ table.T, torch.ones(3, 5, dtype=torch.bool))
    assert furthest_gradient(pairs) < 1e-11
    assert gap(ours.unembed.weight.grad, table.grad) < 1e-11
    assert left_out(ours, pairs) == {"encoder.embed.weight"}  # compared above


# Hugging Face


@pytest.mark.parametrize("padded", [False, True])
def test_gpt2(padded: bool) -> None:
    ours, theirs, pairs = gpt2()
    ids, real = texts(5, 3, 7), lengths([7, 5, 2]) if padded else torch.ones(3, 7, dtype=torch.bool)
    compare(ours(ids, real if padded else None), theirs(input_ids=ids, attention_mask=real.long()).logits, real)
    assert furthest_gradient(pairs) < 1e-11
    assert left_out(ours, pairs) == set()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_llama(groups: int) -> None:
    """Its norms and its table of angles are float32, so are the gaps."""
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
    theirs = stirred(LlamaForCausalLM(config), 1)
    ours = made(kv_heads=groups, head_width=6, base=500.0, tied=False)
    pairs = of_llama(ours, theirs)
    copy(pairs)
    assert left_out(ours, pairs) == set()
    ids, real = texts(6, 3, 20), lengths([20, 9, 3])
    out, expected = ours(ids, real), theirs(input_ids=ids, attention_mask=real.long()).logits
    assert gap(out[real], expected[real]) < 5e-6
    g = random(5, *out.shape) * real[..., None]
    out.backward(g)
    expected.backward(g)
    assert furthest_gradient(pairs) < 5e-6


# Formulas


def test_the_base_model_of_2017() -> None:
    """arXiv:1706.03762 prints 65 · 10⁶; term by term it is 63,082,496."""
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
    attention, feed, norm = 4 * (d * d + d), 2 * d * ffn + ffn + d, 2 * d
    layers = depth * (attention + feed + 2 * norm) + depth * (2 * attention + feed + 3 * norm)
    with torch.device("meta"):
        model = build(config)
    assert parameter_count(model) == vocabulary * d + layers == 63_082_496
    assert parameter_count(model, include_embedding=False) == layers


@pytest.mark.parametrize("tied", [False, True])
def test_parameters_of_a_decoder(tied: bool) -> None:
    d, hidden, v, k = 16, 24, 17, 4
    model = build(tiny(tied=tied, kv_heads=2))
    layer = d * (4 + 2 * 2) * k + 4 * k * d + 3 * d * hidden + 2 * d
    assert parameter_count(model) == v * d * (1 if tied else 2) + 2 * layer + d


def test_a_block_by_its_formula() -> None:
    """Pre-norm with a factor on every branch: x + c f(norm(x)), twice."""
    model = made(branch=0.25, position="none", kv_heads=2, depth=1)
    block, ids = model.stack.blocks[0], texts(1, 2, 5)
    x = model.stack.embed(ids)
    u = block.norm_attention(x)
    q, k, v = (rows.unflatten(-1, (-1, 4)).transpose(1, 2) for rows in block.attention.read(u).split((16, 8, 8), -1))
    heads = []
    for h in range(4):
        scores = (q[:, h] @ k[:, h // 2].mT / 2).masked_fill(later(5), -torch.inf)
        heads.append(scores.softmax(-1) @ v[:, h // 2])
    x = x + 0.25 * block.attention.write(torch.cat(heads, -1))
    x = x + 0.25 * block.ffn(block.norm_ffn(x))
    assert gap(model.stack.norm(x) @ model.unembed.weight.T, model(ids)) < 1e-12


def test_options_reach_every_mechanism() -> None:
    model = translator(mechanism="metric", options={"sigma": 3.0})
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    parts = [block.attention for block in blocks] + [block.cross for block in model.decoder.blocks]
    assert [part.mechanism.current_mechanism().score.scale for part in parts] == [0.5 / 9] * 6


def test_what_writes_to_the_stream_starts_smaller() -> None:
    """By the square root of the number of writers; everything else starts as in GPT-2."""
    torch.manual_seed(0)
    model = build(tiny(width=64, hidden=0, depth=18, bias=True))
    writers = [module.write for module in model.modules() if hasattr(module, "write")]
    readers = [module.read for module in model.modules() if hasattr(module, "read")]
    assert len(writers) == len(readers) == 36
    for found, size in ((writers, 0.02 / 6), (readers, 0.02), ([model.stack.embed], 0.02)):
        weights = torch.cat([linear.weight.detach().flatten() for linear in found])
        assert weights.std().item() == pytest.approx(size, rel=0.05)
    assert not any(bool(linear.bias.any()) for linear in writers + readers)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_acts_in_training_only(dropout: float) -> None:
    model, ids = made(dropout=dropout), texts(1, 2, 6)
    still = model(ids)
    assert torch.equal(model(ids), still)
    moved = model.train()(ids)
    assert torch.equal(moved, still) == (dropout == 0)


# Laws


few = settings(max_examples=8)
seeds = st.integers(0, 10_000)


@few
@given(seed=seeds, at=st.integers(1, 8), position=st.sampled_from(POSITIONS), placement=st.sampled_from(PLACEMENTS))
def test_the_future_is_not_seen(seed: int, at: int, position: str, placement: str) -> None:
    model, ids = made(seed, position=position, placement=placement, kv_heads=2), texts(seed, 2, 9)
    other = torch.cat([ids[:, :at], (ids[:, at:] + 1) % 17], 1)
    a, b = model(ids), model(other)
    assert apart(a[:, :at], b[:, :at]) <= 1e-12
    assert apart(a[:, at:], b[:, at:]) > 1e-6


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_no_mechanism_sees_the_future(mechanism: str) -> None:
    model, ids = made(1, mechanism=mechanism), texts(2, 2, 9)
    other = torch.cat([ids[:, :5], (ids[:, 5:] + 1) % 17], 1)
    assert gap(model(ids)[:, :5], model(other)[:, :5]) <= 1e-10
    assert gap(model(ids)[:, :5], model(ids[:, :5])) <= 1e-10  # nor how long the text is


@few
@given(
    seed=seeds, placement=st.sampled_from(PLACEMENTS), mechanism=st.sampled_from(["scaled_dot", "metric", "sinkhorn"])
)
def test_an_encoder_without_position_is_equivariant(seed: int, placement: str, mechanism: str) -> None:
    model, ids = (
        made(seed, form="encoder", position="none", placement=placement, mechanism=mechanism),
        texts(seed, 2, 7),
    )
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert gap(model(ids[:, order]), model(ids)[:, order]) < 1e-9


@pytest.mark.parametrize("position", [kind for kind in POSITIONS if kind != "none"])
@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_position_is_felt(form: str, position: str) -> None:
    """The law above fails where it should: the last token feels the order of the others."""
    model, ids = made(3, form=form, position=position), torch.tensor([[1, 2, 3, 4]])
    assert gap(model(ids)[:, -1], model(ids[:, [2, 0, 1, 3]])[:, -1]) > 1e-4


@few
@given(
    seed=seeds,
    form=st.sampled_from(["encoder", "decoder"]),
    position=st.sampled_from(POSITIONS),
    real=st.lists(st.integers(1, 6), min_size=2, max_size=3),
)
def test_padding_changes_nothing(seed: int, form: str, position: str, real: list[int]) -> None:
    model, there = made(seed, form=form, position=position, kv_heads=2), lengths(real)
    ids = texts(seed, *there.shape)
    together = model(ids, there)
    for row, n in enumerate(real):
        assert gap(together[row, :n], model(ids[row : row + 1, :n])[0]) < 1e-10


@few
@given(seed=seeds, position=st.sampled_from(POSITIONS), real=st.lists(st.integers(1, 6), min_size=2, max_size=3))
def test_padding_of_a_source_changes_nothing(seed: int, position: str, real: list[int]) -> None:
    model, there = translator(seed=seed, position=position, kv_heads=2), lengths(real)
    source, target = texts(seed, *there.shape), texts(seed + 1, len(real), 4)
    together = model(source, target, there)
    for row, n in enumerate(real):
        assert gap(together[row], model(source[row : row + 1, :n], target[row : row + 1])[0]) < 1e-10


@few
@given(seed=seeds, at=st.integers(1, 4))
def test_a_target_sees_its_whole_source_and_its_own_past(seed: int, at: int) -> None:
    model, source, target = translator(seed=seed), texts(seed, 1, 5), texts(seed + 1, 1, 5)
    other = torch.cat([target[:, :at], (target[:, at:] + 1) % 17], 1)
    assert apart(model(source, target)[:, :at], model(source, other)[:, :at]) <= 1e-12
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 17
    assert apart(model(source, target)[:, 0], model(changed, target)[:, 0]) > 1e-6


def apart(a: Tensor, b: Tensor) -> float:
    return (a - b).detach().abs().max().item()


def in_pieces(model: Any, ids: Tensor, cuts: list[int], room: int = 0) -> Tensor:
    cache = GenerationCache(model.config.depth, room)
    bounds = [0, *sorted({cut for cut in cuts if cut < ids.shape[1]}), ids.shape[1]]
    with torch.no_grad():
        return torch.cat([model(ids[:, a:b], None, cache) for a, b in pairwise(bounds)], 1)


@settings(max_examples=15)
@given(
    seed=seeds,
    cuts=st.lists(st.integers(1, 8), max_size=8),
    position=st.sampled_from(POSITIONS),
    groups=st.sampled_from([1, 2, 4]),
    room=st.sampled_from([0, 5, 9]),
)
def test_cached_is_uncached(seed: int, cuts: list[int], position: str, groups: int, room: int) -> None:
    model, ids = made(seed, position=position, kv_heads=groups), texts(seed, 2, 9)
    assert gap(in_pieces(model, ids, cuts, room), model(ids)) < 1e-10


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_token_by_token_is_all_at_once(position: str, groups: int) -> None:
    model, ids = made(4, position=position, kv_heads=groups), texts(4, 2, 9)
    assert gap(in_pieces(model, ids, list(range(1, 9))), model(ids)) < 1e-10


@pytest.mark.parametrize("mechanism", GROWING)
def test_every_mechanism_goes_on_from_a_cache(mechanism: str) -> None:
    model, ids = made(5, mechanism=mechanism), texts(5, 2, 7)
    assert gap(in_pieces(model, ids, [3, 4, 5, 6]), model(ids)) < 1e-9


def test_a_cache_takes_rows_and_spreads() -> None:
    model, source, first = translator(), texts(7, 2, 5), texts(8, 2, 3)
    then, last, cache = texts(9, 4, 1), texts(10, 4, 1), GenerationCache(2)
    both, rows = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 3, 3])
    assert len({tuple(row) for row in then.tolist()}) > 2
    with torch.no_grad():
        memory = model.encoder(source)
        model.decoder(first, None, cache, memory)
        cache.repeat_texts(2)
        model.decoder(then, None, cache, memory[both])
        cache.select_texts(rows)
        out = model.decoder(last, None, cache, memory[both])
        whole = model.decoder(torch.cat([first[both], then[rows], last], 1), None, None, memory[both])
    assert gap(out[:, -1], whole[:, -1]) < 1e-12


def test_the_source_is_read_once() -> None:
    model, source = translator(), texts(7, 2, 5)
    calls: list[int] = []
    for block in model.decoder.blocks:
        block.cross.read.register_forward_hook(lambda *_: calls.append(1))
    cache, memory = GenerationCache(2), model.encoder(source)
    with torch.no_grad():
        for at in range(4):
            model.decoder(texts(at, 2, 1), None, cache, memory)
    assert len(calls) == 2


# Every mechanism trains


def step(model: nn.Module, loss: Any, rate: float = 2e-4) -> tuple[float, float]:
    """The loss before and after one small step down its gradient, which every parameter must have."""
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
    model, ids = stirred(build(tiny(mechanism=mechanism)), 1, size=0.1), texts(3, 4, 9)
    before, after = step(model, lambda: cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
    assert after < before
    still = [name for name, parameter in model.named_parameters() if not bool(parameter.grad.any())]
    assert not ZOO[mechanism].domain.is_differentiable or still == []


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_position_learns_in_a_translator(placement: str, position: str) -> None:
    model, source, ids = translator(position=position, placement=placement), texts(2, 3, 6), texts(3, 3, 5)
    before, after = step(model, lambda: cross_entropy(model(source, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
    assert after < before
    assert [name for name, parameter in model.named_parameters() if not bool(parameter.grad.any())] == []


# Refusals


def test_a_text_longer_than_the_model_reads() -> None:
    model, cache = made(), GenerationCache(2)
    with pytest.raises(RheoscopeError, match=r"the text has 25 tokens, the model reads at most 24; type a shorter"):
        model(texts(1, 1, 25))
    with torch.no_grad():
        model(texts(1, 1, 24), None, cache)
        with pytest.raises(RheoscopeError, match="has 25 tokens"):
            model(texts(1, 1, 1), None, cache)


def test_a_mechanism_outside_its_domain() -> None:
    decoder, model = build(tiny(mechanism="sinkhorn")), build(tiny(form="encoder-decoder", mechanism="shaped"))
    with pytest.raises(RheoscopeError, match="Sinkhorn does not support masks"):
        decoder(texts(1, 1, 4))
    with pytest.raises(RheoscopeError, match="Shaped needs square attention"):
        model(texts(1, 1, 4), texts(1, 1, 3))


def test_weights_are_dropped_while_training_alone() -> None:
    config = Config(vocabulary=9, width=8, depth=1, heads=2, attention_dropout=0.5)
    model, ids = build(config), torch.tensor([[1, 2, 3, 4, 5, 6]])
    plain = build(config.with_changes(attention_dropout=0.0)).eval()
    plain.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    first, second = model(ids), model(ids)
    assert not torch.equal(first, second)
    assert torch.equal(model.eval()(ids), plain(ids))
    with pytest.raises(
        RheoscopeError, match="drops weights of a softmax, 'sigmoid' has Sigmoid; type attention_dropout=0"
    ):
        build(config.with_changes(mechanism="sigmoid"))


@pytest.mark.parametrize("position", POSITIONS)
def test_a_forward_puts_no_mechanism_together(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile (2.11) breaks its graph where one is made: the step of a 124M decoder then takes a fifth longer."""
    model, ids = (
        build(Config(vocabulary=11, width=8, depth=2, heads=2, position=position)),  # type: ignore[arg-type]
        torch.tensor([[1, 2]]),
    )
    made = record_constructions(monkeypatch)
    assert model(ids).shape == (1, 2, 11)
    assert not made


MECHANISMS = ("metric", "softmax_sink")
ON_CUDNN = ("scaled_dot", "cosine")


def compiled() -> None:
    """Each layer's answer, and how often the graph of each model breaks."""
    unload_packages()
    from torch._dynamo import explain, reset

    import rheoscope as rs
    from rheoscope.attention.lower import cudnn
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import build

    warnings.simplefilter("ignore")
    for name in MECHANISMS:
        layer, x = rs.nn.MultiHeadAttention(8, heads=2, mechanism=name), torch.randn(1, 5, 8)
        layer.attention.mechanism = layer.attention.mechanism.with_mask("causal")
        reset()
        print(name, torch.allclose(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x), atol=1e-6))
    for position in POSITIONS:
        reset()
        model = build(Config(vocabulary=9, width=8, depth=1, heads=2, position=position))
        print(position, explain(model)(torch.tensor([[1, 2, 3]])).graph_break_count)
    reset()
    ids = torch.zeros(1, 64, dtype=torch.long, device="meta")
    print("away", explain(model.to("meta"))(ids).graph_break_count)  # from the CPU, where rows are aligned first
    cudnn.input_refusal = lambda q, k: ""  # as on a GPU that has the kernel
    for name in ON_CUDNN:
        reset()
        model = build(Config(vocabulary=9, width=32, depth=1, heads=1, mechanism=name)).to("meta", torch.bfloat16)
        found = explain(model)(ids)
        calls = [str(node.target) for graph in found.graphs for node in graph.graph.nodes]
        print(name, found.graph_break_count, any("cudnn" in call for call in calls))


@pytest.mark.slow
def test_a_layer_and_a_model_are_one_graph() -> None:
    """torch.compile sees each whole, and computes the same (in a process of its own: shapes checked as in these tests break it)."""
    done = run_in_fork(compiled)
    positions = [f"{position} 0" for position in (*POSITIONS, "away")]
    expected = [*(f"{name} True" for name in MECHANISMS), *positions, *(f"{name} 0 True" for name in ON_CUDNN)]
    assert done.stdout.splitlines() == expected, done.stderr


@pytest.mark.parametrize("position", ["rotary", "learned"])
def test_values_of_another_width(position: Any) -> None:
    """Token by token from a cache as all at once, fewer parameters, and it learns."""
    config = tiny(position=position, kv_heads=2, value_width=3)
    model, cache, ids = stirred(build(config)), GenerationCache(depth=2), texts(1, 1, 7)
    with torch.no_grad():
        whole = model(ids)
        parts = torch.cat([model(ids[:, at : at + 1], cache=cache) for at in range(7)], 1)
    assert gap(parts, whole) < 1e-11
    saved = 2 * (2 + 4) * 16 * (4 - 3)  # depth · (kv_heads + heads) · width · (d_k − d_v)
    assert parameter_count(build(config.with_changes(value_width=4))) - parameter_count(model) == saved
    first, *_ = losses = [loss(model, ids) for _ in range(6)]
    assert losses[-1] < 0.9 * first


def loss(model: Any, ids: Tensor) -> float:
    """Of the next tokens, and one step down."""
    found = cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    for parameter, slope in zip(model.parameters(), torch.autograd.grad(found, list(model.parameters())), strict=True):
        parameter.data -= 0.02 * slope
    return float(found.detach())
