"""Tests of `patch`: hand-written hooks on five architectures, laws, metrics, answers and refused input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rheoscope as rs
from rheoscope.covers.patch import patched_runs
from rheoscope.covers.patch.metrics import answer_token
from rheoscope.shapes import RheoscopeError
from tests.cases import default, double, network, text

LAYER, HEAD = 1, 1
CLEAN, CORRUPT = text().tolist(), text(1).tolist()
PARTS = {
    "gpt2": ("transformer.h.1", "attn.c_proj", "mlp"),
    "llama": ("model.layers.1", "self_attn.o_proj", "mlp"),
    "gemma3": ("model.layers.1", "self_attn.o_proj", "post_feedforward_layernorm"),
    "qwen3": ("model.layers.1", "self_attn.o_proj", "mlp"),
    "neox": ("gpt_neox.layers.1", "attention.dense", "mlp"),
}
"""Architecture → block, the projection of all heads' outputs, and the module whose output is the MLP update."""


class PlainHooks:
    """Patching by forward hooks on the network alone."""

    def __init__(self, name: str) -> None:
        self.network = network(name, torch.float64).eval()
        block, projection, mlp = PARTS[name]
        self.block = self.network.get_submodule(block)
        self.projection, self.mlp = self.block.get_submodule(projection), self.block.get_submodule(mlp)

    def log_probs(self, ids: list[int]) -> Tensor:
        return self.network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    def recorded(self, ids: list[int], register: Callable[[Callable[[Tensor], Tensor]], Any]) -> Tensor:
        seen: list[Tensor] = []
        handle = register(lambda x: (seen.append(x.clone()), x)[1])
        self.log_probs(ids)
        handle.remove()
        return seen[0]

    def patched(
        self,
        base: list[int],
        donor: list[int],
        register: Callable[[Callable[[Tensor], Tensor]], Any],
        write: Callable[[Tensor, Tensor], None],
    ) -> Tensor:
        """The base run in which `write(x, donor_x)` changes what passes a hook."""
        donor_x = self.recorded(donor, register)

        def change(x: Tensor) -> Tensor:
            changed = x.clone()
            write(changed, donor_x)
            return changed

        handle = register(change)
        log_probs = self.log_probs(base)
        handle.remove()
        return log_probs

    def on_head_outputs(self, change: Callable[[Tensor], Tensor]) -> Any:
        return self.projection.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))

    def on_mlp(self, change: Callable[[Tensor], Tensor]) -> Any:
        return self.mlp.register_forward_hook(lambda module, args, out: change(out))

    def on_block(self, change: Callable[[Tensor], Tensor]) -> Any:
        return self.block.register_forward_hook(
            lambda module, args, out: (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)
        )


@pytest.mark.parametrize("name", PARTS)
@torch.no_grad()
def test_effects_equal_those_of_hand_written_hooks(name: str) -> None:
    hooks, model = PlainHooks(name), double(name)
    result = rs.patch(model, model.trace(CLEAN), CORRUPT, top=model.view.layers * model.view.heads)
    clean, corrupt = hooks.log_probs(CLEAN), hooks.log_probs(CORRUPT)
    answer, other_answer = int(clean.argmax()), int(corrupt.argmax())
    if answer == other_answer:
        other_answer = int(corrupt.topk(2).indices[1])

    def measure(log_probs: Tensor) -> Tensor:
        return log_probs[answer] - log_probs[other_answer]

    width = hooks.recorded(CLEAN, hooks.on_head_outputs).shape[-1] // model.view.heads
    columns, token = slice(HEAD * width, (HEAD + 1) * width), 5

    def write_head(x: Tensor, donor: Tensor) -> None:
        x[..., columns] = donor[..., columns]

    def write_head_token(x: Tensor, donor: Tensor) -> None:
        x[:, token, columns] = donor[:, token, columns]

    def write_token(x: Tensor, donor: Tensor) -> None:
        x[:, token] = donor[:, token]

    places = {
        "output": (hooks.on_head_outputs, write_head, {"layer": LAYER, "head": HEAD}),
        "head_token": (hooks.on_head_outputs, write_head_token, {"strong_head": f"L{LAYER}.H{HEAD}", "token": token}),
        "mlp": (hooks.on_mlp, write_token, {"layer": LAYER, "token": token}),
        "stream": (hooks.on_block, write_token, {"step": f"L{LAYER}.resid_post", "token": token}),
    }
    total = measure(clean) - measure(corrupt)
    for field, (register, write, place) in places.items():
        restored = measure(hooks.patched(CORRUPT, CLEAN, register, write))
        disrupted = measure(hooks.patched(CLEAN, CORRUPT, register, write))
        expected = [(restored - measure(corrupt)) / total, (measure(clean) - disrupted) / total]
        effects = result[field].sel(place)
        assert effects.values.tolist() == pytest.approx([float(effect) for effect in expected], abs=1e-6), field


