"""A network of the user stays as it was, and results never describe other weights than those that it has now."""

import copy
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import rheoscope as rs
from rheoscope.models.config import Config
from rheoscope.models.transformer import Transformer
from rheoscope.running.lost_text import LostTextWarning, lost_characters
from rheoscope.running.weights_snapshot import sample_of, take_snapshot
from rheoscope.space.trace import Trace
from tests.network_state import OUTDATED, same_state, state_of
from tests.pretrained.cases import CASES, GROUPED, PLAIN, network, tokenizer
from tests.studio.cases import post_text, render_text, running_studio

PAIR = torch.tensor([[3, 4]])


def copy_of(name: str) -> Any:
    """A network of a case that a test may change."""
    return copy.deepcopy(network(name))


def failing_hook(x: Tensor) -> Tensor:
    raise ValueError("a hook of the user")


CALLS: dict[str, Callable[[Any], Any]] = {
    "trace": lambda model: model.trace([3, 4, 5, 6]),
    "batch": lambda model: model.trace([[3, 4, 5], [6, 7]]),
    "head": lambda model: model.view.head(1, 2).M.dense(),
    "run": lambda model: model.run([3, 4, 5], hooks={"L0.resid_post": lambda x: 2 * x}),
    "edit": lambda model: model.run([3, 4, 5], edit={(0, 1): lambda q, k, v, mechanism: 0 * v}),
    "gradients": lambda model: model.gradients([3, 4, 5], lambda logits: logits[-1, 0]),
    "reuse": lambda model: model.run_batch(PAIR, block_outputs=model.block_outputs(PAIR)[:1]),
    "analysis": lambda model: rs.trajectory(model.trace([3, 4, 5, 6])),
    "surgery": lambda model: rs.surgery(model, [3, 4, 5, 6], heads=[(0, 1)], M="symmetric"),
    "load again": lambda model: rs.load(model.network),
    "other dtype": lambda model: rs.load(model.network, dtype="bfloat16"),
    "failing hook": lambda model: model.run([3, 4], hooks={"L0.resid_post": failing_hook}),
    "failing edit": lambda model: model.run([3, 4], edit={(1, 0): lambda q, k, v, mechanism: 1 / 0}),
    "bad ids": lambda model: model.trace([10**6]),
    "bad step": lambda model: model.run([3], hooks={"L99.resid_mid": lambda x: x}),
}


ONE_CASE_PER_FAMILY = sorted({name.split("_")[0] for name in CASES} & CASES.keys())


@pytest.mark.parametrize("name", ONE_CASE_PER_FAMILY)
def test_a_network_is_unchanged_after_any_20_calls(name: str) -> None:
    draw = random.Random(name)
    net = copy_of(name)
    for module in net.modules():
        module.training = draw.random() < 0.5
    net.register_forward_hook(lambda module, args, out: None)
    before = state_of(net)
    model = rs.load(net)
    outcomes = [attempt(CALLS[draw.choice(list(CALLS))], model) for _ in range(20)]
    assert True in outcomes
    assert same_state(before, state_of(net))


def attempt(call: Callable[[Any], Any], model: Any) -> bool:
    """Whether a call succeeds. Some calls must fail, and encoders have no logits."""
    try:
        call(model)
    except (rs.RheoscopeError, ValueError, ZeroDivisionError):
        return False
    return True


def test_dropout_is_off_during_a_call_and_on_after_it() -> None:
    net = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=40, resid_pdrop=0.5)).train()
    model = rs.load(net)
    first, second = (model.trace([3, 4, 5]) for _ in range(2))
    assert torch.equal(first.points, second.points)
    x = first.points[1]
    assert torch.equal(model.view.mlps[0](x), model.view.mlps[0](x))
    assert net.training
    assert net.transformer.h[0].mlp.dropout.training


def test_another_dtype_is_a_copy() -> None:
    net = copy_of("llama").bfloat16()
    half_model = rs.load(net)
    points = half_model.trace([3, 4, 5]).points
    model = rs.load(net, dtype="float32")
    assert {x.dtype for x in net.parameters()} == {torch.bfloat16}
    assert model.view.facts["dtype"] == "float32"
    assert torch.equal(half_model.trace([3, 4, 5]).points, points)
    assert model.network.lm_head.weight is not net.lm_head.weight


def test_a_copy_keeps_tied_weights_tied() -> None:
    net = copy_of("gpt2")
    half = rs.load(net, dtype="bfloat16").network
    assert net.lm_head.weight is net.transformer.wte.weight
    assert half.lm_head.weight is half.transformer.wte.weight
    assert half.lm_head.weight.dtype == torch.bfloat16


def test_the_summary_names_the_dtype_of_the_network() -> None:
    assert "bfloat16 on cpu" in repr(rs.load(copy_of("llama").bfloat16()))


def step(net: nn.Module) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.tensor([[3, 4, 5]])).logits.square().sum().backward()
    optimiser.step()


