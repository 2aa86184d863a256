"""The monitor in loops and trainers: it changes nothing, follows the weights, and reports planted faults at the next check."""

import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import rheoscope as rs
from rheoscope.learn.monitor import monitor as monitor_module
from rheoscope.learn.monitor.fixed_batch import MAX_TEXTS, random_texts, texts_of
from rheoscope.learn.monitor.quantities import measure
from rheoscope.models.transformer import build
from tests.attention.cases import without_jaxtyping_checks
from tests.learn.monitor.cases import TEXTS, batch, equal, network, small_gpt2, train
from tests.models.runs import translator
from tests.network_state import same_state, state_of
from tests.pretrained.cases import LENGTH, VOCABULARY

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that the monitor logs."""
    logged = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    monitor_module.LOGGER.addHandler(handler)
    yield logged
    monitor_module.LOGGER.removeHandler(handler)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Shape checks double the time, and torch.compile cannot trace them."""
    with without_jaxtyping_checks():
        yield


def close(first: Any, second: Any) -> bool:
    """Whether two readings have the same values."""
    assert first.values.keys() == second.values.keys()
    return all(np.allclose(first.values[name], second.values[name], atol=1e-5) for name in first.values)


# It changes nothing


@pytest.mark.usefixtures("unchecked")
def test_the_weights_are_bit_equal_with_and_without_it() -> None:
    plain, observed = small_gpt2(), small_gpt2()
    monitor = rs.Monitor(observed, every=2)
    assert equal(train(plain), train(observed, monitor))
    assert [reading.step for reading in monitor.readings] == [2, 4, 6]
    assert all(reading.loss and reading.seconds for reading in monitor.readings)


def test_a_check_leaves_gradients_modes_and_the_random_state() -> None:
    net = small_gpt2()
    net.transformer.h[0].attn.eval()  # frozen by its owner
    net(input_ids=batch(0), labels=batch(0)).loss.backward()
    monitor = rs.Monitor(net, every=1)
    before, random_state = state_of(net), torch.get_rng_state()
    gradients = [(x.grad, x.grad.clone()) for x in net.parameters() if x.grad is not None]
    monitor.step(1.0)
    assert len(monitor.readings) == 1
    assert same_state(before, state_of(net))
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(x.grad is grad for x, (grad, _) in zip(net.parameters(), gradients, strict=True))
    assert all(torch.equal(grad, values) for grad, values in gradients)


# It follows the weights


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_readings_are_those_of_the_current_weights(name: str) -> None:
    """BLOOM's slopes are copies, so its View is described again."""
    net = network(name).train() if name != "bloom" else bloom()
    monitor = rs.Monitor(net, every=3, texts=TEXTS)
    train(net, monitor, steps=3)
    assert close(monitor.readings[-1], measure(rs.load(net).trace(TEXTS), 3))


def bloom() -> Any:
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": 0}
    return hf.BloomForCausalLM(
        hf.BloomConfig(n_layer=1, n_head=2, hidden_size=8, vocab_size=VOCABULARY, **special)
    ).train()


def test_half_precision_weights_are_followed() -> None:
    """The View of such a network holds float32 copies."""
    net = network("llama").bfloat16()
    monitor = rs.Monitor(net, every=1, texts=TEXTS)
    monitor.step()
    with torch.no_grad():
        net.model.layers[0].self_attn.q_proj.weight *= 4
    monitor.step()
    before, after = (reading.values["largest_logit"][0] for reading in monitor.readings)
    assert (after > 1.5 * before).all()


