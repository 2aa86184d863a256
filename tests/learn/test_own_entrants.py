"""Attention modules from a user's file: they race like any entrant, and mistakes are refused in one line."""

from pathlib import Path

import pytest
import torch

from rheoscope.learn.entrants import entrant_config, flops_per_token, n_parameters
from rheoscope.learn.initial_weights import initial_model
from rheoscope.learn.own_entrants import register_own_entrant
from rheoscope.learn.race_report import make_job, run_race_job
from rheoscope.learn.race_result import race_result
from rheoscope.models.own_attention import OWN_ATTENTION
from rheoscope.opening import load
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import config
from tests.learn.test_race_report import SETTINGS, TEXT

SOURCE = '''
import torch
from torch import nn

class Mean(nn.Module):
    """The running mean of the values of earlier tokens."""
    def __init__(self, config):
        super().__init__()
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, u):
        counts = torch.arange(1, u.shape[1] + 1, device=u.device)[:, None]
        return self.out(self.value(u).cumsum(1) / counts)

class Rotated(Mean):
    def forward(self, u, rotation):
        q = self.value(u).unflatten(-1, (2, -1)).transpose(1, 2)
        q = q if rotation is None else rotation(q)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2))

class Anticausal(Mean):
    def forward(self, u):
        return super().forward(u.flip(1)).flip(1)

class Narrow(Mean):
    def forward(self, u):
        return super().forward(u)[..., 1:]

class Unused(Mean):
    def __init__(self, config):
        super().__init__(config)
        self.extra = nn.Parameter(torch.zeros(3))

class Mixed(Mean):
    def forward(self, u):
        return super().forward(u) + u.mean(0, keepdim=True)

class Noisy(Mean):
    def forward(self, u):
        return super().forward(u) + torch.randn_like(u)

class Infinite(Mean):
    def forward(self, u):
        return super().forward(u) / 0

class Counted(Mean):
    total = 0
    def __init__(self, config):
        super().__init__(config)
        Counted.total += 1
        with torch.no_grad():
            self.out.weight.fill_(Counted.total)

function = max
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("rheoscope.models.own_attention.OWN_ATTENTION", OWN_ATTENTION)
    (tmp_path / "mine.py").write_text(SOURCE)
    yield tmp_path / "mine.py"
    OWN_ATTENTION.clear()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("Narrow", "mine.Narrow breaks the law of shape"),
        ("Infinite", "mine.Infinite breaks the law of shape"),
        ("Noisy", "mine.Noisy breaks the law of repeatability"),
        ("Anticausal", "mine.Anticausal breaks the law of causality"),
        ("Mixed", "mine.Mixed breaks the law of texts"),
        ("Unused", "mine.Unused breaks the law of gradient"),
        ("Counted", "mine.Counted breaks the law of start"),
        ("function", "has no torch.nn.Module named 'function'; it has Mean, Rotated, "),
        ("Absent", "has no torch.nn.Module named 'Absent'"),
        ("Mean+asymmetry=1", "mine.Mean has no M"),
    ],
)
def test_a_module_that_breaks_a_law_is_refused_in_one_line(file: Path, name: str, pattern: str) -> None:
    with pytest.raises(RheoscopeError, match=pattern) as error:
        register_own_entrant(f"{file}:{name}", config())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["import nothing_here", "def (", "1 / 0"])
def test_a_file_that_does_not_import_is_refused_in_one_line(tmp_path: Path, source: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(
        RheoscopeError, match=r"cannot import .*broken\.py: (ModuleNotFound|Syntax|ZeroDivision)Error"
    ) as e:
        register_own_entrant(f"{tmp_path / 'broken.py'}:Mine", config())
    assert "\n" not in str(e.value)
    with pytest.raises(RheoscopeError, match=r"there is no file .*none\.py"):
        register_own_entrant(f"{tmp_path / 'none.py'}:Mine", config())


def test_an_own_entrant_is_paired_matched_and_counted_like_any_other(file: Path) -> None:
    """torch counts the full square of attention, also under a causal mask."""
    name = register_own_entrant(f"{file}:Rotated:parameters", config())
    assert name == "mine.Rotated:parameters"
    matched, base = entrant_config(name, config()), entrant_config("untied", config())
    assert abs(n_parameters(matched) - n_parameters(base)) < 3 * 16
    same_width = entrant_config("mine.Rotated", config())
    own, untied = (dict(initial_model(c, 3).named_parameters()) for c in (same_width, base))
    assert all(torch.equal(own[key], untied[key]) for key in own.keys() & untied.keys())
    d, n, model = base.width, base.context, initial_model(same_width, 0)
    other_weights = sum(p.numel() for key, p in model.named_parameters() if p.ndim > 1 and "embed" not in key)
    embedding = model.unembed.weight.numel()
    assert "attention" in " ".join(own)
    assert flops_per_token(same_width) == 3 * (2 * (other_weights + embedding) + 4 * n * d)


def test_an_own_module_races_and_its_report_needs_no_file(file: Path) -> None:
    (file.parent / "book.txt").write_text(TEXT)
    out = file.parent / "run"

    def run() -> bool:
        options = {"recipe": "tiny", "mechanisms": [f"{file}:Mean+residual=0.1"], "seeds": 2, "steps": 2}
        job = make_job(None, options | {"data": [file.parent / "book.txt"], "held_out_tokens": 64}, SETTINGS)
        return run_race_job(job, out, "cpu")

    assert run()
    OWN_ATTENTION.clear()
    result = race_result(out)
    assert list(result.entrant.values) == ["untied", "mine.Mean+residual=0.1"]
    assert bool(result.tokens_per_parameter.notnull().all())
    assert bool(result.final_loss.notnull().all())
    file.write_text(SOURCE + "\n# changed\n")
    with pytest.raises(RheoscopeError, match=r"the file of mine\.Mean has changed since this race started"):
        run()


def test_a_stored_config_imports_no_file(file: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"the attention module 'mine\.Mean' is not loaded"):
        initial_model(config(attention="mine.Mean"), 0)
    register_own_entrant(f"{file}:Mean", config())
    with pytest.raises(RheoscopeError, match=r"mine\.Mean comes from a file and has no description as M and F"):
        load(initial_model(config(attention="mine.Mean"), 0))


def test_settings_that_need_operators_are_refused_before_training(file: Path) -> None:
    job = make_job(None, {"recipe": "tiny", "mechanisms": [f"{file}:Mean"], "look": "0"}, SETTINGS)
    nonlinear = make_job(None, {"recipe": "tiny", "mechanisms": ["nonlinear_queries"], "look": "0"}, SETTINGS)
    for refused in (job, nonlinear):
        with pytest.raises(RheoscopeError, match="has no description as M and F to look at; leave out --look"):
            refused.build_race()
    translator = make_job(None, {"recipe": "translation", "mechanisms": [f"{file}:Mean"]}, [])
    with pytest.raises(RheoscopeError, match="decoders and encoders only"):
        translator.build_race()
