"""Healing: the change at step 0 is exact, arms differ only by it, finished arms are kept, and the weights are restored."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import rheoscope as rs
from rheoscope.covers.head_replacement import plan_edits, replacement_edit
from rheoscope.covers.text_batches import next_token_losses
from rheoscope.learn.healing import (
    ARMS,
    UNTOUCHED,
    HealingSettings,
    heal,
    held_out_loss,
    make_arm_edits,
    read_healing,
    sample_batch,
    shares_weights,
    split_windows,
    symmetrising_change,
    tokens_until_recovery,
    train_arm,
)
from rheoscope.learn.healing_report import build_table, run_healing, tokenise_files
from rheoscope.models.cuda_graph_steps import Recorder, reset_accumulate_grad
from rheoscope.report.run_report import OutputFiles
from rheoscope.shapes import RheoscopeError
from rheoscope.space.bilinear_form import heads_form, operator_at_offset
from tests import cases
from tests.models.cases import network
from tests.pretrained.cases import VOCABULARY, gap
from tests.waiting import WaitRecorder

SETTINGS = HealingSettings(steps=2, batch=2, length=8, rate=1e-3, every=1, held_out=3)


def tokens(n: int = 80, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (n,), generator=Generator().manual_seed(seed))


@pytest.fixture
def model() -> Any:
    return rs.load(copy.deepcopy(network("own", torch.float64)))


def scores_changed(model: Any, edits: Any, ids: Tensor) -> Tensor:
    return model.run_batch(ids[None], edits)[0]


def test_the_change_at_step_0_symmetrises_M(model: Any) -> None:
    """In the first layer, (x̂ − x̄) ½(M(δ)ᵀ − M(δ)) (x̂ − x̄)ᵀ is added to the scores, pair by pair."""
    ids = tokens(8)
    first_batch = sample_batch(tokens(64).view(-1, 8), SETTINGS, 0)
    edits = make_arm_edits(model, "symmetric", first_batch, 0)
    heads = model.view.layer_heads[0]
    traces = model.trace(list(first_batch))
    mean = torch.cat([heads.norm.normalise(trace.layer_input(0)) for trace in traces]).mean(0)
    x = model.trace(ids).layer_input(0)
    x_centred, score_changes = heads.norm.normalise(x) - mean, []
    for offset in range(-7, 8):
        M = operator_at_offset(heads, heads_form(heads), offset).dense()
        score_changes.append(x_centred @ (0.5 * (M.mT - M)) @ x_centred.mT)
    added = torch.stack([torch.stack([score_changes[i - j + 7][:, i, j] for j in range(8)], -1) for i in range(8)], -2)
    weights = torch.stack([model.trace(ids).scores(0, head) for head in range(4)]) + added
    weights = weights.masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf).softmax(-1)
    _, _, v = heads.qkv(x)
    expected = (weights.to(v.dtype) @ v[0].repeat_interleave(2, 0) @ heads.W_O).sum(0)
    after = model.trace(ids, edit={0: edits[0]}).points[1] - x
    assert gap(after, expected) <= 1e-5


@torch.no_grad()
def test_symmetric_kept_follows_the_weights(model: Any) -> None:
    heads = model.view.layer_heads[1]
    form = symmetrising_change(heads)
    for _ in range(2):
        M = operator_at_offset(heads, heads_form(heads), 2).dense().detach()
        edited_M = M + operator_at_offset(heads, form(), 2).dense()
        assert gap(edited_M, edited_M.mT) <= 1e-10
        model.network.stack.blocks[1].attention.read.weight.add_(0.1 * torch.randn(64, 32, dtype=torch.float64))
    assert gap(edited_M, 0.5 * (M + M.mT)) <= 1e-10


def test_a_fixed_change_does_not_follow_the_weights(model: Any) -> None:
    first_batch = sample_batch(tokens(64).view(-1, 8), SETTINGS, 0)
    edits, logits_before = make_arm_edits(model, "symmetric", first_batch, 0), scores_changed(model, {}, tokens(8))
    initial_factors = [
        term.left.clone()
        for plan in plan_edits(model.view, {0: [0, 1, 2, 3]}, "symmetric", None)
        for term in replacement_edit(plan, Generator()).form
    ]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    current_factors = [
        term.left
        for plan in plan_edits(model.view, {0: [0, 1, 2, 3]}, "symmetric", None)
        for term in replacement_edit(plan, Generator()).form
    ]
    assert gap(current_factors[0], initial_factors[0]) > 0.1
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.div_(1.5)
    assert (
        gap(
            scores_changed(model, make_arm_edits(model, "symmetric", first_batch, 0), tokens(8)),
            scores_changed(model, edits, tokens(8)),
        )
        <= 1e-9
    )
    assert gap(scores_changed(model, {}, tokens(8)), logits_before) <= 1e-9


def test_every_arm_trains_and_the_weights_are_restored(model: Any, tmp_path: Path) -> None:
    weights_before = [p.detach().clone() for p in model.network.parameters()]
    measurements: list[Any] = []
    result = heal(model, tokens(), tmp_path, SETTINGS, on_measurement=lambda *x: measurements.append(x))
    assert all(torch.equal(p, q) for p, q in zip(model.network.parameters(), weights_before, strict=True))
    assert result.arm.values.tolist() == list(ARMS)
    assert result.tokens.values.tolist() == [0, 16, 32]
    assert len(measurements) == 3 * len(ARMS)
    initial_losses = result.loss[:, 0].values
    assert initial_losses[1] == pytest.approx(initial_losses[2])  # the same change at step 0
    assert len({round(float(x), 6) for x in initial_losses}) == len(ARMS) - 1
    assert bool((abs(result.loss[:, -1] - result.loss[:, 0]) > 1e-6).all())
    assert abs(float(result.loss[1, -1] - result.loss[2, -1])) > 1e-9
    assert float(result.tokens_to_heal[0]) == float(result.tokens_to_catch_up[0]) == 0
    new_measurements: list[Any] = []
    assert heal(model, tokens(), tmp_path, SETTINGS, on_measurement=lambda *x: new_measurements.append(x)).equals(
        result
    )
    assert not new_measurements
    with pytest.raises(RheoscopeError, match=r"made with rate=0.001, now rate=0.01; choose another folder"):
        heal(model, tokens(), tmp_path, HealingSettings(**{**SETTINGS.__dict__, "rate": 0.01}))


def test_the_untouched_arm_equals_plain_training(model: Any) -> None:
    """Against an explicit training loop."""
    train_windows, held_out = split_windows(tokens(), SETTINGS)
    network_copy = copy.deepcopy(model.network)
    measurements = train_arm(model, {}, train_windows, held_out, SETTINGS, lambda *x: None)
    optimiser = torch.optim.AdamW(network_copy.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.0)
    for step in range(2):
        x = sample_batch(train_windows, SETTINGS, step)
        torch.nn.functional.cross_entropy(network_copy(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(network_copy.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(
            network_copy(held_out)[:, :-1].flatten(0, 1), held_out[:, 1:].flatten()
        )
    assert measurements["loss"][-1] == pytest.approx(float(expected), abs=1e-9)
    assert held_out_loss(model, {}, held_out, 2, Recorder()) == pytest.approx(measurements["loss"][0])


def test_tokens_until_recovery() -> None:
    assert tokens_until_recovery([0, 5, 9], [1.2, 1.01, 1.0], [1.0, 1.0, 1.0]) == 5
    assert tokens_until_recovery([0, 5], [1.2, 1.1], [1.0, 1.09]) == 5
    assert math.isnan(tokens_until_recovery([0, 5], [1.2, 1.1], [1.0, 1.0]))


def test_unusable_settings_are_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="unknown arm 'asymmetric'"):
        heal(model, tokens(), tmp_path, SETTINGS, ["asymmetric"])
    with pytest.raises(
        RheoscopeError, match=r"has 2 windows of 8 tokens, expected at least 3 held-out windows .*; add data"
    ):
        heal(model, tokens(16), tmp_path, SETTINGS)
    with pytest.raises(RheoscopeError, match="has no results of heal"):
        read_healing(tmp_path)
    with pytest.raises(RheoscopeError, match="length is too small, got 1; type length=256"):
        HealingSettings(length=1)
    half_model = rs.load(copy.deepcopy(network("own")), dtype="bfloat16")
    with pytest.raises(RheoscopeError, match="this model's M is a copy") as error:
        heal(half_model, tokens(), tmp_path / "half", SETTINGS)
    assert error.value.on("shell").endswith("; type --arms symmetric,size,cloud,spectrum")
    assert not (tmp_path / "half").exists()


SHARED_WEIGHTS = ["gpt2", "llama", "qwen3", "neox", "opt", "phi3"]


@torch.no_grad()
@pytest.mark.parametrize("name", [*SHARED_WEIGHTS, "gemma3"])
def test_M_stays_symmetric_where_it_shares_the_weights(name: str) -> None:
    """Gemma's gains are 1 + w, so its View holds copies and it is refused."""
    model = rs.load(copy.deepcopy(cases.network(name)))
    heads = model.view.layer_heads[1]
    assert shares_weights(model, heads) == (name in SHARED_WEIGHTS)
    form = symmetrising_change(heads)
    for parameter in model.network.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=Generator().manual_seed(0)))
    M = operator_at_offset(
        rs.load(model.network).view.layer_heads[1], heads_form(rs.load(model.network).view.layer_heads[1]), 2
    ).dense()
    edited_M = M + operator_at_offset(heads, form(), 2).dense()
    assert (gap(edited_M, edited_M.mT) <= 1e-5) == (name in SHARED_WEIGHTS)


