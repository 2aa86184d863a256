"""A stored tape gives the description of a recorded one, for any weights. The proof decides about both."""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import rheoscope as rs
from rheoscope.pretrained.build_view import describe_model
from rheoscope.pretrained.certificate import certify
from rheoscope.pretrained.finder import describe_network, describe_pair, tape_file
from rheoscope.pretrained.hf_model import Pretrained, PretrainedPair
from rheoscope.pretrained.proven_model import proven_model
from rheoscope.shapes import RheoscopeError
from rheoscope.space.head import Heads
from tests.pretrained import test_feature_model, test_feature_pair
from tests.pretrained.cases import PLAIN, gap, randomised
from tests.pretrained.finder import networks, test_found_pairs

BUILDERS: dict[str, Callable[[], Any]] = {
    **networks.NETWORKS,
    **test_found_pairs.PAIRS,
    **test_feature_model.NETWORKS,
    **test_feature_pair.NETWORKS,
}
NAMES = ("bloom", "deepseek_v3", "gemma2", "gpt_oss", "t5", "vit", "whisper")
"""Positions, latent vectors, caps, windows, sinks, two clouds, and features."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tape_file.cache_folder()


def build(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return randomised(BUILDERS[name](), seed)


def opened(network: Any) -> Pretrained:
    """The model of a network that is as transformers wrote it."""
    model, _ = proven_model(network, None, "a network", lambda *_: None, lambda *_: None, True)
    return model


def refuse_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording fails from now on."""
    for module, name in ((describe_network, "record_forward"), (describe_pair, "record_pair")):
        monkeypatch.setattr(module, name, pytest.fail)


def check_equal(a: Pretrained, b: Pretrained) -> None:
    """Both models have the same heads and the same unembedding."""
    if isinstance(a, PretrainedPair) and isinstance(b, PretrainedPair):
        check_heads(a.encoder.layer_heads, b.encoder.layer_heads)
        check_heads([x.target_heads for x in a.view.cross_heads], [x.target_heads for x in b.view.cross_heads])
    check_heads(a.view.layer_heads, b.view.layer_heads)
    assert a.view.embed_scale == b.view.embed_scale
    assert (a.view.unembed is None) == (b.view.unembed is None)
    if a.view.unembed is not None and b.view.unembed is not None:
        assert gap(a.view.unembed, b.view.unembed) == 0