@torch.no_grad()
def test_weights_and_values_are_patched_alone() -> None:
    model = double("gpt2")
    clean, corrupt = model.trace(CLEAN), model.trace(CORRUPT)
    result = rs.patch(model, clean, CORRUPT)
    A, B = clean.weights(LAYER, HEAD), corrupt.weights(LAYER, HEAD)
    v, w = (model.view.layer_heads[LAYER].qkv(trace.layer_input(LAYER))[2][0, HEAD] for trace in (clean, corrupt))
    log_probs = torch.stack([model.run(ids)[-1].log_softmax(-1) for ids in (CLEAN, CORRUPT)])
    answers = [int(row.argmax()) for row in log_probs]

    def measure(logits: Tensor) -> Tensor:
        return logits[answers[0]] - logits[answers[1]]

    total = measure(log_probs[0]) - measure(log_probs[1])
    for name, output in {"weights": A @ w, "values": B @ v}.items():
        patched = model.run(CORRUPT, edit={(LAYER, HEAD): lambda q, k, value, mechanism, x=output: x[None, None]})[-1]
        effect = (measure(patched) - measure(log_probs[1])) / total
        assert float(result[name].sel(direction="restore", layer=LAYER, head=HEAD)) == pytest.approx(float(effect))


@pytest.mark.parametrize("name", ["llama", "neox", "own_alibi"])
def test_the_last_point_carries_everything_and_later_tokens_nothing(name: str) -> None:
    model, token = double(name), 9
    result = rs.patch(model, model.trace(CLEAN), CORRUPT, token=token)
    assert result.stream[:, -1, token].values.tolist() == pytest.approx([1, 1])
    assert abs(result.stream[:, :, token + 1 :]).max() < 1e-12
    assert abs(result.mlp[:, :, token + 1 :]).max() < 1e-12
    assert abs(result.stream[:, -1, :token]).max() < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("metric", ["logit_diff", "prob", "kl", "loss"])
def test_metrics_of_both_texts(metric: str) -> None:
    model = double("llama")
    p, q = (model.run(ids)[-1].log_softmax(-1) for ids in (CLEAN, CORRUPT))
    a, b = int(p.argmax()), int(q.argmax())
    expected = {
        "logit_diff": (p[a] - p[b], q[a] - q[b]),
        "prob": (p[a].exp(), q[a].exp()),
        "kl": (torch.tensor(0.0), (p.exp() * (p - q)).sum()),
        "loss": (-p[a], -q[a]),
    }
    assert a != b
    result = rs.patch(model, model.trace(CLEAN), CORRUPT, metric=metric, top=1)
    both_texts = [float(result.metric_text), float(result.metric_other)]
    assert both_texts == pytest.approx([float(value) for value in expected[metric]], abs=1e-9)
    assert float(result.stream.sel(direction="restore")[-1, -1]) == pytest.approx(1)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = double("llama")
    one_batch = rs.patch(model, model.trace(CLEAN), CORRUPT)
    monkeypatch.setattr(patched_runs, "TOKENS_PER_RUN", 3 * len(CLEAN))
    for name, values in rs.patch(model, model.trace(CLEAN), CORRUPT).data_vars.items():
        assert values.values == pytest.approx(one_batch[name].values, abs=1e-9), name


def test_the_default_model_moves_a_name_through_values() -> None:
    trace = default().trace("He lived in London. She lived in")
    result = rs.patch(default(), trace, "He lived in Paris. She lived in", answers=" London| Paris")
    assert result.attrs["answers"] == " London| Paris"
    assert str(result.token_text.values[5]) == " London/ Paris"
    restored = result.sel(direction="restore")
    assert float(restored.stream.sel(step="L3.resid_post")[5]) > 0.8
    assert float(restored.stream.sel(step="L4.resid_post")[-1]) > 0.7
    assert float(restored["values"].sum()) > 1 > 0.1 > float(abs(restored["weights"].sum()))


def test_other_input_is_refused_in_one_line() -> None:
    model = double("llama")
    with pytest.raises(RheoscopeError, match=r"other must have as many tokens as the text \(18\), got 2"):
        rs.patch(model, model.trace(CLEAN), [3, 4])
    trace = default().trace("He lived in London")
    refused = {
        "London| Paris": r"the answer 'London' is 2 tokens \('L' 'ondon'\), expected one token of the model's vocabulary",
        " London": "answers must be two, separated by |, got ' London'",
        " London| London": "the two answers are the same token ' London'",
    }
    for answers, pattern in refused.items():
        with pytest.raises(RheoscopeError, match=pattern.replace("|", r"\|")):
            rs.patch(default(), trace, "He lived in Paris", answers=answers)
    with pytest.raises(RheoscopeError, match="metric must be one of logit_diff, prob, kl, loss, got 'accuracy'"):
        rs.patch(default(), trace, "He lived in Paris", metric="accuracy")
    with pytest.raises(RheoscopeError, match="has no unembedding, expected a language model"):
        rs.patch(double("bert"), double("bert").trace(CLEAN))
    assert default().token_strings([answer_token(default(), " Paris")]) == [" Paris"]