def test_gradients_are_accumulated_by_new_nodes() -> None:
    """The node of an earlier tensor belongs to the stream of that moment and must not be reused."""
    weight = torch.nn.Parameter(torch.arange(4.0))
    dependent = 2 * weight
    (old_node, _), *_ = dependent.grad_fn.next_functions
    reset_accumulate_grad([weight])
    loss = (3 * weight).sum()
    (new_node, _), *_ = loss.grad_fn.next_functions[0][0].next_functions
    assert new_node is not old_node
    loss.backward()
    dependent.sum().backward()
    assert weight.tolist() == [0, 1, 2, 3]
    assert weight.grad.tolist() == [5] * 4


@pytest.mark.parametrize("name", ["llama", "neox", "opt"])
def test_no_gradient_of_a_step_passes_through_the_view(name: str) -> None:
    """Otherwise a step could not be recorded on a GPU. Each weight has one accumulation node, and it is new."""
    model = rs.load(copy.deepcopy(cases.network(name)))
    batch = sample_batch(split_windows(tokens(), SETTINGS)[0], SETTINGS, 0)
    for arm in ARMS:
        edits = make_arm_edits(model, arm, batch, 0)
        reset_accumulate_grad(model.network.parameters())
        with torch.enable_grad():
            nodes = accumulation_nodes(next_token_losses(model.run_batch(batch, edits), batch).mean())
        assert len(nodes) == len({id(node.variable) for node in nodes}), arm