def check_heads(first: Sequence[Heads], second: Sequence[Heads]) -> None:
    x = torch.randn(1, 7, first[0].W_Q.shape[-2], generator=torch.Generator().manual_seed(0)).to(first[0].W_Q)
    for x_heads, y_heads in zip(first, second, strict=True):
        assert gap(x_heads.norm.apply(x), y_heads.norm.apply(x)) == 0
        for a, b in zip(x_heads.project(x), y_heads.project(x), strict=True):
            assert gap(a, b) == 0
        assert repr(x_heads.mechanism.mask) == repr(y_heads.mechanism.mask)
        assert gap(x_heads.W_O, y_heads.W_O) == 0


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_stored_tape_gives_the_same_description_for_other_weights(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(build(name))
    assert len(list(folder.iterdir())) == 1
    other = build(name, seed=1)
    recorded, _ = proven_model(other, None, "a network", lambda *_: None, lambda *_: None, False)
    refuse_recording(monkeypatch)
    check_equal(opened(other), recorded)
    assert len(list(folder.iterdir())) == 1


def stored(path: Path) -> str:
    """The text of a stored tape."""
    with safe_open(path, "pt") as file:
        return str(file.metadata()["tape"])


def tamper(path: Path, change: Callable[[str], str], is_signed: bool = True) -> None:
    """Change a stored tape, with a digest that fits or without one."""
    with safe_open(path, "pt") as file:
        digest, constants = file.metadata()["digest"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    before = stored(path)
    text = change(before)
    assert text != before
    digest = hashlib.sha256(text.encode()).hexdigest() if is_signed else digest
    save_file(constants, path, {"tape": text, "digest": digest})


def swap(first: str, second: str, text: str) -> str:
    return text.replace(first, "\0").replace(second, first).replace("\0", second)


WRONG = {
    "queries and keys": partial(swap, "self_attn.q_proj.weight", "self_attn.k_proj.weight"),
    "scale": lambda text: text.replace("0.2", "0.4"),
    "mask": lambda text: text.replace("aten.le.Tensor", "aten.ge.Tensor"),
    "module names": lambda text: text.replace("model.layers.1", "model.layers.7"),
    "operations": lambda text: text.replace("aten.mm.default", "aten.nothing.default"),
}
"""Wrong tapes, most of which lead to a description that only the proof can refuse."""


def granite() -> Any:
    torch.manual_seed(0)
    sizes = PLAIN | {"num_key_value_heads": 4, "attention_multiplier": 0.2}
    return randomised(hf.GraniteForCausalLM(hf.GraniteConfig(**sizes)))


@torch.no_grad()
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_tape_is_refused_by_the_proof_and_replaced(
    mistake: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = opened(granite())
    (path,) = folder.iterdir()
    right = stored(path)
    tamper(path, WRONG[mistake])
    check_equal(opened(granite()), expected)
    assert stored(path) == right
    refuse_recording(monkeypatch)
    check_equal(opened(granite()), expected)


@torch.no_grad()
def test_no_wrong_description_from_a_tape_passes_the_proof(folder: Path) -> None:
    opened(granite())
    (path,) = folder.iterdir()
    tamper(path, WRONG["queries and keys"])
    network, file = granite(), tape_file.TapeFile(path)
    model = describe_model(network, None, "a network", None, file)
    assert file.is_read
    with pytest.raises(RheoscopeError, match="does not reproduce this model"):
        certify(model)


@torch.no_grad()
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:1000]),
        lambda path: path.write_bytes(b"no tape"),
        lambda path: tamper(path, lambda text: text.replace("aten.mm", "aten.bmm"), is_signed=False),
        lambda path: tamper(path, lambda text: text[:-1]),
        lambda path: tamper(path, lambda text: "{}"),
    ],
)
def test_a_damaged_tape_is_replaced(damage: Callable[[Path], object], folder: Path) -> None:
    expected = opened(granite())
    (path,) = folder.iterdir()
    right = stored(path)
    damage(path)
    check_equal(opened(granite()), expected)
    assert stored(path) == right


@torch.no_grad()
def test_another_config_dtype_or_version_has_a_tape_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def path_of(network: Any) -> Path:
        file = tape_file.tape_file(network)
        assert file is not None
        return file.path

    other = granite()
    other.config.attention_multiplier = 0.3
    paths = [path_of(granite()), path_of(granite().double()), path_of(other)]
    monkeypatch.setattr("rheoscope.pretrained.finder.tape_file.transformers.__version__", "0")
    paths.append(path_of(granite()))
    assert len(set(paths)) == 4, paths
    assert path_of(granite()) == paths[-1]


@torch.no_grad()
def test_networks_that_a_caller_may_have_changed_have_no_tape(folder: Path) -> None:
    class Mine(nn.Linear):
        pass

    network = granite()
    rs.load(network)
    assert not folder.exists()
    network.lm_head.__class__ = Mine
    assert tape_file.tape_file(network) is None


@torch.no_grad()
def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    check_equal(opened(granite()), opened(granite()))


def test_only_the_newest_tapes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_file, "MOST_FILES", 2)
    for age, name in enumerate("abc"):
        (tmp_path / f"{name}.safetensors").touch()
        os.utime(tmp_path / f"{name}.safetensors", (100 - age, 100 - age))
    tape_file.remove_oldest(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "b"]


@torch.no_grad()
def test_a_directory_is_opened_from_its_tape(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    granite().save_pretrained(tmp_path / "granite")
    first = rs.load(tmp_path / "granite")
    refuse_recording(monkeypatch)
    second = rs.load(tmp_path / "granite")
    assert second.view.facts == first.view.facts
    assert len(list(folder.iterdir())) == 1
