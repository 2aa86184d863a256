"""Adapters of peft: their M and F are those of the merged model, and nothing that the caller holds changes."""

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import rheoscope as rs
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.report.next_steps import model_arguments
from rheoscope.space.predictions import next_token_logits
from rheoscope.space.results import Results
from tests.network_state import OUTDATED, same_state, state_of
from tests.pretrained.cases import GROUPED, network, randomised

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*(fan_in_fan_out|already merged)")

TARGETS = {
    "llama": ["q_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "neox": ["query_key_value", "dense"],
    "bert": ["query", "value", "dense"],
    "gemma3": ["q_proj", "k_proj"],
}
KINDS: dict[str, Callable[[], Any]] = {
    "DoRA": lambda: lora("llama", use_dora=True),
    "LoKr": lambda: peft.LoKrConfig(r=2, target_modules=TARGETS["llama"], init_weights=False),
    "IA3": lambda: peft.IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[], init_ia3_weights=False),
    "retrained": lambda: lora("llama", modules_to_save=["lm_head", "embed_tokens"]),
    "embedding": lambda: peft.LoraConfig(
        r=2, target_modules=["q_proj", "embed_tokens", "lm_head"], init_lora_weights=False
    ),
    "tokens": lambda: lora("llama", trainable_token_indices=[3, 4]),
}
IDS = torch.arange(3, 12)


def lora(name: str, **more: Any) -> Any:
    return peft.LoraConfig(r=3, target_modules=TARGETS[name], init_lora_weights=False, **more)


def base(name: str = "llama") -> Any:
    return copy.deepcopy(network(name))


