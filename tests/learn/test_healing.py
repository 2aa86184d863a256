"""Healing: the change at step 0 is exact, arms are alike but for it, what is done is not done again, the model is as before."""

import copy
import json
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

HOW = HealingSettings(steps=2, batch=2, length=8, rate=1e-3, every=1, held_out=3)


def tokens(n: int = 80, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (n,), generator=Generator().manual_seed(seed))


@pytest.fixture
def model() -> Any:
    return rs.load(copy.deepcopy(network("own", torch.float64)))


def scores_changed(model: Any, edits: Any, ids: Tensor) -> Tensor:
    return model.run_batch(ids[None], edits)[0]


def test_the_change_at_step_0_is_a_symmetric_M(model: Any) -> None:
    """By hand in the first layer: (x̂ − x̄) ½(M(δ)ᵀ − M(δ)) (x̂ − x̄)ᵀ added to the scores, pair by pair."""
    ids = tokens(8)
    first = sample_batch(tokens(64).view(-1, 8), HOW, 0)
    edits = make_arm_edits(model, "symmetric", first, 0)
    heads = model.view.layer_heads[0]
    traces = model.trace(list(first))
    mean = torch.cat([heads.norm.normalise(one.layer_input(0)) for one in traces]).mean(0)
    x = model.trace(ids).layer_input(0)
    hat, found = heads.norm.normalise(x) - mean, []
    for offset in range(-7, 8):
        M = operator_at_offset(heads, heads_form(heads), offset).dense()
        found.append(hat @ (0.5 * (M.mT - M)) @ hat.mT)
    added = torch.stack([torch.stack([found[i - j + 7][:, i, j] for j in range(8)], -1) for i in range(8)], -2)
    weights = torch.stack([model.trace(ids).scores(0, head) for head in range(4)]) + added
    weights = weights.masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf).softmax(-1)
    _, _, v = heads.qkv(x)
    wanted = (weights.to(v.dtype) @ v[0].repeat_interleave(2, 0) @ heads.W_O).sum(0)
    after = model.trace(ids, edit={0: edits[0]}).points[1] - x
    assert gap(after, wanted) <= 1e-5


@torch.no_grad()
def test_kept_is_symmetric_whatever_the_weights_are(model: Any) -> None:
    heads = model.view.layer_heads[1]
    form = symmetrising_change(heads)
    for _ in range(2):
        M = operator_at_offset(heads, heads_form(heads), 2).dense().detach()
        total = M + operator_at_offset(heads, form(), 2).dense()
        assert gap(total, total.mT) <= 1e-10
        model.network.stack.blocks[1].attention.read.weight.add_(0.1 * torch.randn(64, 32, dtype=torch.float64))
    assert gap(total, 0.5 * (M + M.mT)) <= 1e-10


def test_a_fixed_change_does_not_follow_the_weights(model: Any) -> None:
    first = sample_batch(tokens(64).view(-1, 8), HOW, 0)
    edits, before = make_arm_edits(model, "symmetric", first, 0), scores_changed(model, {}, tokens(8))
    held = [
        term.left.clone()
        for one in plan_edits(model.view, {0: [0, 1, 2, 3]}, "symmetric", None)
        for term in replacement_edit(one, Generator()).form
    ]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    now = [
        term.left
        for one in plan_edits(model.view, {0: [0, 1, 2, 3]}, "symmetric", None)
        for term in replacement_edit(one, Generator()).form
    ]
    assert gap(now[0], held[0]) > 0.1
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.div_(1.5)
    assert (
        gap(
            scores_changed(model, make_arm_edits(model, "symmetric", first, 0), tokens(8)),
            scores_changed(model, edits, tokens(8)),
        )
        <= 1e-9
    )
    assert gap(scores_changed(model, {}, tokens(8)), before) <= 1e-9