def write_data(net: nn.Module) -> None:
    for weight in net.parameters():
        weight.data.mul_(1.5)


def replace_weight(net: Any) -> None:
    net.model.layers[0].mlp.up_proj.weight = nn.Parameter(torch.zeros_like(net.model.layers[0].mlp.up_proj.weight))


def replace_module(net: Any) -> None:
    net.model.layers[1].self_attn.q_proj = nn.Linear(32, 32)


def replace_data(net: Any) -> None:
    net.lm_head.weight.data = torch.zeros_like(net.lm_head.weight)


@pytest.mark.parametrize("change", [step, write_data, replace_weight, replace_module, replace_data])
def test_changed_weights_are_refused_and_a_new_load_describes_them(change: Callable[[Any], None]) -> None:
    net = copy_of("llama")
    model = rs.load(net)
    trace = model.trace([3, 4, 5, 6])
    change(net)
    for call in (
        lambda: model.trace([3, 4]),
        lambda: model.run([3, 4]),
        lambda: model.view.head(0, 0),
        lambda: rs.trajectory(trace),
        lambda: rs.operators(trace.view),
        lambda: rs.surgery(model, [3, 4, 5], M="symmetric"),
    ):
        with pytest.raises(rs.RheoscopeError, match=OUTDATED):
            call()
    fresh = rs.load(net)
    assert fresh.trace([3, 4]).facts["weights"] != trace.facts["weights"]


def test_restored_weights_are_current_again() -> None:
    net = copy_of("llama")
    model = rs.load(net)
    saved = net.lm_head.weight.detach().clone()
    points = model.trace([3, 4]).points
    with torch.no_grad():
        net.lm_head.weight.zero_()
        net.lm_head.weight.copy_(saved)
    assert torch.equal(model.trace([3, 4]).points, points)


class LowRankAdapter(nn.Module):
    """A linear map plus a low-rank one that is 0 at the start."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias, self.out_features = base, base.weight, base.bias, base.out_features
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_an_adapter_that_was_trained_since_is_never_ignored() -> None:
    net = copy_of("llama")
    net.model.layers[0].self_attn.q_proj = LowRankAdapter(net.model.layers[0].self_attn.q_proj)
    model = rs.load(net)
    nn.init.ones_(net.model.layers[0].self_attn.q_proj.up.weight)
    with pytest.raises(rs.RheoscopeError, match=OUTDATED):
        model.trace([3, 4])
    with pytest.raises(rs.RheoscopeError):
        rs.load(net)


def test_a_sample_sees_its_tensor_at_any_stride() -> None:
    for x in (torch.zeros(5, 7), torch.zeros(7, 5).T, torch.zeros(4, 6, 8)[:, ::2], torch.zeros(3, 3).bfloat16()):
        sample = sample_of(x)
        x.fill_(1)
        assert sample.any()
        assert sample.numel() <= 16


def test_a_forward_pass_does_not_change_the_snapshot() -> None:
    net = copy_of("llama_yarn")
    snapshot = take_snapshot(net, lambda: "another digest", "the digest")
    net(torch.arange(3, 30)[None])
    assert snapshot.is_current()


class Wrapper(nn.Module):
    """A module around another one, without its attributes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def wrapped_projection() -> Any:
    net = copy_of("llama")
    net.model.layers[0].self_attn.q_proj = Wrapper(net.model.layers[0].self_attn.q_proj)
    return net


def on_meta_device() -> Any:
    with torch.device("meta"):
        return hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))


def quantised() -> Any:
    net = copy_of("llama")
    net.lm_head.weight = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    return net


UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "no layers": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=0, vocab_size=40)), "0 layers, expected at least 1"),
    "negative": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=-1, vocab_size=40)), "-1 layers, expected at least"),
    "quantised": (quantised, "is quantised"),
    "meta": (on_meta_device, "on the meta device"),
    "wrapper": (wrapped_projection, "cannot be described .AttributeError: 'Wrapper' object has no"),
    "chunks": (
        lambda: hf.BertModel(hf.BertConfig(**PLAIN, chunk_size_feed_forward=3)),
        "chunk_size_feed_forward is 3",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_network_that_cannot_be_described_is_refused_in_one_line(name: str) -> None:
    make_network, message = UNSUPPORTED[name]
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        rs.load(make_network())
    assert "\n" not in str(error.value)


def test_the_head_of_a_pretraining_model_gives_the_logits() -> None:
    net = hf.BertForPreTraining(hf.BertConfig(**PLAIN)).eval()
    expected = net(torch.tensor([[3, 4, 5]])).prediction_logits[0]
    assert torch.equal(rs.load(net).run([3, 4, 5]), expected)


@pytest.mark.parametrize(
    "make_network",
    [
        lambda: hf.BertForPreTraining(hf.BertConfig(**PLAIN)),
        lambda: hf.BertForMaskedLM(hf.BertConfig(**PLAIN)).bfloat16(),
        lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**PLAIN | {"pad_token_id": 1, "bos_token_id": 0})),
    ],
)
def test_the_logit_lens_of_a_masked_language_model_ends_at_its_own_prediction(make_network: Callable[[], Any]) -> None:
    net = make_network().eval()
    logits = net(torch.tensor([[3, 4, 5]]))[0][0, 1].detach().float()
    lens = rs.readout(rs.load(net).trace([3, 4, 5]), token=1)
    assert torch.allclose(torch.tensor(lens.top_probabilities.values[-1]), logits.softmax(-1).topk(5).values, rtol=1e-5)
    assert int(lens.attrs["target"]) == int(logits.argmax())
    assert math.isclose(float(lens.logit_above_mean), float(logits.max() - logits.mean()), rel_tol=1e-5)
    assert "attribution" not in lens
    assert "log_probability_next" not in lens