def adapted(config: Any, name: str = "llama") -> Any:
    """A case with an adapter of random weights."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tied weights
        torch.manual_seed(1)
        return peft.get_peft_model(base(name), config).eval()


def merged(peft_model: Any) -> Any:
    return rs.load(copy.deepcopy(peft_model).merge_and_unload())


def test_analyses_of_an_adapted_model_are_those_of_the_merged_model() -> None:
    peft_model = adapted(lora("llama"))
    model, merged_model = rs.load(peft_model), merged(peft_model)
    for analyse in (
        lambda x: rs.surgery(x, IDS, heads=[(0, 1)], M="symmetric"),
        lambda x: rs.reversed_attention(x, x.trace(IDS)),
        lambda x: rs.score_attribution(x.trace(IDS), layer=1, head=1, query=7, key=2),
    ):
        result, expected = analyse(model), analyse(merged_model)
        for name in expected.data_vars:
            if expected[name].dtype.kind == "f":
                assert np.allclose(result[name], expected[name], rtol=1e-3, atol=1e-4, equal_nan=True), name


def gap(model: Any, other: Any) -> float:
    """The largest relative difference of any M, F, and of both tables."""
    pairs = [(model.view.embed, other.view.embed), (model.view.unembed, other.view.unembed)]
    for heads, other_heads in zip(model.view.layer_heads, other.view.layer_heads, strict=True):
        pairs += [(heads.M().dense(), other_heads.M().dense()), (heads.F().dense(), other_heads.F().dense())]
    return max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs if b is not None)


@pytest.mark.parametrize("name", TARGETS)
def test_an_adapter_has_the_operators_of_the_merged_model(name: str) -> None:
    peft_model = adapted(lora(name), name)
    model = rs.load(peft_model)
    assert gap(model, merged(peft_model)) <= 1e-6
    assert gap(model, rs.load(base(name))) > 0.1
    assert torch.equal(model.trace(IDS, logits=True).logits, peft_model(input_ids=IDS[None]).logits[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_edits_weights_has_the_operators_of_the_merged_model(kind: str) -> None:
    peft_model = adapted(KINDS[kind]())
    for x in peft_model.parameters():
        if x.requires_grad:
            with torch.no_grad():
                x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    model = rs.load(peft_model)
    assert gap(model, rs.load(base())) > 1e-3
    if kind != "embedding":  # merging would give tied tables both edits
        assert gap(model, merged(peft_model)) <= 1e-6
    trace = model.trace(IDS, logits=True)
    assert torch.allclose(next_token_logits(model.view, trace.points[-1]), trace.logits, atol=1e-4)


def test_an_adapter_on_a_type_that_the_finder_describes_has_the_operators_of_the_merged_model() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = randomised(hf.Olmo2ForCausalLM(hf.Olmo2Config(**GROUPED)))
    peft_model = peft.get_peft_model(net, lora("llama")).eval()
    before = state_of(peft_model)
    model = rs.load(peft_model)
    assert same_state(before, state_of(peft_model))
    assert gap(model, merged(peft_model)) <= 1e-6
    assert torch.equal(model.trace(IDS, logits=True).logits, peft_model(input_ids=IDS[None]).logits[0])


def test_a_description_names_the_layers_that_have_adapters() -> None:
    location = rs.describe(rs.load(adapted(lora("llama")))).location
    layer = "model.layers.1.self_attn"
    names = {"W_Q": f"{layer}.q_proj", "W_K": f"{layer}.k_proj.weight", "W_O": f"{layer}.o_proj"}
    assert {name: location.sel(layer=1, matrix=name).item() for name in names} == names


def test_the_edit_of_M_has_the_rank_of_the_adapter() -> None:
    model, plain = rs.load(adapted(lora("llama"))), rs.load(base())
    change = model.view.head(0, 1).M.dense() - plain.view.head(0, 1).M.dense()
    assert int(torch.linalg.matrix_rank(change.detach(), rtol=1e-4)) == 3


def test_the_base_model_and_every_adapter_of_a_model_can_be_compared() -> None:
    peft_model = adapted(lora("llama"))
    peft_model.add_adapter("second", lora("llama"))
    before = state_of(peft_model)
    first, second, plain = (rs.load(peft_model, adapter=adapter) for adapter in ("default", "second", False))
    assert same_state(before, state_of(peft_model))
    assert gap(plain, rs.load(base())) == 0
    assert plain.view.facts["weights"] == rs.load(base()).view.facts["weights"]
    assert len({model.view.facts["weights"] for model in (first, second, plain)}) == 3
    assert [model.view.facts["model"].split(" + ")[1:] for model in (first, second, plain)] == [
        ["default"],
        ["second"],
        [],
    ]
    assert min(gap(first, second), gap(second, plain)) > 0.1
    assert gap(rs.load(peft_model), first) == 0


def test_after_ten_optimiser_steps_the_view_follows() -> None:
    peft_model = adapted(lora("llama"))
    model = rs.load(peft_model)
    before = model.view.layer_heads
    optimiser = torch.optim.AdamW([x for x in peft_model.parameters() if x.requires_grad], lr=0.1)
    for _ in range(10):
        peft_model(input_ids=IDS[None], labels=IDS[None]).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    with pytest.raises(rs.RheoscopeError, match=OUTDATED):
        model.view.head(0, 0)
    trained = rs.load(model.network)
    assert gap(trained, merged(peft_model)) <= 1e-6
    assert not torch.allclose(trained.view.layer_heads[0].M().dense(), before[0].M().dense(), rtol=0.1)


def test_adapters_may_be_merged_in_place() -> None:
    peft_model = adapted(lora("llama"))
    unmerged = rs.load(peft_model)
    peft_model.merge_adapter()
    with pytest.raises(rs.RheoscopeError, match=OUTDATED):
        unmerged.trace(IDS)
    in_place, plain = rs.load(peft_model), rs.load(peft_model, adapter=False)
    assert gap(in_place, merged(peft_model)) == 0
    assert gap(plain, rs.load(base())) <= 1e-6
    in_place.trace(IDS)


@pytest.mark.parametrize("change", [lambda x: x.set_adapter("second"), lambda x: x.base_model.disable_adapter_layers()])
def test_a_view_is_out_of_date_once_other_adapters_act(change: Callable[[Any], None]) -> None:
    peft_model = adapted(lora("llama"))
    peft_model.add_adapter("second", lora("llama"))
    model = rs.load(peft_model)
    change(peft_model)
    with pytest.raises(rs.RheoscopeError, match=OUTDATED):
        model.view.head(0, 0)
    rs.load(peft_model).trace(IDS)


def test_half_precision_adapters_are_described_in_float32() -> None:
    peft_model = peft.get_peft_model(base().bfloat16(), lora("llama")).eval()
    weight = effective_weights(peft_model.get_base_model().model.layers[0].self_attn.q_proj).weight
    assert weight.dtype == torch.float32
    rs.load(peft_model).trace(IDS)


# Adapter directories


@pytest.fixture(name="saved", scope="module")
def saved_directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The directories of a base model and of an adapter on it."""
    root = tmp_path_factory.mktemp("adapters")
    network("llama").save_pretrained(root / "base")
    peft_model = adapted(lora("llama"))
    peft_model.peft_config["default"].base_model_name_or_path = str(root / "base")
    peft_model.save_pretrained(root / "adapter")
    return root / "base", root / "adapter"