def test_every_arm_trains_and_the_model_is_as_before(model: Any, tmp_path: Path) -> None:
    before = [p.detach().clone() for p in model.network.parameters()]
    told: list[Any] = []
    found = heal(model, tokens(), tmp_path, HOW, on_measurement=lambda *x: told.append(x))
    assert all(torch.equal(p, q) for p, q in zip(model.network.parameters(), before, strict=True))
    assert found.arm.values.tolist() == list(ARMS)
    assert found.tokens.values.tolist() == [0, 16, 32]
    assert len(told) == 3 * len(ARMS)
    at_first = found.loss[:, 0].values
    assert at_first[1] == pytest.approx(at_first[2])  # the same change at step 0
    assert len({round(float(x), 6) for x in at_first}) == len(ARMS) - 1
    assert bool((abs(found.loss[:, -1] - found.loss[:, 0]) > 1e-6).all())
    assert abs(float(found.loss[1, -1] - found.loss[2, -1])) > 1e-9
    assert float(found.tokens_to_heal[0]) == float(found.tokens_to_catch_up[0]) == 0
    again: list[Any] = []
    assert heal(model, tokens(), tmp_path, HOW, on_measurement=lambda *x: again.append(x)).equals(found)
    assert not again
    with pytest.raises(RheoscopeError, match=r"made with rate=0.001, now rate=0.01; type another --out"):
        heal(model, tokens(), tmp_path, HealingSettings(**{**HOW.__dict__, "rate": 0.01}))


def test_the_untouched_arm_is_plain_training(model: Any) -> None:
    """A loop by hand."""
    train, held = split_windows(tokens(), HOW)
    by_hand = copy.deepcopy(model.network)
    found = train_arm(model, {}, train, held, HOW, lambda *x: None)
    optimiser = torch.optim.AdamW(by_hand.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.0)
    for step in range(2):
        x = sample_batch(train, HOW, step)
        torch.nn.functional.cross_entropy(by_hand(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(by_hand(held)[:, :-1].flatten(0, 1), held[:, 1:].flatten())
    assert found["loss"][-1] == pytest.approx(float(wanted), abs=1e-9)
    assert held_out_loss(model, {}, held, 2, Recorder()) == pytest.approx(found["loss"][0])


def test_when_a_loss_is_back() -> None:
    assert tokens_until_recovery([0, 5, 9], [1.2, 1.01, 1.0], [1.0, 1.0, 1.0]) == 5
    assert tokens_until_recovery([0, 5], [1.2, 1.1], [1.0, 1.09]) == 5
    assert tokens_until_recovery([0, 5], [1.2, 1.1], [1.0, 1.0]) != tokens_until_recovery(
        [0, 5], [1.2, 1.1], [1.0, 1.0]
    )  # NaN


def test_refusals(model: Any, tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="unknown arm 'asymmetric'"):
        heal(model, tokens(), tmp_path, HOW, ["asymmetric"])
    with pytest.raises(RheoscopeError, match=r"has 2 windows of 8 tokens, 3 are held out .*; type more --data"):
        heal(model, tokens(16), tmp_path, HOW)
    with pytest.raises(RheoscopeError, match="holds no healing"):
        read_healing(tmp_path)
    with pytest.raises(RheoscopeError, match="length must be larger, got 1; type --length 256"):
        HealingSettings(length=1)
    half = rs.load(copy.deepcopy(network("own")), dtype="bfloat16")
    with pytest.raises(RheoscopeError, match=r"copies of the weights .*; type --arms symmetric,size,cloud,spectrum$"):
        heal(half, tokens(), tmp_path / "half", HOW)
    assert not (tmp_path / "half").exists()


FOLLOWS = ["gpt2", "llama", "qwen3", "neox", "opt", "phi3"]


@torch.no_grad()
@pytest.mark.parametrize("name", [*FOLLOWS, "gemma3"])
def test_what_follows_the_weights_is_symmetric_after_any_step(name: str) -> None:
    """Gemma's gains are 1 + w: its View holds copies, so it is refused instead."""
    of = rs.load(copy.deepcopy(cases.network(name)))
    heads = of.view.layer_heads[1]
    assert shares_weights(of, heads) == (name in FOLLOWS)
    form = symmetrising_change(heads)
    for parameter in of.network.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=Generator().manual_seed(0)))
    M = operator_at_offset(
        rs.load(of.network).view.layer_heads[1], heads_form(rs.load(of.network).view.layer_heads[1]), 2
    ).dense()
    total = M + operator_at_offset(heads, form(), 2).dense()
    assert (gap(total, total.mT) <= 1e-5) == (name in FOLLOWS)