def test_an_encoder_without_a_prediction_head_has_no_logit_lens() -> None:
    model = rs.load(hf.BertModel(hf.BertConfig(**PLAIN)).eval())
    with pytest.raises(rs.RheoscopeError, match="has no unembedding, so it predicts no tokens"):
        rs.readout(model.trace([3, 4, 5]))


def test_texts_may_be_outputs_of_a_tokenizer() -> None:
    model = rs.load(network("llama"), tokenizer=tokenizer())
    points = model.trace("w5 w6").points
    encoding = model.tokenizer("w5 w6", return_tensors="pt")
    padded = model.tokenizer(["w5 w6"], return_tensors="pt", padding="max_length", max_length=9)
    for text in (encoding, encoding["input_ids"], padded, model.tokenizer("w5 w6")):
        assert torch.equal(model.trace(text).points, points)
    with pytest.raises(rs.RheoscopeError, match=r"got torch.int64 of shape \(2, 3\)"):
        model.trace(torch.ones(2, 3, dtype=torch.long))


TAKING_TEXTS: dict[str, Callable[[Any, Any], Any]] = {
    "boundary": lambda model, text: rs.boundary(model, [text, text], iterations=2),
    "decay": lambda model, text: rs.decay(model, text, M="symmetric"),
    "faithfulness": lambda model, text: rs.faithfulness(model, text, draws=0),
    "prefix_stability": lambda model, text: rs.prefix_stability(model, text, min_keys=3, keep_massive=True),
    "relation_swap": lambda model, text: rs.relation_swap(model, model.trace(text), text, draws=0),
    "surgery": lambda model, text: rs.surgery(model, text, M="symmetric"),
    "trace": lambda model, text: model.trace(text),
    "trace_under": lambda model, text: rs.trace_under(model, text, M="symmetric"),
}


@pytest.mark.parametrize("name", TAKING_TEXTS)
def test_a_trace_stands_for_its_text(name: str) -> None:
    model = rs.load(Transformer(Config(vocabulary=40, width=16, depth=2, heads=2)))
    ids = [3, 9, 4, 7, 5, 11, 6, 8, 12, 3, 9, 5]
    expected, result = (TAKING_TEXTS[name](model, text) for text in (ids, model.trace(ids)))
    if isinstance(result, Trace):
        assert torch.equal(result.points, expected.points)
    else:
        assert result.drop_attrs().equals(expected.drop_attrs())


def test_a_trace_of_another_model_is_no_text() -> None:
    first, second = (rs.load(network(name)) for name in ("llama", "mistral"))
    with pytest.raises(rs.RheoscopeError, match="comes from weights"):
        second.trace(first.trace([3, 4]))


def words_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "keys": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_lost_text_is_reported_and_a_text_without_tokens_is_refused() -> None:
    model = rs.load(network("llama"), tokenizer=words_tokenizer())
    with pytest.warns(LostTextWarning, match="the tokenizer lost 7 of 14 characters: cabinet"):
        model.trace("the cabinet keys")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.trace("the keys")
    with pytest.raises(rs.RheoscopeError, match="cannot represent the text"):
        model.trace("cabinet table")


def test_only_white_space_may_be_left_out() -> None:
    assert lost_characters("a b", [(0, 1), (2, 3)]) == ""
    assert lost_characters("a bc", [(0, 1)]) == "bc"


@pytest.mark.filterwarnings("ignore::rheoscope.running.lost_text.LostTextWarning")
def test_the_studio_names_the_characters_that_the_tokenizer_drops() -> None:
    def load_words(source: str | None, **options: Any) -> Any:
        return rs.load(network("llama"), tokenizer=words_tokenizer())

    with running_studio(load=load_words) as (_, client):
        lost = client.get(f"/api/traces/{post_text(client, 'the cabinet keys')}").json()["lost"]
        assert render_text(lost) == "the tokenizer lost 7 of 14 characters: cabinet"
        assert client.get(f"/api/traces/{post_text(client, 'the keys')}").json()["lost"] is None
