"""The gallery lists every model that can be opened, with facts from its files, and says which are certified or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rheoscope.shapes import RheoscopeError
from rheoscope.studio.model_sources import ModelSources
from tests.studio.cases import load_small, post_text, render_text, running_studio


def write_model(folder: Path, **config: Any) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, folder / "model.safetensors")
    return str(folder)


def gallery(client: Any) -> dict[str, dict[str, Any]]:
    return {entry["source"]: entry for entry in client.get("/api/gallery").json()}


def test_unopened_models_are_described_by_their_files(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "plain", model_type="llama", num_hidden_layers=4, num_attention_heads=2)
    pair = write_model(tmp_path / "pair", model_type="t5", is_encoder_decoder=True)
    broken = write_model(tmp_path / "broken")
    Path(broken, "config.json").write_text("{", encoding="utf-8")
    Path(broken, "model.safetensors").write_bytes(b"\xff" * 12)
    with running_studio(sources=ModelSources(roots=(tmp_path,))) as (_, client):
        entries = gallery(client)
    names = ("name", "family", "parameters", "layers", "heads", "status")
    assert [entries[plain][name] for name in names] == ["plain", "llama", 22, 4, 2, "unopened"]
    assert [entries[pair][name] for name in ("family", "status")] == ["t5", "unopened"]
    assert [entries[broken][name] for name in names] == ["broken", None, None, None, None, "unopened"]


def test_opened_and_refused_models_have_a_certificate_or_a_reason(tmp_path: Path) -> None:
    refused = write_model(tmp_path / "refused")
    failing = write_model(tmp_path / "failing")

    def load(source: str | None, **options: Any) -> Any:
        if source == refused:
            raise RheoscopeError("this model is refused")
        if source == failing:
            raise OSError("disk")
        return load_small(source, **options)

    with running_studio(load, ModelSources(roots=(tmp_path,))) as (_, client):
        assert gallery(client)["default"]["tokens_per_second"] is None
        post_text(client)
        for source in (refused, failing):
            client.post("/api/traces", json={"model": source, "text": "a"})
        entries = gallery(client)
    assert (entries["default"]["status"], entries["default"]["layers"], entries["default"]["heads"]) == ("open", 3, 4)
    assert "exact on" in render_text(entries["default"]["note"])
    assert entries["default"]["tokens_per_second"] > 0
    assert (entries[refused]["status"], render_text(entries[refused]["note"])) == ("refused", "this model is refused")
    assert "loading failed (OSError)" in render_text(entries[failing]["note"])


@pytest.mark.parametrize("source", ["default"])
def test_the_default_model_is_described_before_it_is_opened(source: str) -> None:
    with running_studio() as (_, client):
        entry = gallery(client)[source]
    assert (entry["layers"], entry["heads"]) == (6, 4)
    assert 5e6 < entry["parameters"] < 7e6
