"""Tests of `rheoscope describe`: the page, groups of layers, the JSON file, and a refused model."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
import xarray as xr
from rich.cells import cell_len

import rheoscope as rs
from rheoscope.messages.catalogue import render, set_language
from rheoscope.picture.blocks import Lines, Story
from rheoscope.report.console import console
from rheoscope.report.model_description import RESULT_NAME, description_blocks, index_list, show_description
from rheoscope.report.terminal import Terminal
from rheoscope.running.layer_structure import layer_structures
from tests.commands.cases import run_rheoscope
from tests.pretrained import cases
from tests.pretrained.finder.networks import NETWORKS


def page(model: Any, width: int = 80) -> str:
    """What the command prints."""
    target = console()
    target.file, target.width = io.StringIO(), width
    terminal = Terminal(target, [])
    for block in description_blocks(model, list(layer_structures(model))):
        terminal.print_block(block)
    return target.file.getvalue()


def test_identical_layers_share_their_formulas() -> None:
    text = page(cases.model("gemma3"))
    assert "Layers 0, 2: 4 heads, 2 key/value heads, width 16" in text
    assert "Layer 1: 4 heads, 2 key/value heads, width 16" in text
    assert text.count("window of 4") == 1
    assert text.count("model.layers.*.self_attn.q_proj.weight") == 1


@pytest.mark.parametrize("name", ["neox", "gemma3", "bert"])
def test_nothing_is_cut_off_at_80_columns(name: str) -> None:
    model = cases.model(name)
    text = page(model)
    assert max(map(cell_len, text.splitlines())) <= 80
    unwrapped = "".join(text.split())
    for block in description_blocks(model, list(layer_structures(model))):
        sentences = [line.sentence for line in block.lines] if isinstance(block, Story) else []
        sentences += list(block.lines) if isinstance(block, Lines) else []
        assert all("".join(render(sentence).split()) in unwrapped for sentence in sentences)


def test_layers_with_shared_weights_have_no_star() -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24}
    network = hf.AlbertForMaskedLM(hf.AlbertConfig(vocab_size=40, embedding_size=12, **size))
    model = rs.load(cases.randomised(network))
    text = page(model, width=120)
    assert (model.view.layers, model.view.distinct_layers) == (2, 1)
    assert "1 layer run 2 times, 4 heads, width 32" in text
    assert "1 layer run 2 times × 4 heads" in model.view.summary
    assert "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight" in text
    assert "These layers share their weights." in text


def test_blocks_without_attention_are_listed() -> None:
    model = rs.load(cases.randomised(NETWORKS["qwen3_next"]()))
    assert "model.layers.0, model.layers.2 have no softmax" in " ".join(page(model).split())
    assert "qwen3_next, found on a tape of one forward pass" in page(model)


def test_the_page_speaks_chinese() -> None:
    try:
        set_language("zh")
        text = page(cases.model("neox"))
    finally:
        set_language(None)
    assert "第 0, 1 层" in text
    assert "并行：x ← x + Δ + MLP(x)" in text
    assert "s_ij = 0.3536 q_i R(i−j) k_jᵀ" in text


def test_the_json_file_holds_the_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = cases.model("gemma3")
    show_description(model, tmp_path / "gemma.json")
    assert "gemma.json" in capsys.readouterr().out
    content = json.loads((tmp_path / "gemma.json").read_text(encoding="utf-8"))
    restored, expected = xr.Dataset.from_dict(content[RESULT_NAME]), rs.describe(model)
    assert restored.window.values.tolist() == [4, None, 4]
    exact = expected.drop_vars(["window", "cap"])  # infinity and NaN are null in JSON
    assert restored.drop_vars(["window", "cap"]).identical(exact)


def test_the_command_describes_the_default_model(tmp_path: Path) -> None:
    outcome = run_rheoscope("describe", "--json", "model.json", cwd=tmp_path, width=80)
    assert outcome.status == 0, outcome.err
    assert "Layers 0–5: 4 heads, width 64" in outcome.out
    assert "stack.blocks.*.attention.read.weight[256:512]" in outcome.out
    assert RESULT_NAME in json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))


def test_a_refused_model_prints_one_line(tmp_path: Path) -> None:
    config = hf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)
    hf.MambaForCausalLM(config).save_pretrained(tmp_path / "mamba")
    cases.tokenizer().save_pretrained(tmp_path / "mamba")
    outcome = run_rheoscope("describe", str(tmp_path / "mamba"))
    assert outcome.status == 1
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert "no softmax over tokens" in outcome.err


@pytest.mark.parametrize(
    ("indices", "expected"),
    [([3], "3"), ([0, 1], "0, 1"), ([0, 1, 2], "0–2"), ([1, 3, 5, 7, 9], "1, 3, 5, …, 9"), ([0, 1, 4], "0, 1, 4")],
)
def test_lists_of_layers(indices: list[int], expected: str) -> None:
    assert index_list(indices) == expected


def test_a_file_of_others_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[Any] = []
    monkeypatch.setattr("rheoscope.report.progress_bars.open_model", lambda *arguments: sources.append(arguments))
    (tmp_path / "notes.json").write_text("[]", encoding="utf-8")
    assert run_rheoscope("describe", "--json", "notes.json", cwd=tmp_path).status == 1
    assert sources == []


def test_a_plan_needs_a_model() -> None:
    outcome = run_rheoscope("describe", "--plan")
    assert (outcome.status, outcome.out) == (2, "")
    assert "type rheoscope describe --plan gpt2" in outcome.err
