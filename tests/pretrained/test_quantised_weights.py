"""Quantised weights: M and F are those of the dequantised weights, and the certificate states the gap to the quantised run."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import rheoscope as rs
from rheoscope.pretrained.effective_weights import effective_weights
from rheoscope.pretrained.quantised_weights import is_quantised
from rheoscope.running.certificate import QUANTISATION_BOUND
from tests.network_state import same_state, state_of
from tests.pretrained.cases import SPECIAL, VOCABULARY, network, randomised
from tests.pretrained.quantised_networks import Int8Linear, dequantised, quantised

IDS = torch.arange(3, 12)


def gap(model: Any, other: Any) -> float:
    """The largest relative difference of any M or F."""
    pairs = [
        (getattr(heads, name)().dense(), getattr(other_heads, name)().dense())
        for heads, other_heads in zip(model.view.layer_heads, other.view.layer_heads, strict=True)
        for name in "MF"
    ]
    return max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_operators_are_those_of_the_dequantised_weights(name: str) -> None:
    net = quantised(name)
    before = state_of(net)
    model = rs.load(net)
    certificate = model.view.facts["certificate"]
    assert gap(model, rs.load(dequantised(net))) <= 1e-5
    assert gap(model, rs.load(network(name))) > 1e-3
    assert certificate.gap <= 1e-5
    assert certificate.quantisation
    assert "and the quantised run differs by up to" in str(certificate)
    assert torch.equal(model.trace(IDS, logits=True).logits, net(input_ids=IDS[None]).logits[0])
    assert same_state(before, state_of(net))


def test_the_certificate_states_the_gap_of_rounded_inputs() -> None:
    certificates = [rs.load(quantised(grid=grid)).view.facts["certificate"] for grid in (0.0, 1 / 127, 1 / 15)]
    gaps = [certificate.gap for certificate in certificates]
    assert gaps == sorted(gaps)
    assert 1e-3 < gaps[1] < 0.03 < gaps[2] <= QUANTISATION_BOUND
    assert max(certificate.closure_error for certificate in certificates) < 1e-5


def test_a_gap_beyond_the_bound_is_refused() -> None:
    with pytest.raises(
        rs.RheoscopeError, match=r"differ from the quantised run by 0\.\d\d, more than 0\.2; load the model"
    ) as error:
        rs.load(quantised(grid=0.5))
    assert "\n" not in str(error.value)


def test_a_wrong_description_is_refused_although_its_error_is_below_the_bound() -> None:
    net = quantised()
    net.model.layers[0].input_layernorm.register_forward_hook(lambda module, args, out: out * 1.01)
    with pytest.raises(rs.RheoscopeError, match="does not reproduce this model"):
        rs.load(net)


class Unreadable(Int8Linear):
    """A layer whose kernel does not run here."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("no kernel for the CPU")


def test_weights_that_cannot_be_computed_are_refused() -> None:
    net = copy.deepcopy(network("llama"))
    net.model.layers[1].self_attn.k_proj = Unreadable(net.model.layers[1].self_attn.k_proj)
    with pytest.raises(
        rs.RheoscopeError, match=r"a Unreadable is quantised .*no kernel for the CPU.*without quantisation"
    ):
        rs.load(net)


def test_a_quantised_network_is_not_converted() -> None:
    with pytest.raises(rs.RheoscopeError, match="quantised for float32 on cpu and cannot be converted"):
        rs.load(quantised(), dtype="bfloat16")


def test_the_hash_depends_on_the_codes_and_the_view_is_out_of_date_when_they_change() -> None:
    net = quantised()
    model = rs.load(net)
    codes = net.model.layers[0].self_attn.q_proj.codes
    codes.neg_()
    with pytest.raises(rs.RheoscopeError, match="have changed since"):
        model.view.head(0, 0)
    assert rs.load(net).view.facts["weights"] != model.view.facts["weights"]


def test_the_weights_of_any_linear_map_are_read_off_its_outputs() -> None:
    linear = nn.Linear(5, 3).double()
    weights = effective_weights(Int8Linear(linear.float()))
    assert torch.allclose(weights.weight, linear.weight.float(), atol=5e-3)
    assert weights.bias is not None
    assert torch.allclose(weights.bias, linear.bias.float())
    assert not is_quantised(linear)


# The libraries themselves


def torchao_settings(name: str) -> Any:
    quantization = pytest.importorskip("torchao.quantization")
    return hf.TorchAoConfig(getattr(quantization, name)())


def bitsandbytes_settings(**more: Any) -> Any:
    pytest.importorskip("bitsandbytes")
    return hf.BitsAndBytesConfig(**more)


