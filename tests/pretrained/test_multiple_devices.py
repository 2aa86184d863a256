"""A model whose layers lie on two devices: the same numbers as on one, and what cannot be read is refused in one line."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import rheoscope as rs
from rheoscope.catalogue import analysis_by_name
from rheoscope.opening import resolve_device
from rheoscope.pretrained import checkpoint
from rheoscope.shapes import RheoscopeError
from tests.elsewhere import AWAY, elsewhere
from tests.pretrained.cases import network, saved, text

HERE = torch.device("cpu")


@contextmanager
def over_two_devices(name: str) -> Iterator[Any]:
    """A network with its last layer elsewhere; each module is sent what it reads, as accelerate does it."""
    with elsewhere():
        net = copy.deepcopy(network(name)).eval()
        layer = net.get_submodule({"llama": "model.layers", "gpt2": "transformer.h"}[name])[-1]
        layer.to(AWAY)

        def sending(place: torch.device) -> Any:
            def send(module: Any, args: Any, kwargs: Any) -> Any:
                return tree_map(lambda x: x.to(place) if isinstance(x, torch.Tensor) else x, (args, kwargs))

            return send

        hooks = [layer.register_forward_pre_hook(sending(AWAY), with_kwargs=True)]
        after = net.model.norm if name == "llama" else net.transformer.ln_f
        hooks.append(after.register_forward_pre_hook(sending(HERE), with_kwargs=True))
        yield net


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_numbers_are_those_of_one_device(name: str) -> None:
    whole = rs.load(network(name))
    expected = whole.trace(text())
    asked = ("head_statistics", "agreement", "trajectory", "reversed_attention")
    with over_two_devices(name) as net:
        model = rs.load(net)
        assert model.view.facts["device"] == "cpu, meta"
        assert {heads.W_Q.device for heads in model.view.layer_heads} == {HERE}
        found = model.trace(text())
        torch.testing.assert_close(found.points, expected.points)
        for one in asked:
            settings = {"draws": 2} if one == "agreement" else {}
            ask = analysis_by_name(one).ask
            subjects = [{"model": m, "trace": t, "text": text()} for m, t in ((model, found), (whole, expected))]
            mine, theirs = (
                ask(*(all_of[key] for key in analysis_by_name(one).subjects), **settings) for all_of in subjects
            )
            for field in theirs.data_vars:
                if theirs[field].dtype.kind == "f":
                    torch.testing.assert_close(
                        *(torch.from_numpy(x[field].values) for x in (mine, theirs)),
                        rtol=1e-4,
                        atol=1e-5,
                        equal_nan=True,
                    )
        torch.testing.assert_close(model.view.mlps[-1](found.points[-2]), whole.view.mlps[-1](expected.points[-2]))


def test_heads_of_such_a_model_are_not_edited() -> None:
    with over_two_devices("llama") as net:
        model = rs.load(net)
        with pytest.raises(RheoscopeError, match="heads are edited on one device"):
            model.run(text(), edit={(0, 0): lambda q, k, v, mechanism: v})


def test_auto_is_the_cpu_where_there_is_no_gpu_and_asks_for_accelerate_where_there_is(
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


@pytest.mark.parametrize("places", [{"a": 0, "b": "disk"}, {"a": 0, "b": "cpu"}])
def test_weights_that_are_on_no_gpu_are_refused(places: dict[str, Any]) -> None:
    net = copy.deepcopy(network("gpt2"))
    net.hf_device_map = places
    with pytest.raises(RheoscopeError, match="fit on no GPU"):
        rs.load(net)


def test_a_model_cut_by_tensor_parallelism_is_refused() -> None:
    from torch.distributed.tensor import DTensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        net = copy.deepcopy(network("gpt2"))
        cut = DTensor.from_local(net.transformer.ln_f.weight.detach(), init_device_mesh("cpu", (2,)))
        net.transformer.ln_f.weight = torch.nn.Parameter(cut)
        with pytest.raises(RheoscopeError, match="cut by tensor parallelism"):
            rs.load(net)
    finally:
        torch.distributed.destroy_process_group()
