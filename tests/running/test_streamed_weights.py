"""Streamed models: the numbers of a resident model bit for bit, with at most two blocks in memory."""

import copy
import json
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.pretrained import streaming
from rheoscope.running import streamed_weights
from rheoscope.running.available_memory import StreamedModelWarning
from rheoscope.running.stored_tensor import StoredTensor, deferring, stored_tensor
from rheoscope.running.streamed_weights import Weight, block_names, weights_of
from rheoscope.running.tensor_files import read_headers
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import GROUPED, WITH_LOGITS, randomised, text
from tests.running.streamed_cases import FAMILIES, checkpoint, deep_streamed, resident, streamed

ANALYSES = {"operators": {}, "agreement": {"draws": 2}, "readout": {}, "transport": {}, "reversed_attention": {}}


def result(model: Any, name: str) -> Any:
    subjects = {"view": model.view, "trace": model.trace(text()), "model": model, "text": text()}
    analysis = analysis_by_name(name)
    try:
        return analysis.ask(*(subjects[subject] for subject in analysis.subjects), **ANALYSES[name])
    except RheoscopeError as error:  # an analysis that this family does not have
        return str(error)


@pytest.mark.parametrize("name", FAMILIES)
def test_points_logits_digest_and_certificate_equal_those_in_memory(name: str) -> None:
    batch, logits = [text(0), text(1, 7)], name in WITH_LOGITS
    expected, traces = (model(name).trace(batch, logits=logits) for model in (resident, streamed))
    for trace, expected_trace in zip(traces, expected, strict=True):
        assert torch.equal(trace.points, expected_trace.points)
        assert not logits or torch.equal(trace.logits, expected_trace.logits)
    facts, expected_facts = streamed(name).view.facts, resident(name).view.facts
    assert {key: facts[key] for key in facts if key != "model"} == {
        key: expected_facts[key] for key in facts if key != "model"
    }


@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("name", FAMILIES)
def test_analyses_equal_those_in_memory(name: str, analysis: str) -> None:
    results = [result(model(name), analysis) for model in (resident, streamed)]
    assert results[0] == results[1] if isinstance(results[0], str) else results[0].equals(results[1])


def test_edits_and_gradients_equal_those_in_memory() -> None:
    def halve(q: Any, k: Any, v: Any, mechanism: Any, out: Any) -> Any:
        return out / 2

    outputs = [model("llama").run(text(), edit={1: halve}) for model in (resident, streamed)]
    assert torch.equal(*outputs)
    gradients = [model("llama").gradients(text(), lambda x: x[-1].max())[1] for model in (resident, streamed)]
    assert all(torch.equal(gradients[0][step], gradients[1][step]) for step in gradients[0])


# What is in memory


@pytest.fixture
def deep_model() -> Any:
    return deep_streamed()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, deep_model: Any) -> list[Weight]:
    """Every weight that is read, and a check after each read that at most two blocks are in memory."""
    read_weights, weights = [], weights_of(deep_model.network)
    assert weights is not None
    read_into = streamed_weights._read_into

    def count_blocks(future: Any, weight: Weight) -> None:
        read_into(future, weight)
        read_weights.append(weight)
        assert len(weights._live_blocks) <= 2
        assert sum(live.n_bytes for live in weights.live_weights if live.block is not None) <= 2 * max(
            weights.block_bytes
        )

    monkeypatch.setattr(streamed_weights, "_read_into", count_blocks)
    weights.drop_all()
    return read_weights


def test_a_trace_reads_each_block_once_and_a_few_rows_of_the_embedding(deep_model: Any, reads: list[Weight]) -> None:
    deep_model.trace(text())
    blocks = [weight for weight in reads if weight.block is not None]
    assert len(blocks) == len(set(blocks)) == sum(map(len, weights_of(deep_model.network).blocks))  # type: ignore[union-attr]
    assert "model.embed_tokens.weight" not in {weight.name for weight in reads}


def test_a_backward_pass_reads_each_block_once_more(deep_model: Any, reads: list[Weight]) -> None:
    deep_model.gradients(text(), lambda logits: logits[-1].max())
    n_reads = [reads.count(weight) for weight in weights_of(deep_model.network).blocks[1]]  # type: ignore[union-attr]
    assert max(n_reads) == 2


def test_a_loop_over_heads_reads_no_mlp_after_the_first_blocks(deep_model: Any, reads: list[Weight]) -> None:
    rs.operators(deep_model.view)
    assert {weight.block for weight in reads if "mlp" in weight.name} <= {0, 1}
    assert {weight.block for weight in reads if "q_proj" in weight.name} == {0, 1, 2, 3, 4}


def test_a_resident_model_has_no_limit_of_parallel_layers(deep_model: Any) -> None:
    assert (deep_model.view.layers_at_once, resident("llama").view.layers_at_once) == (2, None)


def test_alternating_between_two_blocks_reads_each_once(deep_model: Any, reads: list[Weight]) -> None:
    for _ in range(3):
        for layer in (1, 2):
            deep_model.view.layer_heads[layer].W_Q.detach().sum()
    assert len([weight for weight in reads if "q_proj" in weight.name and weight.block in (1, 2)]) <= 3


