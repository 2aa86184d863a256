"""Broken checkpoints: each is one line that says what is wrong and what to do, and nothing is half-loaded."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

import rheoscope as rs
from rheoscope.pretrained.checkpoint import FIXED_DTYPE_BUFFERS, initial_network, silence_libraries
from rheoscope.running.weight_files import fingerprint, move_network
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.pretrained.cases import EVERY, gap, model, network, saved, text, tokenizer, traced, with_tensors

Q, UP = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"


def refused(source: Any, match: str, **more: Any) -> str:
    """One RheoscopeError in one line."""
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=match) as told:
        rs.load(source, **more)
    said = str(told.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


def cut(directory: Path, left: int) -> Path:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    return directory


def scratched(directory: Path) -> Path:
    """A header that is no JSON."""
    file = directory / "model.safetensors"
    held = bytearray(file.read_bytes())
    held[9:40] = b"x" * 31
    file.write_bytes(bytes(held))
    return directory


def pickled(directory: Path) -> Path:
    """The weights as .bin only."""
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


def without(directory: Path, *files: str) -> Path:
    for file in files:
        (directory / file).unlink()
    return directory


def filled(name: str, value: float) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[5] = value

    return change


def written(directory: Path, config: str) -> Path:
    (directory / "config.json").write_text(config)
    return directory


def llama(to: Path, **fields: Any) -> Path:
    return saved("llama", to, **fields)


UNFIT = r"the weights of .* do not fit its config \({}: .*\); get both again"
CANNOT = r"cannot load .* \(.*{}.*\); check its config.json, or get it again"
NO_FIELD = (
    r"the config has {}, which the description of 'llama' does not know .*; remove the field, or teach .*llama.py"
)
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty file": (lambda to: cut(llama(to), 0), r"model.safetensors is truncated or corrupt .*; download it again"),
    "cut in the header": (
        lambda to: cut(llama(to), 100),
        r"model.safetensors is truncated or corrupt .*; download it again",
    ),
    "cut in the weights": (lambda to: cut(llama(to), 20_000), r"truncated or corrupt .*; download it again"),
    "one byte short": (lambda to: cut(llama(to), -1), r"truncated or corrupt .*; download it again"),
    "corrupt header": (lambda to: scratched(llama(to)), r"truncated or corrupt .*; download it again"),
    "wider config": (lambda to: llama(to, hidden_size=48), UNFIT.format("of another shape")),
    "more heads": (lambda to: llama(to, num_attention_heads=8), UNFIT.format("of another shape")),
    "more groups": (lambda to: llama(to, num_key_value_heads=4), UNFIT.format("of another shape")),
    "more words": (lambda to: llama(to, vocab_size=41), UNFIT.format("of another shape")),
    "more layers": (lambda to: llama(to, num_hidden_layers=3), UNFIT.format("missing")),
    "fewer layers": (lambda to: llama(to, num_hidden_layers=1), UNFIT.format("of a further layer")),
    "missing tensor": (
        lambda to: with_tensors(llama(to), lambda tensors: tensors.__delitem__(Q)),
        r"\(missing: model.layers.1.self_attn.q_proj.weight\); get both again",
    ),
    "NaN": (
        lambda to: with_tensors(llama(to), filled(UP, torch.nan)),
        r"the weight model.layers.0.mlp.up_proj.weight holds NaN or infinity; download the checkpoint again",
    ),
    "infinity": (
        lambda to: with_tensors(llama(to), filled("model.norm.weight", torch.inf)),
        r"the weight model.norm.weight holds NaN or infinity; download the checkpoint again",
    ),
    "pickle": (
        lambda to: pickled(llama(to)),
        r"holds pytorch_model.bin, a pickle that can run code, .* convert it once: python -c",
    ),
    "no weights": (lambda to: without(llama(to), "model.safetensors"), r"holds no \*.safetensors; type the directory"),
    "no config": (lambda to: without(llama(to), "config.json"), r"holds no config.json; type the directory"),
    "config cut": (lambda to: written(llama(to), "{"), CANNOT.format("not a valid JSON file")),
    "config of another kind": (lambda to: written(llama(to), "[]"), CANNOT.format("model_type")),
    "no model type": (lambda to: llama(to, model_type=None), CANNOT.format("model_type")),
    "unknown model type": (
        lambda to: llama(to, model_type="foo"),
        r"model type that transformers does not know.*; type a model",
    ),
    "undescribed model type": (
        lambda to: llama(to, model_type="bloom"),
        r"unknown model type 'bloom'; described are gpt2, llama, .*: see docs/how-to/add_a_family.md",
    ),
    "remote code": (
        lambda to: llama(to, model_type="foo", auto_map={"AutoConfig": "x.Y", "AutoModelForCausalLM": "x.Z"}),
        r"code that comes with a model is never run; type",
    ),
    "quantised": (
        lambda to: llama(to, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        r"is quantised; .*: type the name of the unquantised model",
    ),
    "quantised by GPTQ": (
        lambda to: llama(to, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"is quantised",
    ),
    "soft cap": (lambda to: llama(to, attn_logit_softcapping=30.0), NO_FIELD.format("attn_logit_softcapping=30.0")),
    "ALiBi": (lambda to: llama(to, alibi=True), NO_FIELD.format("alibi=True")),
    "sinks": (lambda to: llama(to, attention_sink_size=4), NO_FIELD.format("attention_sink_size=4")),
    "heads that do not divide": (lambda to: llama(to, num_attention_heads=3), CANNOT.format("not a multiple")),
    "no heads": (lambda to: llama(to, num_attention_heads=0), CANNOT.format("")),
    "a word for a width": (lambda to: llama(to, hidden_size="big"), CANNOT.format("hidden_size")),
    "unknown rope": (lambda to: llama(to, rope_parameters={"rope_type": "no", "rope_theta": 1e4}), CANNOT.format("no")),
    "unknown activation": (lambda to: llama(to, hidden_act="no"), CANNOT.format("no")),
    "class of another family": (lambda to: llama(to, architectures=["BertModel"]), CANNOT.format("")),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_checkpoint_is_one_line(fault: str, tmp_path: Path) -> None:
    make, match = BROKEN[fault]
    refused(make(tmp_path / "model"), match)


def test_an_empty_directory_and_a_file_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "holds no config.json; type the directory that a model was saved to")
    (tmp_path / "notes").write_text("nothing")
    refused(tmp_path / "notes", "holds no config.json; type")
    refused(tmp_path / "nowhere", "there is no directory .*nowhere; type one that holds config.json")


@pytest.mark.parametrize("name", ["gpt2", "someone/gpt2-nothing"])
def test_a_hub_name_without_a_network_is_refused(name: str) -> None:
    refused(
        name,
        f"{name} is neither a directory here nor in the cache, and no hub can be reached; type a directory, or go online",
    )


def test_a_directory_whose_name_looks_like_an_error_is_still_a_directory(tmp_path: Path) -> None:
    said = refused(written(llama(tmp_path / "offline-401-gated"), "{"), CANNOT.format("JSON"))
    assert "licence" not in said


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0
    shards[0].unlink()
    refused(tmp_path, CANNOT.format("model-00001-of"))


def test_no_device_and_no_dtype_of_that_name(tmp_path: Path) -> None:
    for source in (llama(tmp_path), network("llama")):
        refused(
            source,
            "dtype must be one of float32, bfloat16, float16, float64, got 'float8'; type dtype='float32'",
            dtype="float8",
        )
        refused(source, "there is no device 'warp' on this machine; type device='cpu'", device="warp")
    if not torch.cuda.is_available():
        refused(tmp_path, "there is no device 'cuda' on this machine; type device='cpu'", device="cuda")


@pytest.mark.parametrize("source", [3, torch.nn.Linear(2, 2), torch.nn.Sequential()])
def test_something_else_is_refused(source: Any) -> None:
    is_module = isinstance(source, torch.nn.Module)
    expected = "load takes a transformers model" if is_module else "source must be a name, a directory or a model"
    refused(source, f"{expected}, got ")


def test_a_pickle_is_converted_by_what_the_error_says(tmp_path: Path) -> None:
    """The command in the message is typed: the directory then opens, with the same logits."""
    said = refused(pickled(saved("gpt2_by_depth", tmp_path)), "convert it once")
    code = re.search(r'python -c "(.*)"', said)
    assert code is not None
    exec(code[1], {})
    assert gap(rs.load(tmp_path).run(text()), traced("gpt2_by_depth").logits) == 0


def test_a_pickle_beside_safetensors_is_not_read(tmp_path: Path) -> None:
    llama(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0


def test_a_class_that_nobody_has_falls_back_to_the_language_model(tmp_path: Path) -> None:
    assert type(rs.load(llama(tmp_path, architectures=["Nope"])).network) is hf.LlamaForCausalLM
    saved("bert_bare", tmp_path / "bert", architectures=None)
    assert type(rs.load(tmp_path / "bert").network) is hf.BertModel


def test_a_window_that_llama_does_not_have_changes_nothing(tmp_path: Path) -> None:
    """Hugging Face's Llama ignores the field; so do we, also beyond the eight tokens of the certificate."""
    of = rs.load(llama(tmp_path, sliding_window=12))
    assert gap(of.run(text()), traced("llama").logits) == 0
    trace = of.trace(text())
    assert gap(trace.weights(0, 1), traced("llama").weights(0, 1)) == 0