def accumulation_nodes(loss: Tensor) -> set[Any]:
    """The nodes that accumulate gradients."""
    visited, pending = set[Any](), [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in visited:
            visited.add(node)
            pending += [next_node for next_node, _ in node.next_functions]
    return {node for node in visited if type(node).__name__ == "AccumulateGrad"}


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("The keys to the cabinet are on the table. " * 12)
    settings, files = HealingSettings(1, 1, 8, 1e-4, 1, 2), OutputFiles(tmp_path / "h.json", None, tmp_path / "h.html")
    run_healing(None, "cpu", [tmp_path / "a.txt"], tmp_path / "out", settings, ["size"], files)
    output = capsys.readouterr()
    assert "untouched" in output.out
    assert "size: held-out loss" in output.err
    assert json.loads((tmp_path / "h.json").read_text())["healing"]["coords"]["arm"]["data"] == ["untouched", "size"]
    assert len(build_table(read_healing(tmp_path / "out")).rows) == 2
    assert len(rs.plot(read_healing(tmp_path / "out")).axes) == 1
    assert len(tokenise_files(rs.load(), [tmp_path / "a.txt"])) > 80


def test_a_mediawiki_dump_is_read_as_plain_text(tmp_path: Path) -> None:
    page = "<page>\n<title>Key</title>\n<text>A key is a [[thing]]. " + "It is old. " * 20 + "</text>\n</page>\n"
    (tmp_path / "dump.xml").write_text(f"<mediawiki>\n{page}{page}</mediawiki>\n")
    model = rs.load()
    text = "".join(model.decode(int(token)) for token in tokenise_files(model, [tmp_path / "dump.xml"]))
    assert text.count("A key is a thing. It is old.") == 2
    assert "[" not in text


def test_no_arm_adds_a_device_synchronisation() -> None:
    """Otherwise its steps could not be recorded on a GPU.

    Hugging Face reads its positions once, but not while recording.
    """
    model = rs.load(copy.deepcopy(cases.network("llama")))
    batch = sample_batch(split_windows(tokens(), SETTINGS)[0], SETTINGS, 0)
    waits = {}
    for arm in ARMS:
        edits = make_arm_edits(model, arm, batch, 0)
        with WaitRecorder() as recorder, torch.enable_grad():
            next_token_losses(model.run_batch(batch, edits), batch).mean().backward()
        waits[arm] = recorder.operations
    assert all(arm_waits == waits[UNTOUCHED] for arm_waits in waits.values()), waits
    assert len(waits[UNTOUCHED]) <= 1
