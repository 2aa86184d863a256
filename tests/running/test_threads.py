"""Threads that share a model get the results of a single thread, bit for bit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks
from rheoscope.space.model import Rewrite
from tests.models import cases as ours
from tests.pretrained import cases as theirs
from tests.pretrained.cases import LENGTH, hooks_left, text

THREADS, ROUNDS = 3, 2


def shared_model(name: str) -> Any:
    return ours.model(name) if name.startswith("own") else theirs.model(name)


def halve(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return 0.5 * mechanism.attend(q, k, v)


def negate(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
    return -out


def work(model: Any, seed: int) -> dict[str, Callable[[], Any]]:
    """One task of every kind on a text that depends on the seed."""
    ids, longer = text(seed), text(seed, 5 + seed % 9)
    batch = torch.stack([ids, ids.flip(0)])
    factor = 1 + seed / 10
    return {
        "trace": lambda: model.trace(ids, logits=True).points,
        "logits": lambda: model.run(ids),
        "batch": lambda: model.trace([ids, longer]).points[1, :, : len(longer)],
        "edit": lambda: model.run(ids, edit={(1, 2): halve}),
        "layer": lambda: model.run(longer, edit={0: negate}),
        "edited points": lambda: model.trace(ids, edit={0: negate}).points,
        "rewrite": lambda: model.run(longer, edit={0: Rewrite(lambda x, q, k, v, mechanism, out: (out, factor * x))}),
        "hooks": lambda: model.run(ids, hooks={"L0.resid_mid": lambda x: factor * x, "L1.resid_post": lambda x: -x}),
        "gradients": lambda: torch.stack(list(model.gradients(ids, lambda y: (factor * y).square().sum())[1].values())),
        "reused blocks": lambda: model.run_batch(batch, {1: negate}, block_outputs=model.block_outputs(batch)[:1]),
    }


@pytest.mark.parametrize("name", ["gpt2", "llama", "own"])
def test_parallel_tasks_equal_sequential_ones(name: str) -> None:
    model = shared_model(name)
    alone = [{name: task() for name, task in work(model, seed).items()} for seed in range(THREADS)]
    start = threading.Barrier(THREADS)

    def run_tasks(seed: int) -> list[str]:
        """The tasks with different results; every thread starts with another task."""
        tasks = list(work(model, seed).items())
        start.wait()
        return [
            task_name
            for round_index in range(ROUNDS)
            for task_name, task in [
                *tasks[(seed + round_index) % len(tasks) :],
                *tasks[: (seed + round_index) % len(tasks)],
            ]
            if not torch.equal(task(), alone[seed][task_name])
        ]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(run_tasks, range(THREADS))) == [[]] * THREADS
    assert not hooks_left(model.network)
    assert not any("forward" in vars(part) or "current" in vars(part) for part in model.network.modules())
    if not name.startswith("own"):
        assert model.network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_edits_of_another_thread_are_invisible(name: str) -> None:
    """The other thread is inside its edit, its hook and its reused block while this one runs."""
    model, ids = shared_model(name), text()[None]
    plain, points = model.run_batch(ids), model.trace(ids[0]).points
    block_outputs = [torch.zeros(1, LENGTH, model.view.width)]
    is_inside, may_continue = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        is_inside.set()
        assert may_continue.wait(60)
        return 2 * x

    def run_edited() -> Tensor:
        return model.run_batch(ids, {1: negate}, {"L1.resid_post": wait}, block_outputs)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_edited)
        try:
            assert is_inside.wait(60)
            assert torch.equal(model.run_batch(ids), plain)
            assert torch.equal(model.trace(ids[0]).points, points)
            assert not torch.equal(model.run_batch(ids, {(0, 0): halve}), plain)
            assert torch.equal(model.run_batch(ids), plain)
        finally:
            may_continue.set()
        changed = running.result()
    assert torch.equal(changed, model.run_batch(ids, {1: negate}, {"L1.resid_post": lambda x: 2 * x}, block_outputs))
    assert not torch.equal(changed, plain)


def test_hooks_of_the_owner_run_first() -> None:
    module, recorded = torch.nn.Linear(2, 2), []
    observers = [
        ModuleHook(module, "in", lambda args, kwargs: recorded.append(args[0])),
        ModuleHook(module, "out", recorded.append),
    ]
    with apply_module_hooks(observers):
        module(torch.ones(2))
    handles = [
        module.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        module.register_forward_hook(lambda module, args, out: torch.zeros(2)),
    ]
    with apply_module_hooks(observers):
        module(torch.ones(2))
    assert torch.equal(recorded[2], torch.full((2,), 2.0))
    assert torch.equal(recorded[3], torch.zeros(2))
    for handle in handles:
        handle.remove()
    assert not hooks_left(module)
