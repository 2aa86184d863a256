"""Fixtures of the command tests: small models as directories, and a small default model.

pytest may import this file before the shape checks are installed, so the fixtures import the package.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.commands.cases import Outcome

Run = Callable[..., "Outcome"]


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of small models: long context, hard attention, an encoder, NaN weights, and two without unembedding."""
    import torch
    from transformers import GPT2Config, GPT2Model

    from rheoscope.models.checkpoint import save
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import Transformer
    from rheoscope.models.vocabulary import character_tokenizer
    from tests.pretrained.cases import saved, tokenizer

    root = tmp_path_factory.mktemp("models")
    characters = character_tokenizer(["abcdefghijklmnopqrstuvwxyz "], [])
    size = {"vocabulary": 40, "width": 16, "depth": 2, "heads": 2, "hidden": 24, "context": 4096}
    torch.manual_seed(0)
    for name, changes in (("far", {}), ("hard", {"mechanism": "hard"}), ("both_ways", {"form": "encoder"})):
        save(Transformer(Config(**size | changes)), root / name, tokenizer=characters)
    broken = Transformer(Config(**size))
    with torch.no_grad():
        broken.stack.blocks[1].ffn.write.weight[0, 0] = float("nan")
    save(broken, root / "broken", tokenizer=characters)
    tokenizer().save_pretrained(saved("bert_bare", root / "bert"))
    GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=40)).save_pretrained(root / "gpt2")
    tokenizer().save_pretrained(root / "gpt2")
    return root


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty directory. The default model is a small one."""
    import rheoscope as rs
    from rheoscope.report import progress_bars
    from tests.commands.cases import run_rheoscope
    from tests.report.cases import small

    monkeypatch.chdir(tmp_path)
    load = rs.load

    def load_small(source: str | None, *rest: Any, **settings: Any) -> Any:
        return small() if source is None else load(source)

    monkeypatch.setattr(progress_bars, "open_model", load_small)
    return run_rheoscope


@pytest.fixture
def refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that must fail in one line, before a model is loaded and with all files unchanged."""
    from rheoscope.report import progress_bars

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    def run_refused(*arguments: str) -> str:
        monkeypatch.setattr(progress_bars, "open_model", fail)
        before = directory_content()
        outcome = run(*arguments)
        assert outcome.status == 1
        assert outcome.out == ""
        assert outcome.err.startswith("rheoscope: ")
        assert outcome.err.count("\n") == 1
        assert any(step in outcome.err for step in ("; type ", "; use ", "; choose ", "; omit "))
        assert directory_content() == before
        return outcome.err

    return run_refused


def directory_content() -> dict[str, bytes | str]:
    """Everything below the working directory."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        for path in Path().rglob("*")
    }