def test_nothing_is_left_behind(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """After a failure the same directory, mended, opens; the settings of transformers are as before."""
    verbosity, bars = hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()
    directory = llama(tmp_path / "model")
    whole = (directory / "model.safetensors").read_bytes()
    refused(cut(directory, 20_000), "truncated")
    (directory / "model.safetensors").write_bytes(whole)
    assert gap(rs.load(directory).run(text()), traced("llama").logits) == 0
    assert (hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()) == (verbosity, bars)
    assert len(recwarn) == 0


def test_quiet_puts_everything_back_after_an_error() -> None:
    verbosity = hf.logging.get_verbosity()
    with pytest.raises(KeyError), silence_libraries():
        raise KeyError
    assert hf.logging.get_verbosity() == verbosity


def test_loading_writes_nothing_to_the_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = llama(tmp_path, hidden_size=48)
    capfd.readouterr()
    refused(directory, "do not fit")
    assert capfd.readouterr() == ("", "")


# Tokenizers


def test_a_tokenizer_beside_the_weights_is_used(tmp_path: Path) -> None:
    llama(tmp_path)
    assert rs.load(tmp_path).tokenizer is None
    tokenizer().save_pretrained(tmp_path)
    trace = rs.load(tmp_path).trace("w5 w9 w5")
    assert trace.tokens == ["<s>", "w5", "w9", "w5"]
    assert trace.ids.tolist() == [1, 5, 9, 5]
    assert trace.text == "w5 w9 w5"


@pytest.mark.parametrize("held", ["", "{", '{"version": "1.0"}'])
def test_a_broken_tokenizer_is_named_and_without_it_ids_are_read(held: str, tmp_path: Path) -> None:
    """The weights are whole: without the file ids still work, a text is refused with what to do."""
    llama(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(held)
    with pytest.raises(RheoscopeError, match=r"tokenizer.json is no tokenizer.json \(.*\); get it again, or remove it"):
        rs.load(tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    of = rs.load(tmp_path)
    assert torch.equal(of.trace(text()).points, traced("llama").points)
    with pytest.raises(RheoscopeError, match=r"this model has no tokenizer, expected a tokenizer\.json"):
        of.trace("w5")


# Fingerprints, checks, placing


@pytest.mark.parametrize("name", EVERY)
def test_one_changed_number_changes_the_fingerprint(name: str) -> None:
    other = copy.deepcopy(network(name))
    assert fingerprint(other) == fingerprint(network(name)) == model(name).view.facts["weights"]
    with torch.no_grad():
        next(reversed(list(other.parameters()))).view(-1)[0] += 1e-3
    assert fingerprint(other) != fingerprint(network(name))


def test_the_control_is_always_the_same_and_leaves_the_seed_alone() -> None:
    config = network("gpt2").config
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = (initial_network(hf.GPT2LMHeadModel, config) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert fingerprint(one) == fingerprint(other)
    assert one.config is not config


@pytest.mark.parametrize("name", ["llama", "gemma3", "neox", "phi3", "qwen3"])
def test_rotary_tables_keep_their_precision(name: str) -> None:
    half = move_network(copy.deepcopy(network(name)), torch.device("cpu"), torch.bfloat16, FIXED_DTYPE_BUFFERS)
    assert all(x.dtype is torch.bfloat16 for x in half.parameters())
    tables = {key: x for key, x in half.named_buffers() if key.endswith("inv_freq")}
    assert tables
    for key, x in tables.items():
        assert torch.equal(x, network(name).get_buffer(key))


def test_a_config_and_its_directory_survive(tmp_path: Path) -> None:
    """Loading reads; it writes nothing."""
    directory = llama(tmp_path / "model")
    held = {file.name: file.read_bytes() for file in directory.iterdir()}
    rs.load(directory)
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == held
    shutil.rmtree(directory)
    assert json.loads(held["config.json"])["model_type"] == "llama"
