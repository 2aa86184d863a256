"""Plans of models from their configs: bytes and FLOPs equal those of the real network."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch.utils.flop_counter import FlopCounterMode

from rheoscope.pretrained import loading_plan
from rheoscope.pretrained.loading_plan import plan_loading, trace_flops
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import GROUPED, PLAIN, network, text
from tests.running.streamed_cases import FAMILIES, checkpoint, streamed


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test measures the speed of the disk."""
    monkeypatch.setattr(loading_plan, "measure_read_speed", lambda source: (1e9, source))


@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_equal_those_of_the_streamed_network(name: str) -> None:
    from rheoscope.running.streamed_weights import weights_of

    plan, weights = plan_loading(checkpoint(name)), weights_of(streamed(name).network)
    assert weights is not None
    assert list(plan.block_bytes) == weights.block_bytes
    assert plan.total_bytes == weights.n_bytes
    assert plan.table_bytes == {table.name: table.n_bytes for table in weights.tables}
    assert plan.points_bytes >= streamed(name).trace(text()).points.nbytes


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
def test_flops_equal_those_that_torch_counts(name: str) -> None:
    """torch does not count the fused attention of a CPU, whose causal mask needs half of the pairs."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(name).base_model(input_ids=text()[None])
    config, n = network(name).config, len(text())
    all_pairs = 4 * config.num_hidden_layers * config.hidden_size * n**2
    expected = counter.get_total_flops() + round(all_pairs * (n + 1) / (2 * n))
    assert trace_flops(network(name), config, n) == expected


def test_experts_count_as_often_as_they_are_used() -> None:
    settings: dict[str, Any] = {**GROUPED, "num_local_experts": 4}
    flops = []
    for used in (1, 2):
        config = hf.MixtralConfig(**settings, num_experts_per_tok=used)
        with torch.device("meta"):
            flops.append(trace_flops(hf.MixtralForCausalLM(config), config, 10))
    experts = 2 * 2 * 10 * 3 * GROUPED["hidden_size"] * GROUPED["intermediate_size"]
    assert flops[1] - flops[0] == experts


def test_a_config_of_70_billion_parameters_is_planned_without_weights(tmp_path: Path) -> None:
    config = hf.LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256, architectures=["LlamaForCausalLM"], dtype="bfloat16",
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    plan = plan_loading(tmp_path / "config.json", tokens=2048, dtype="bfloat16")
    assert plan.parameters == 70_553_706_496
    assert plan.file_bytes == plan.total_bytes == 2 * plan.parameters
    assert plan.read_seconds == pytest.approx(141, rel=0.01)
    assert plan.total_bytes < plan.peak_resident < 1.5 * plan.total_bytes
    assert plan.peak_streamed < 0.13 * plan.total_bytes
    assert 2 * 68e9 * 2048 < plan.flops < 2.2 * 70e9 * 2048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": -32, "num_attention_heads": 4}, "cannot build a llama from this config"),
        ({"model_type": "no_such_type"}, "transformers does not know the model type"),
    ],
)
def test_bad_configs_are_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **PLAIN, **change}))
    with pytest.raises(RheoscopeError, match=message) as info:
        plan_loading(tmp_path)
    assert "\n" not in str(info.value)