def test_adapters_are_followed() -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(network("llama"), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    monitor = rs.Monitor(adapted, every=1, texts=TEXTS)
    monitor.step()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            weight *= 10 if "lora_B" in name else 1
    monitor.step()
    first, second = (reading.values["stable_rank_M"] for reading in monitor.readings)
    assert not np.allclose(first, second, rtol=1e-3)
    assert close(monitor.readings[-1], measure(rs.load(adapted).trace(TEXTS), 2))


def test_a_network_that_moves_to_other_memory_is_followed() -> None:
    net = network("gpt2")
    monitor = rs.Monitor(net, every=1, texts=TEXTS)
    for weight in net.parameters():
        weight.data = weight.data.clone()
    with torch.no_grad():
        net.transformer.h[0].attn.c_attn.weight *= 2
    monitor.step()
    assert close(monitor.readings[-1], measure(rs.load(net).trace(TEXTS), 1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler reads it of every tensor
def test_a_compiled_network_is_measured_without_a_new_compilation() -> None:
    """One block is compiled, as a whole network would be, in a tenth of the time."""
    net = small_gpt2(dropout=0.0)
    net.transformer.h[1].mlp.compile(backend="eager")
    monitor = rs.Monitor(torch.compile(net, backend="eager"), every=1)  # wrapped, and called only inside
    train(net, steps=1)
    n_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    weights = train(net, monitor, steps=2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == n_graphs > 0
    assert [reading.step for reading in monitor.readings] == [1, 2]
    eager = small_gpt2(dropout=0.0)
    train(eager, steps=1)
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(weights, train(eager, steps=2), strict=True))


# Planted faults


def planted(fault: str) -> Any:
    """A network with a fault in layer 1."""
    net = small_gpt2(dropout=0.0)
    attention, width = net.transformer.h[1].attn, 4
    with torch.no_grad():
        if fault == "dead_head":
            attention.c_proj.weight[:width] = 0
        elif fault == "duplicated_head":
            for start in (0, 16, 32):
                attention.c_attn.weight[:, start + width : start + 2 * width] = attention.c_attn.weight[
                    :, start : start + width
                ]
            attention.c_proj.weight[width : 2 * width] = attention.c_proj.weight[:width]
        else:
            net.transformer.wte.weight += 100 * torch.randn(16, generator=torch.Generator().manual_seed(0))
    return net


@pytest.mark.parametrize("fault", ["dead_head", "duplicated_head", "rank_collapse"])
def test_a_planted_fault_is_reported_at_the_first_check(fault: str, lines: list[str]) -> None:
    monitor = rs.Monitor(planted(fault), every=1)
    monitor.step()
    monitor.step()
    (alarm,) = [alarm for alarm in monitor.alarms if alarm.rule == fault]
    assert alarm.step == 1
    assert (alarm.layer, alarm.head) == ((1, 0) if fault != "rank_collapse" else (0, None))
    assert lines == [alarm.line for alarm in monitor.alarms]
    assert "\n" not in alarm.line


@pytest.mark.usefixtures("unchecked")
def test_growing_scores_are_reported_long_before_the_loss_rises() -> None:
    """The whole experiment, with several seeds and healthy runs, is benchmarks/training_monitor.py."""
    net = small_gpt2(dropout=0.0)
    optimiser, monitor, losses = torch.optim.AdamW(net.parameters(), lr=1e-2), rs.Monitor(net, every=10), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(175):
        words = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:4] for _ in range(8)])
        ids = words.gather(1, torch.randint(4, (8, LENGTH), generator=generator))
        loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        with torch.no_grad():
            for block in net.transformer.h:
                block.attn.c_attn.weight[:, :32] *= 1.03
        monitor.step(loss)
    smooth = np.convolve(losses, np.ones(20) / 20, "valid")
    rise_step = 20 + int(np.nonzero(smooth > np.minimum.accumulate(smooth) + 0.1)[0][0])
    first = {
        rule: min(alarm.step for alarm in monitor.alarms if alarm.rule == rule)
        for rule in ("logit_growth", "entropy_collapse")
    }
    assert max(first.values()) + 50 <= rise_step, (first, rise_step)


# Failures


def test_a_failure_is_one_line_and_never_stops_the_training(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory left\nand more")

    net = small_gpt2()
    monitor = rs.Monitor(net, every=2)
    monkeypatch.setattr(monitor_module, "measure", fail)
    assert equal(train(net, monitor), train(small_gpt2()))
    assert lines == [f"step {step} was not measured (no memory left); the training continues" for step in (2, 4, 6)]


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "file").write_text("")
    monitor = rs.Monitor(small_gpt2(), every=1, log=tmp_path / "file")
    monitor.step()
    assert len(monitor.readings) == 1
    assert len(lines) == 1


def test_weights_that_are_not_finite_are_one_line(lines: list[str]) -> None:
    net = small_gpt2()
    monitor = rs.Monitor(net, every=1)
    net.transformer.wte.weight.data[:] = torch.nan
    monitor.step()
    assert len(lines) == 1
    assert "NaN" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"log": 3}, "log must be a folder, a TensorBoard writer or a function, got int"),
    ],
)
def test_a_wrong_setting_raises_before_the_training(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=problem):
        rs.Monitor(small_gpt2(), **arguments)


def test_networks_that_cannot_be_measured_raise_before_the_training() -> None:
    with pytest.raises(rs.RheoscopeError):
        rs.Monitor(nn.Linear(2, 2))
    with pytest.raises(rs.RheoscopeError, match="single stack of layers"):
        rs.Monitor(build(translator().config))
    pair = hf.T5ForConditionalGeneration(
        hf.T5Config(d_model=16, d_kv=4, num_heads=4, num_layers=2, vocab_size=VOCABULARY, d_ff=32)
    )
    with pytest.raises(rs.RheoscopeError, match=r"single stack of layers.*type rs.Monitor\(network.get_encoder\(\)"):
        rs.Monitor(pair)
    monitor = rs.Monitor(pair.get_encoder(), every=1, texts=TEXTS)
    monitor.step()
    assert [reading.step for reading in monitor.readings] == [1]


