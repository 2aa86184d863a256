"""Threads that share one model get what each of them would get alone, bit for bit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.running.thread_hooks import Ask, asking
from rheoscope.space.model import Rewrite
from tests.models import cases as ours
from tests.pretrained import cases as theirs
from tests.pretrained.cases import LENGTH, hooks_left, text

THREADS, ROUNDS = 4, 3


def shared(name: str) -> Any:
    return ours.model(name) if name.startswith("own") else theirs.model(name)


def half(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return 0.5 * mechanism.attend(q, k, v)


def turned(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
    return -out


def work(model: Any, seed: int) -> dict[str, Callable[[], Any]]:
    """One of everything that a model does, on a text of its own."""
    ids, longer = text(seed), text(seed, 5 + seed % 9)
    both = torch.stack([ids, ids.flip(0)])
    factor = 1 + seed / 10
    return {
        "trace": lambda: model.trace(ids, logits=True).points,
        "logits": lambda: model.run(ids),
        "batch": lambda: model.trace([ids, longer]).points[1, :, : len(longer)],
        "edit": lambda: model.run(ids, edit={(1, 2): half}),
        "layer": lambda: model.run(longer, edit={0: turned}),
        "edited points": lambda: model.trace(ids, edit={0: turned}).points,
        "rewrite": lambda: model.run(longer, edit={0: Rewrite(lambda x, q, k, v, mechanism, out: (out, factor * x))}),
        "hooks": lambda: model.run(ids, hooks={"L0.resid_mid": lambda x: factor * x, "L1.resid_post": lambda x: -x}),
        "gradients": lambda: torch.stack(list(model.gradients(ids, lambda y: (factor * y).square().sum())[1].values())),
        "given": lambda: model.run_batch(both, {1: turned}, given=model.passed(both)[:1]),
    }


@pytest.mark.parametrize("name", ["gpt2", "llama", "own"])
def test_everything_at_once_is_everything_alone(name: str) -> None:
    model = shared(name)
    alone = [{what: do() for what, do in work(model, seed).items()} for seed in range(THREADS)]
    start = threading.Barrier(THREADS)

    def one(seed: int) -> list[str]:
        """Every thread begins with another kind of work; what differs from the same work alone."""
        tasks = list(work(model, seed).items())
        start.wait()
        return [
            what
            for turn in range(ROUNDS)
            for what, do in [*tasks[(seed + turn) % len(tasks) :], *tasks[: (seed + turn) % len(tasks)]]
            if not torch.equal(do(), alone[seed][what])
        ]

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(one, range(THREADS))) == [[]] * THREADS
    assert not hooks_left(model.network)
    assert not any("forward" in vars(part) or "current" in vars(part) for part in model.network.modules())
    if not name.startswith("own"):
        assert model.network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_a_thread_sees_nothing_of_what_another_changes_while_it_changes_it(name: str) -> None:
    """The other thread stands inside its edit, its hook and its given block while this one runs."""
    model, ids = shared(name), text()[None]
    plain, points = model.run_batch(ids), model.trace(ids[0]).points
    given = [torch.zeros(1, LENGTH, model.view.width)]
    inside, seen = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        inside.set()
        assert seen.wait(60)
        return 2 * x

    def other() -> Tensor:
        return model.run_batch(ids, {1: turned}, {"L1.resid_post": wait}, given)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other)
        try:
            assert inside.wait(60)
            assert torch.equal(model.run_batch(ids), plain)
            assert torch.equal(model.trace(ids[0]).points, points)
            assert not torch.equal(model.run_batch(ids, {(0, 0): half}), plain)
            assert torch.equal(model.run_batch(ids), plain)
        finally:
            seen.set()
        changed = running.result()
    assert torch.equal(changed, model.run_batch(ids, {1: turned}, {"L1.resid_post": lambda x: 2 * x}, given))
    assert not torch.equal(changed, plain)


def test_hooks_of_the_owner_come_first_whenever_they_were_registered() -> None:
    module, found = torch.nn.Linear(2, 2), []
    look = [Ask(module, "in", lambda args, kwargs: found.append(args[0])), Ask(module, "out", found.append)]
    with asking(look):
        module(torch.ones(2))
    handles = [
        module.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        module.register_forward_hook(lambda module, args, out: torch.zeros(2)),
    ]
    with asking(look):
        module(torch.ones(2))
    assert torch.equal(found[2], torch.full((2,), 2.0))
    assert torch.equal(found[3], torch.zeros(2))
    for handle in handles:
        handle.remove()
    assert not hooks_left(module)