def test_a_streamed_model_has_no_adapter(saved: tuple[Path, Path]) -> None:
    base_directory, adapter = saved
    with pytest.raises(rs.RheoscopeError, match="needs its base model in memory, so the model cannot be streamed"):
        rs.load(base_directory, adapter=adapter, stream=True)
    assert "adapter" not in rs.load(base_directory, adapter=False, stream=True).view.facts


def test_an_adapter_directory_opens_on_its_base(saved: tuple[Path, Path]) -> None:
    base_directory, adapter = saved
    net = base()
    before = state_of(net)
    models = [rs.load(base_directory, adapter=adapter), rs.load(adapter), rs.load(net, adapter=str(adapter))]
    assert same_state(before, state_of(net))
    assert models[1].view.facts["model"] == f"{base_directory} + {adapter}"
    assert (
        model_arguments(Results(models[1].view, models[1].token_strings, None))
        == f"{base_directory} --adapter {adapter}"
    )
    for model in models:
        assert gap(model, rs.load(adapted(lora("llama")))) == 0
    assert gap(rs.load(adapter, adapter=False), rs.load(net)) == 0
    rs.load(adapter, untrained=True)


def with_config(to: Path, **changes: Any) -> Path:
    file = to / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return to


def without(to: Path, name: str) -> Path:
    (to / name).unlink()
    return to


def truncated(to: Path) -> Path:
    file = to / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    return to


def shallow() -> Any:
    net = base()
    net.model.layers = net.model.layers[:1]
    net.config.num_hidden_layers = 1
    return net


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "another width": (
        lambda to: rs.load(base("qwen3"), adapter=to),
        "does not fit Qwen3ForCausalLM .*trained on .*base$",
    ),
    "another type": (lambda to: rs.load(base("gpt2"), adapter=to), "does not fit GPT2LMHeadModel .Target modules"),
    "fewer layers": (
        lambda to: rs.load(shallow(), adapter=to),
        r"no place for model.layers.1.self_attn.o_proj.lora_A.weight",
    ),
    "more layers": (lambda to: rs.load(base(), adapter=with_config(to, layers_to_transform=[0])), "no place for"),
    "no directory": (lambda to: rs.load(base(), adapter=to / "no"), "contains no readable adapter_config.json; choose"),
    "no adapter": (lambda to: rs.load(base(), adapter=to.parent), "contains no readable adapter_config.json; choose"),
    "no weights": (
        lambda to: rs.load(base(), adapter=without(to, "adapter_model.safetensors")),
        "contains no adapter_model",
    ),
    "truncated": (lambda to: rs.load(base(), adapter=truncated(to)), "truncated or corrupt"),
    "no base": (
        lambda to: rs.load(with_config(to, base_model_name_or_path=None)),
        "does not name its base model; type",
    ),
    "prefix": (
        lambda to: rs.load(with_config(to, peft_type="PREFIX_TUNING")),
        "adds tokens instead of editing weights",
    ),
    "mixture": (lambda to: rs.load(base(), adapter=with_config(to, peft_type="XLORA")), "depends on the token"),
    "default model": (lambda to: rs.load(adapter=to), "models of this package have no adapters"),
    "true": (lambda to: rs.load(base(), adapter=True), "adapter must be a directory, a name or False, got True"),
    "untrained": (lambda to: rs.load("gpt2", adapter=to, untrained=True), "untrained=True gives initial weights"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_adapter_that_cannot_be_opened_raises_one_line(fault: str, saved: tuple[Path, Path], tmp_path: Path) -> None:
    directory = tmp_path / "adapter"
    directory.mkdir()
    for file in saved[1].glob("adapter_*"):
        (directory / file.name).write_bytes(file.read_bytes())
    call, message = FAULTS[fault]
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        call(directory)
    assert "\n" not in str(error.value)


def test_prompt_tuning_is_refused_and_its_base_model_opens() -> None:
    peft_model = peft.get_peft_model(base(), peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"))
    with pytest.raises(rs.RheoscopeError, match="adds tokens instead of editing weights"):
        rs.load(peft_model)
    assert gap(rs.load(peft_model, adapter=False), rs.load(base())) == 0


def test_a_missing_peft_is_named(saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(rs.RheoscopeError, match="pip install peft"):
        rs.load(saved[1])


def test_an_unknown_name_lists_the_adapters() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"no adapter 'third' .*; its adapters are default; type adapter='default'"
    ):
        rs.load(adapted(lora("llama")), adapter="third")
