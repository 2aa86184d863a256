"""The race on a GPU: compiled, in bfloat16, it learns what the plain modules learn; stopped, it goes on to the same bytes."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

import rheoscope as rs
from rheoscope.learn import kept
from rheoscope.learn.healing import Healing, heal
from rheoscope.learn.initial import drawn
from rheoscope.learn.learner import packed_learner
from rheoscope.learn.race import Pack, Race, many_graphs, race
from rheoscope.models.data import MASKED, prepare
from rheoscope.models.task import Masked
from tests.learn.cases import Letters, recipe, sentences
from tests.learn.test_race import Stopped, files, stopping
from tests.models.cases import network
from tests.pretrained.cases import VOCABULARY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor"
    ),  # torch's compiler looks at every tensor it meets
]


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes checked as in these tests break the graphs of `torch.compile`."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def wide(**more: Any) -> Any:
    """Kernels want widths of 16 and more."""
    return recipe(width=64, heads=2, hidden=64, depth=2, batch=8, **more)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_compiled_steps_are_those_of_the_plain_modules(optimiser: str) -> None:
    by, task, device = wide(optimiser=optimiser), Letters(), torch.device("cuda")
    pack, seeds = Pack("untied", by, (0, 1)), (0, 1)
    found = []
    with many_graphs(True):
        for blocks in (None, False, True):
            learner = packed_learner([drawn(by.config, seed).to(device) for seed in seeds], seeds, by, task)
            if blocks is not None:
                learner.compile(blocks)
            for step in range(4):
                (x, y), tokens = pack.batch(task, seeds, step)
                losses = learner.step(by, step, (x.to(device), y.to(device)), tokens.to(device))
            found.append(losses.cpu())
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=2e-2, atol=2e-2)


def test_stopped_it_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    asked = Race(wide(), ("tied", "metric"), 3, (1e-2, 1e-3))
    race(asked, Letters(), tmp_path / "whole", "cuda", deterministic=True)
    with pytest.raises(Stopped):
        race(asked, Letters(), tmp_path / "stopped", "cuda", deterministic=True, tell=stopping(23))
    race(asked, Letters(), tmp_path / "stopped", "cuda", deterministic=True)
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")
    assert all(line["loss"] is not None for line in kept.logs(tmp_path / "whole"))


def test_a_pack_that_waits_leaves_the_device() -> None:
    by, task, device = wide(), Letters(), torch.device("cuda")
    learner = packed_learner([drawn(by.config, seed).to(device) for seed in (0, 1)], (0, 1), by, task)
    (x, y), tokens = Pack("untied", by, (0, 1)).batch(task, (0, 1), 0)
    learner.step(by, 0, (x.to(device), y.to(device)), tokens.to(device))
    held, before = learner.tensors(), torch.cuda.memory_allocated()
    learner.leave()
    size = sum(x.numel() * x.element_size() for x in held.values())
    assert torch.cuda.memory_allocated() <= before - 0.9 * size
    learner.fill(held, device)
    again = learner.tensors()
    assert all(torch.equal(held[name], again[name]) for name in held)


def test_healing_is_that_of_a_cpu(tmp_path: Path) -> None:
    how = Healing(steps=3, batch=2, length=16, rate=1e-3, every=1, held_out=2)
    ids = torch.randint(VOCABULARY, (160,), generator=torch.Generator().manual_seed(0))
    here, there = (
        heal(rs.load(copy.deepcopy(network("own")).to(device)), ids, tmp_path / device, how).loss.values
        for device in ("cpu", "cuda")
    )
    assert there == pytest.approx(here, abs=2e-3)


def test_hidden_tokens_are_raced_in_packs(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the cat sat on the mat, a dog ran over hills. " * 60)
    corpus = prepare([tmp_path / "book.txt"], tmp_path / "data", "characters", held_out=0.1, specials=MASKED)
    asked = Race(recipe(form="encoder", steps=4), ("tied", "untied+asymmetry=1"), seeds=3, held_out=100)
    race(asked, Masked.of(corpus), tmp_path / "out", "cuda")
    last = [line["loss"] for line in kept.logs(tmp_path / "out") if line["step"] == 4]
    assert len(last) == 9
    assert all(loss < 4 for loss in last)


def test_sentence_pairs_are_raced_as_on_a_cpu(tmp_path: Path) -> None:
    asked = Race(wide(form="encoder-decoder", steps=4, evaluate_every=2), ("tied", "metric_map"), seeds=3)
    for device in ("cpu", "cuda"):
        race(asked, sentences(), tmp_path / device, device)
    here, there = ([line["loss"] for line in kept.logs(tmp_path / device)] for device in ("cpu", "cuda"))
    assert there == pytest.approx(here, abs=3e-2)