LIBRARIES: dict[str, tuple[Callable[[], Any], float]] = {
    "torchao, int8 weights": (lambda: torchao_settings("Int8WeightOnlyConfig"), 1e-5),
    "torchao, int8 activations": (lambda: torchao_settings("Int8DynamicActivationInt8WeightConfig"), 0.05),
    "bitsandbytes, 8 bits": (lambda: bitsandbytes_settings(load_in_8bit=True), 0.05),
    "bitsandbytes, 4 bits": (lambda: bitsandbytes_settings(load_in_4bit=True, bnb_4bit_quant_type="nf4"), 1e-5),
}


@pytest.fixture(name="checkpoint", scope="module")
def checkpoint_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with widths that quantisation kernels take."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=VOCABULARY, **SPECIAL)
    directory = tmp_path_factory.mktemp("quantised") / "model"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        randomised(hf.LlamaForCausalLM(config)).save_pretrained(directory)
    return directory


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", LIBRARIES)
def test_networks_and_checkpoints_of_quantisation_libraries_open(
    library: str, checkpoint: Path, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate")
    make_settings, largest_gap = LIBRARIES[library]
    net = hf.LlamaForCausalLM.from_pretrained(
        checkpoint, quantization_config=make_settings(), dtype=torch.float32, device_map="cpu"
    ).eval()
    model = rs.load(net)
    assert model.view.facts["certificate"].gap <= largest_gap
    assert 0 < gap(model, rs.load(checkpoint)) < 0.5
    assert model.parameter_count == rs.load(checkpoint).parameter_count
    net.save_pretrained(tmp_path)
    stored = rs.load(tmp_path)
    assert gap(stored, model) == 0
    assert stored.view.facts["weights"] == model.view.facts["weights"]
    rs.energy(model.trace(IDS))


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_on_4_bit_weights_adds_to_the_dequantised_ones(checkpoint: Path) -> None:
    peft = pytest.importorskip("peft")
    settings = bitsandbytes_settings(load_in_4bit=True)
    net = hf.LlamaForCausalLM.from_pretrained(
        checkpoint, quantization_config=settings, dtype=torch.float32, device_map="cpu"
    )
    plain = rs.load(net)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft_model = peft.get_peft_model(net, config).eval()
    model = rs.load(peft_model)
    layer = peft_model.get_base_model().model.layers[0].self_attn.q_proj
    change = model.view.layer_heads[0].W_Q - plain.view.layer_heads[0].W_Q
    assert torch.allclose(change.mT.flatten(0, 1), layer.get_delta_weight("default"), atol=1e-6)
    assert gap(rs.load(peft_model, adapter=False), plain) == 0


# GGUF files


def write_gguf(file: Path, net: Any) -> None:
    """A GGUF file in Q4_0, as llama.cpp writes a Llama."""
    gguf = pytest.importorskip("gguf")
    config, heads = net.config, net.config.num_attention_heads
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.0] * config.vocab_size)
    writer.add_token_types([1] * config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, x in net.state_dict().items():
        stem, _, kind = name.rpartition(".")
        interleaved = x
        if stem.endswith(("q_proj", "k_proj")):  # rotary pairs lie next to each other in GGUF
            n_heads = heads if stem.endswith("q_proj") else config.num_key_value_heads
            interleaved = x.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        quantisation = gguf.GGMLQuantizationType.Q4_0 if x.ndim == 2 else gguf.GGMLQuantizationType.F32
        numbers = gguf.quants.quantize(interleaved.float().numpy(), quantisation)
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", numbers, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_opens_with_the_weights_that_the_run_uses(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    net = hf.LlamaForCausalLM.from_pretrained(checkpoint)
    file = tmp_path / "tiny.Q4_0.gguf"
    write_gguf(file, net)
    model = rs.load(file)
    certificate = model.view.facts["certificate"]
    assert 0.01 < gap(model, rs.load(checkpoint)) < 0.5
    assert (certificate.stored_as, certificate.gap) == ("gguf", 0.0)
    assert "weights stored as gguf and dequantised for the run" in str(certificate)
    model.trace(IDS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/place/model.gguf", r"there is no file .*; choose a GGUF file"),
        ("/nowhere/model.gguf", r"there is no file /nowhere/model.gguf"),
    ],
)
def test_a_gguf_file_that_is_not_there_is_named(source: str, message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message):
        rs.load(source)


def test_a_missing_gguf_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheoscope.pretrained.quantised_sources.find_spec", lambda name: None)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(rs.RheoscopeError, match=r"reading model.gguf needs gguf; .* pip install gguf"):
        rs.load(tmp_path / "model.gguf")


def test_a_quantised_checkpoint_names_the_packages_that_it_needs(checkpoint: Path, tmp_path: Path) -> None:
    for name in os.listdir(checkpoint):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "gptq", "bits": 4}
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        rs.RheoscopeError, match=r"is quantised by gptq, which does not open it here .* pip install gptqmodel"
    ):
        rs.load(tmp_path)
    with pytest.raises(rs.RheoscopeError, match="only unquantised weights can be streamed"):
        rs.load(tmp_path, stream=True)
