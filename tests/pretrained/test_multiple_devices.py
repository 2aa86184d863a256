"""Models on two devices: the same numbers as on one device, and one-line errors for what is not supported."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.opening import resolve_device
from rheoscope.pretrained import checkpoint
from rheoscope.running.stored_tensor import RemoteTensor, StoredTensor
from rheoscope.shapes import RheoscopeError
from tests.elsewhere import AWAY, elsewhere
from tests.pretrained.cases import network, saved, text

HERE = torch.device("cpu")


@contextmanager
def over_two_devices(name: str) -> Iterator[Any]:
    """A network with its last layer on another device. Inputs are moved to each module, as accelerate does."""
    with elsewhere():
        two_device_network = copy.deepcopy(network(name)).eval()
        layer = two_device_network.get_submodule({"llama": "model.layers", "gpt2": "transformer.h"}[name])[-1]
        layer.to(AWAY)
        with sending_inputs(two_device_network, name, layer, AWAY, HERE):
            yield two_device_network


@contextmanager
def sending_inputs(spread: Any, name: str, layer: Any, there: torch.device, here: torch.device) -> Iterator[None]:
    """Inside, a layer gets its inputs on one device and the module after it on another, as accelerate sends them."""

    def move_inputs(device: torch.device) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> Any:
            return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (args, kwargs))

        return hook

    next_module = spread.model.norm if name == "llama" else spread.transformer.ln_f
    hooks = [
        module.register_forward_pre_hook(move_inputs(device), with_kwargs=True)
        for module, device in ((layer, there), (next_module, here))
    ]
    yield
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_numbers_equal_those_of_one_device(name: str) -> None:
    single = rs.load(network(name))
    expected = single.trace(text())
    names = ("head_statistics", "agreement", "trajectory", "reversed_attention")
    with over_two_devices(name) as two_device_network:
        model = rs.load(two_device_network)
        assert model.view.facts["device"] == "cpu, meta"
        assert {heads.W_Q.device for heads in model.view.layer_heads} == {HERE}
        assert isinstance(model.view.layer_heads[-1].W_Q, StoredTensor)  # copied by each use, and not kept
        trace = model.trace(text())
        torch.testing.assert_close(trace.points, expected.points)
        for analysis_name in names:
            settings = {"draws": 2} if analysis_name == "agreement" else {}
            analyse = analysis_by_name(analysis_name).ask
            subjects = [{"model": m, "trace": t, "text": text()} for m, t in ((model, trace), (single, expected))]
            result, expected_result = (
                analyse(*(subject[key] for key in analysis_by_name(analysis_name).subjects), **settings)
                for subject in subjects
            )
            for field in expected_result.data_vars:
                if expected_result[field].dtype.kind == "f":
                    torch.testing.assert_close(
                        *(torch.from_numpy(x[field].values) for x in (result, expected_result)),
                        rtol=1e-4,
                        atol=1e-5,
                        equal_nan=True,
                    )
        torch.testing.assert_close(model.view.mlps[-1](trace.points[-2]), single.view.mlps[-1](expected.points[-2]))


COMPUTED_ON_THE_BLOCK = {
    "operators": {"draws": 2},
    "scores": {},
    "head_statistics": {},
    "head_types": {},
    "agreement": {"draws": 2},
    "distortion": {"draws": 2},
    "heat": {"draws": 2},
    "reversed_attention": {},
}
"""Analyses of single blocks, with settings that keep them short."""


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_matrix_of_a_block_is_sent_for_analyses_of_single_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    single = rs.load(network(name))
    expected_trace = single.trace(text())
    with over_two_devices(name) as two_device_network:
        model = rs.load(two_device_network)
        trace = model.trace(text())
        monkeypatch.setattr(RemoteTensor, "value", refuse_to_send)
        monkeypatch.setattr(RemoteTensor, "rows", refuse_to_send)
        for layer in range(2):
            for head in range(4):
                torch.testing.assert_close(trace.weights(layer, head), expected_trace.weights(layer, head))
            torch.testing.assert_close(trace.displacements(layer), expected_trace.displacements(layer))
        for analysis, settings in COMPUTED_ON_THE_BLOCK.items():
            assert_same_result(*(run(analysis, m, t, settings) for m, t in ((model, trace), (single, expected_trace))))
        with pytest.raises(AssertionError, match="a matrix was sent"):
            rs.composition(model.view)  # it compares heads of several blocks


def test_a_replaced_matrix_of_a_distant_block_is_used() -> None:
    with over_two_devices("llama") as two_device_network:
        model = rs.load(two_device_network)
        heads, x = model.view.layer_heads[-1], model.trace(text()).layer_input(1)
        doubled = replace(heads, W_O=2 * heads.W_O)
        torch.testing.assert_close(doubled.displacements(x), 2 * heads.displacements(x))


def refuse_to_send(*args: Any) -> Any:
    raise AssertionError("a matrix was sent")


def run(analysis: str, model: Any, trace: Any, settings: dict[str, Any]) -> Any:
    """The result of an analysis on a model and its trace."""
    declared = analysis_by_name(analysis)
    subject = {"model": model, "view": model.view, "trace": trace, "text": text()}
    return declared.ask(*(subject[name] for name in declared.subjects), **settings)


def assert_same_result(result: Any, expected: Any) -> None:
    for field in expected.data_vars:
        if expected[field].dtype.kind == "f":
            numbers = (torch.from_numpy(x[field].values) for x in (result, expected))
            torch.testing.assert_close(*numbers, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_block_on_the_cpu_and_the_others_on_a_gpu_give_the_same_numbers(name: str) -> None:
    single = rs.load(network(name).to("cpu"))
    spread = copy.deepcopy(network(name)).to("cuda:0")
    layer = spread.get_submodule({"llama": "model.layers", "gpt2": "transformer.h"}[name])[-1]
    layer.to("cpu")
    with sending_inputs(spread, name, layer, torch.device("cpu"), torch.device("cuda:0")):
        model = rs.load(spread)
        assert model.view.facts["device"] == "cpu, cuda:0"
        trace, expected_trace = model.trace(text().to("cuda:0")), single.trace(text().to("cpu"))
        torch.testing.assert_close(trace.points.cpu(), expected_trace.points, rtol=1e-4, atol=1e-4)
        for analysis, settings in COMPUTED_ON_THE_BLOCK.items():
            result, expected = (run(analysis, m, t, settings) for m, t in ((model, trace), (single, expected_trace)))
            for field in expected.data_vars:
                if expected[field].dtype.kind == "f" and "null" not in str(field):
                    numbers = (torch.from_numpy(x[field].values) for x in (result, expected))
                    torch.testing.assert_close(*numbers, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_edits_of_a_model_on_two_devices_are_refused() -> None:
    with over_two_devices("llama") as two_device_network:
        model = rs.load(two_device_network)
        with pytest.raises(RheoscopeError, match="editing heads needs a model on one device"):
            model.run(text(), edit={(0, 0): lambda q, k, v, mechanism: v})


def test_device_auto_is_the_cpu_without_a_gpu_and_needs_accelerate_with_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rheoscope.opening.default_device", lambda: "cpu")
    assert resolve_device("gpt2", "auto", is_native=False) == "cpu"
    monkeypatch.setattr("rheoscope.opening.default_device", lambda: "cuda")
    assert resolve_device("gpt2", "auto", is_native=False) == "auto"
    assert resolve_device("mine", "auto", is_native=True) == "cuda"
    assert resolve_device("gpt2", None, is_native=False) == "cuda"
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(RheoscopeError, match="pip install accelerate"):
        rs.load(saved("gpt2", tmp_path), device="auto")


@pytest.mark.parametrize("device_map", [{"a": 0, "b": "disk"}, {"a": 0, "b": "cpu"}])
def test_offloaded_weights_are_refused(device_map: dict[str, Any]) -> None:
    two_device_network = copy.deepcopy(network("gpt2"))
    two_device_network.hf_device_map = device_map
    with pytest.raises(RheoscopeError, match="do not fit on the GPUs"):
        rs.load(two_device_network)


def test_a_model_split_by_tensor_parallelism_is_refused() -> None:
    from torch.distributed.tensor import DTensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        two_device_network = copy.deepcopy(network("gpt2"))
        shard = DTensor.from_local(two_device_network.transformer.ln_f.weight.detach(), init_device_mesh("cpu", (2,)))
        two_device_network.transformer.ln_f.weight = torch.nn.Parameter(shard)
        with pytest.raises(RheoscopeError, match="split by tensor parallelism"):
            rs.load(two_device_network)
    finally:
        torch.distributed.destroy_process_group()