def test_threads_may_use_different_blocks(deep_model: Any) -> None:
    sums: dict[int, float] = {}

    def add_up(layer: int) -> None:
        sums[layer] = float(deep_model.view.layer_heads[layer].W_Q.detach().double().sum())

    threads = [threading.Thread(target=add_up, args=(layer,)) for layer in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {layer: float(deep_model.view.layer_heads[layer].W_Q.detach().double().sum()) for layer in range(5)}


def test_blocks_are_the_items_of_the_outermost_lists() -> None:
    inner = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    outer = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([inner, inner]), "head": torch.nn.Linear(1, 1)})
    assert block_names(outer) == ["layers.0", "layers.1"]


def test_weights_cannot_be_changed() -> None:
    weight = next(iter(streamed("llama").network.parameters()))
    with torch.no_grad(), pytest.raises(RheoscopeError, match="cannot be changed; type stream=False"):
        weight.add_(1)


def test_a_streamed_network_opens_again_under_its_name() -> None:
    model = rs.load(streamed("llama").network)
    assert (model.view.name, model.view.layers_at_once) == (str(checkpoint("llama")), 2)
    assert torch.equal(model.trace(text()).points, streamed("llama").trace(text()).points)


def test_a_copy_of_a_streamed_network_reads_the_same_files() -> None:
    copied = copy.deepcopy(streamed("llama").network)
    with torch.no_grad():
        assert torch.equal(copied(text()[None]).logits, streamed("llama").network(text()[None]).logits)


# Stored tensors


def test_rows_slices_and_conversions_equal_those_of_the_tensor() -> None:
    tensors = read_headers(sorted(checkpoint("llama").glob("*.safetensors")))
    stored = stored_tensor(tensors["model.embed_tokens.weight"])
    plain = resident("llama").network.model.embed_tokens.weight.detach()
    index = torch.tensor([[3, -1], [3, 0]])
    assert torch.equal(stored[index], plain[index])
    assert torch.equal(stored[2:5] + 0, plain[2:5])
    assert torch.equal(stored[-3:].T @ stored[-3:], plain[-3:].T @ plain[-3:])
    assert torch.equal(stored.bfloat16() * 2, plain.bfloat16() * 2)
    assert torch.equal(stored.double()[torch.tensor([1])], plain.double()[1:2])
    with deferring():
        deferred = torch.cat([stored, stored.mT @ stored])
        assert isinstance(deferred, StoredTensor)
        assert bool((stored.abs().sum() > 0).item())
    assert torch.equal(deferred + 0, torch.cat([plain, plain.mT @ plain]))


# Opening


def test_a_model_that_does_not_fit_is_streamed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "fits", lambda n_bytes, device: False)
    with pytest.warns(StreamedModelWarning, match="so its weights are read block by block"):
        model = rs.load(checkpoint("llama"))
    assert weights_of(model.network) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weights_of(rs.load(checkpoint("llama"), stream=False).network) is None


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (None, {}, "the models of this package are small"),
        ("checkpoint", {"untrained": True}, "initial weights are in no file"),
        ("network", {}, "a built model is in memory already"),
    ],
)
def test_models_without_a_checkpoint_are_refused(source: str | None, settings: Any, message: str) -> None:
    sources = {"checkpoint": checkpoint("llama"), "network": resident("llama").network, None: None}
    with pytest.raises(RheoscopeError, match=f"{message}.*; type stream=False"):
        rs.load(sources[source], stream=True, **settings)


@pytest.fixture
def own_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint("llama"), tmp_path / "copy"))


def test_a_file_that_changes_after_loading_is_reported(own_copy: Path) -> None:
    model = rs.load(own_copy, stream=True)
    model.trace(text())
    shard = sorted(own_copy.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(RheoscopeError, match="has changed since this model was loaded"):
        model.trace(text())


def test_a_missing_shard_is_reported_in_one_line(own_copy: Path) -> None:
    sorted(own_copy.glob("*.safetensors"))[1].unlink()
    with pytest.raises(RheoscopeError) as info:
        rs.load(own_copy, stream=True)
    assert "\n" not in str(info.value)


def test_a_weight_with_nan_is_reported_by_name(own_copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    index = json.loads((own_copy / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(own_copy / index[name])
    tensors[name][3, 2] = torch.nan
    save_file(tensors, own_copy / index[name], metadata={"format": "pt"})
    with pytest.raises(RheoscopeError, match=f"the weight {name} holds NaN"):
        rs.load(own_copy, stream=True)


def test_weights_that_transformers_joins_have_the_same_digest_and_logits(tmp_path: Path) -> None:
    """The experts of a file become one weight for each layer."""
    from safetensors.torch import load_file

    from rheoscope.running.weight_files import fingerprint

    network = randomised(hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=3)))
    network.save_pretrained(tmp_path)
    assert "model.layers.0.mlp.experts.gate_up_proj" not in load_file(tmp_path / "model.safetensors")
    tensors = read_headers([tmp_path / "model.safetensors"])
    stored, _ = streaming.network_of_stored_weights(type(network), network.config, tensors, torch.float32)
    streamed_weights.stream_parameters(stored, torch.device("cpu"), {tensor.file for tensor in tensors.values()})
    with torch.no_grad():
        assert torch.equal(stored.eval()(text()[None]).logits, network(text()[None]).logits)
    assert fingerprint(stored) == fingerprint(network)
