"""Untrained models that other processes measure have the same numbers as those that this one measures."""

import gc
import weakref
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import rheoscope as rs
from rheoscope.catalogue import all_claims
from rheoscope.report import card_controls
from rheoscope.report.card_clouds import clouds_of
from rheoscope.report.card_controls import (
    ControlProcess,
    Controls,
    control_task,
    process_count,
    start_controls,
    untrained_model,
)
from rheoscope.running.runner import RunnableModel

TEXTS = [[1, 2, 3, 4, 5, 1, 2], [3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8], [1, 6, 1, 8, 0, 3]]
ROWS = {"erasure", "symmetry", "gradient"}


def tiny() -> RunnableModel:
    torch.manual_seed(0)
    return rs.load(
        GPT2LMHeadModel(
            GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=10, n_positions=32, bos_token_id=1, eos_token_id=1)
        )
    )


def controls(model: RunnableModel, count: int = 2) -> Controls:
    return Controls(model, clouds_of(model, TEXTS), all_claims(), count, 0, None, None)


def test_other_processes_measure_the_same_numbers() -> None:
    model = tiny()
    here = controls(model).mean_effects(ROWS, [])
    with start_controls(control_task(model, TEXTS, 0, None), 2, 1) as started:
        measured = [future.result() for future in started]
        assert all(values is not None and set(values) >= ROWS for values in measured)
        elsewhere = controls(model).mean_effects(ROWS, started)
    assert {name for name, _ in here} == ROWS
    assert set(elsewhere) == set(here)
    for key, means in here.items():
        torch.testing.assert_close(elsewhere[key], means, rtol=1e-5, atol=1e-7)


def test_untrained_models_exist_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing holds an untrained model after its claims: no cache, no error of a text that is too short, no cycle of references."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rs.load().tokenizer)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=len(tokenizer), n_positions=64)
    model = rs.load(GPT2LMHeadModel(config), tokenizer=tokenizer)
    texts = ["The keys to the cabinet are on the table", "A cat sat on the mat and slept", "a b a b a b a b a", "The"]
    rows = {claim.name for claim in all_claims() if claim.word_file is None}
    networks: list[weakref.ref[Any]] = []
    n_alive: list[int] = []

    def make(model: RunnableModel, index: int) -> RunnableModel:
        n_alive.append(sum(network() is not None for network in networks))
        control = untrained_model(model, index)
        networks.append(weakref.ref(control.network))
        return control

    monkeypatch.setattr(card_controls, "untrained_model", make)
    tasks = Controls(model, clouds_of(model, texts), all_claims(), 2, 0, None, None)
    gc.disable()
    try:
        effects = tasks.mean_effects(rows, [])
    finally:
        gc.enable()
    assert {name for name, _ in effects} == rows
    assert n_alive == [0, 0]


def test_what_a_process_left_is_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()

    def die(process: ControlProcess, index: int) -> Any:
        process.end()
        return original(process, index)

    original = ControlProcess.measure
    monkeypatch.setattr(ControlProcess, "measure", die)
    with start_controls(control_task(model, TEXTS, 0, None), 1, 1) as started:
        assert started[0].result() is None
        effects = controls(model, 1).mean_effects(ROWS, started)
    assert effects.keys() == controls(model, 1).mean_effects(ROWS, []).keys()


def test_processes_end_with_the_block() -> None:
    with start_controls(control_task(tiny(), TEXTS, 0, None), 4, 1) as started:
        pass
    assert all(future.cancelled() or future.result() is None for future in started)


def test_only_networks_that_a_process_can_import_are_measured_elsewhere() -> None:
    assert control_task(rs.load(), TEXTS, 0, None) is None
    with start_controls(None, 8, 4) as started:
        assert started == []
    assert process_count(tiny(), 8) == 0