# Texts


def test_texts_come_from_the_batch_of_the_training() -> None:
    ids = batch(0)
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    assert [len(text) for text in texts_of({"input_ids": ids, "attention_mask": mask}) or []] == [LENGTH, 12, LENGTH]
    assert [len(text) for text in texts_of([{"input_ids": ids[0].tolist()}, {"input_ids": ids[1]}]) or []] == [
        LENGTH
    ] * 2
    assert len(texts_of((ids, ids)) or []) == 3
    assert texts_of({"pixels": ids}) is None
    assert texts_of(ids.float()) is None
    assert texts_of([]) is None


def test_random_texts_are_the_same_in_every_run() -> None:
    view = rs.load(network("gpt2")).view
    assert equal(random_texts(view), random_texts(view))
    assert len(random_texts(view)) == MAX_TEXTS


def test_texts_that_are_too_short_are_one_line(lines: list[str]) -> None:
    monitor = rs.Monitor(small_gpt2(), every=1, texts=[[1, 2, 3]])
    monitor.step()
    assert lines == [
        "step 1 was not measured (the texts of the monitor need at least 10 tokens, got 3); the training continues"
    ]


# Trainers


class Examples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = batch(index)[0]
        return {"input_ids": ids, "labels": ids}


def trained_by_transformers(folder: Path, with_monitor: bool) -> tuple[Any, Any]:
    net = small_gpt2()
    monitor = rs.Monitor(net, every=2) if with_monitor else None
    settings = {
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "seed": 1,
    }
    arguments = hf.TrainingArguments(output_dir=str(folder), max_steps=4, per_device_train_batch_size=2, **settings)
    callbacks = [] if monitor is None else [monitor]
    trainer = hf.Trainer(model=net, args=arguments, train_dataset=Examples(), callbacks=callbacks)
    trainer.remove_callback(hf.PrinterCallback)
    trainer.train()
    return net, monitor


@pytest.mark.usefixtures("unchecked")
def test_it_is_a_callback_of_the_trainer_of_transformers(tmp_path: Path) -> None:
    (plain, _), (observed, monitor) = (trained_by_transformers(tmp_path, value) for value in (False, True))
    assert equal(list(plain.parameters()), list(observed.parameters()))
    assert [reading.step for reading in monitor.readings] == [2, 4]
    assert [torch.equal(ids, Examples()[index]["input_ids"]) for index, ids in enumerate(monitor._batch)] == [True] * 4


def test_it_is_a_callback_of_lightning() -> None:
    """Lightning calls every event of its callbacks by name. With accumulated gradients, two batches are one step."""
    net = small_gpt2()
    monitor = rs.Monitor(net, every=1)
    for event in ("setup", "on_fit_start", "on_train_start", "on_before_zero_grad", "on_train_epoch_end", "teardown"):
        getattr(monitor, event)(None, None)
    for step in (0, 1, 1, 2):
        monitor.on_train_batch_end(SimpleNamespace(global_step=step), net, {"loss": torch.tensor(2.0)}, batch(0), 0)
    monitor.on_train_end(None, None)
    assert [(reading.step, reading.loss) for reading in monitor.readings] == [(1, 2.0), (2, 2.0)]
    assert torch.equal(monitor._batch[0], batch(0)[0])
    assert (monitor.state_dict(), monitor.state_key) == ({}, "rheoscope.Monitor")
    with pytest.raises(AttributeError, match="no attribute 'epochs'"):
        _ = monitor.epochs


def test_a_dataset_that_fails_costs_only_the_texts(lines: list[str]) -> None:
    monitor = rs.Monitor(small_gpt2(), every=1)
    monitor.on_train_begin(None, None, None, train_dataloader=SimpleNamespace(dataset={"a": 1}))
    monitor.step()
    assert len(lines) == 1
    assert len(monitor.readings) == 1


def test_a_copy_of_the_network_is_another_network() -> None:
    """A trainer that hands over something else is ignored."""
    net = small_gpt2()
    monitor = rs.Monitor(net, every=1)
    monitor.follow(copy.deepcopy(net))
    assert monitor._live_model.network is net
    wrapped = nn.DataParallel(net)
    monitor.follow(wrapped)
    assert monitor._live_model.network is wrapped


def test_the_cost_is_named_once(lines: list[str]) -> None:
    level = monitor_module.LOGGER.level
    monitor_module.LOGGER.setLevel(logging.INFO)
    monitor = rs.Monitor(small_gpt2(), every=1)
    for _ in range(4):
        monitor.step()
    monitor_module.LOGGER.setLevel(level)
    assert len(lines) == 1
    assert "of the training time; every=" in lines[0]