def test_gradients_are_gathered_anew() -> None:
    """Not by the node that a tensor made before keeps alive, which belongs to the stream of that moment."""
    weight = torch.nn.Parameter(torch.arange(4.0))
    held = 2 * weight
    (before, _), *_ = held.grad_fn.next_functions
    reset_accumulate_grad([weight])
    loss = (3 * weight).sum()
    (after, _), *_ = loss.grad_fn.next_functions[0][0].next_functions
    assert after is not before
    loss.backward()
    held.sum().backward()
    assert weight.tolist() == [0, 1, 2, 3]
    assert weight.grad.tolist() == [5] * 4


@pytest.mark.parametrize("name", ["llama", "neox", "opt"])
def test_no_gradient_of_a_step_passes_through_the_view(name: str) -> None:
    """Else it could not be recorded on a GPU: one node gathers the gradient of each weight, and it is a new one."""
    of = rs.load(copy.deepcopy(cases.network(name)))
    batch = sample_batch(split_windows(tokens(), HOW)[0], HOW, 0)
    for arm in ARMS:
        edits = make_arm_edits(of, arm, batch, 0)
        reset_accumulate_grad(of.network.parameters())
        with torch.enable_grad():
            nodes = gatherers(next_token_losses(of.run_batch(batch, edits), batch).mean())
        assert len(nodes) == len({id(node.variable) for node in nodes}), arm


def gatherers(loss: Tensor) -> set[Any]:
    """The nodes that add to gradients."""
    seen, left = set[Any](), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [one for one, _ in node.next_functions]
    return {node for node in seen if type(node).__name__ == "AccumulateGrad"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("The keys to the cabinet are on the table. " * 12)
    how, files = HealingSettings(1, 1, 8, 1e-4, 1, 2), OutputFiles(tmp_path / "h.json", None, tmp_path / "h.html")
    run_healing(None, "cpu", [tmp_path / "a.txt"], tmp_path / "out", how, ["size"], files)
    said = capsys.readouterr()
    assert "untouched" in said.out
    assert "size: held-out loss" in said.err
    assert json.loads((tmp_path / "h.json").read_text())["healing"]["coords"]["arm"]["data"] == ["untouched", "size"]
    assert len(build_table(read_healing(tmp_path / "out")).rows) == 2
    assert len(rs.plot(read_healing(tmp_path / "out")).axes) == 1
    assert len(tokenise_files(rs.load(), [tmp_path / "a.txt"])) > 80


def test_a_dump_is_read_as_prose(tmp_path: Path) -> None:
    page = "<page>\n<title>Key</title>\n<text>A key is a [[thing]]. " + "It is old. " * 20 + "</text>\n</page>\n"
    (tmp_path / "dump.xml").write_text(f"<mediawiki>\n{page}{page}</mediawiki>\n")
    model = rs.load()
    said = "".join(model.decode(int(token)) for token in tokenise_files(model, [tmp_path / "dump.xml"]))
    assert said.count("A key is a thing. It is old.") == 2
    assert "[" not in said


def test_no_arm_waits_for_the_device_where_the_model_does_not() -> None:
    """Else its steps could not be recorded on a GPU. (Hugging Face asks its positions once, but not while it is recorded.)"""
    model = rs.load(copy.deepcopy(cases.network("llama")))
    batch = sample_batch(split_windows(tokens(), HOW)[0], HOW, 0)
    waits = {}
    for arm in ARMS:
        edits = make_arm_edits(model, arm, batch, 0)
        with WaitRecorder() as waited, torch.enable_grad():
            next_token_losses(model.run_batch(batch, edits), batch).mean().backward()
        waits[arm] = waited.operations
    assert all(own == waits[UNTOUCHED] for own in waits.values()), waits
    assert len(waits[UNTOUCHED]) <= 1
