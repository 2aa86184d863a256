"""Damaged checkpoints: each raises one line with the problem and what to do, and nothing is half-loaded."""

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


def refused(source: Any, pattern: str, **more: Any) -> str:
    """Check that loading raises a one-line RheoscopeError, and return its text."""
    with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=pattern) as error:
        rs.load(source, **more)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


def truncated(directory: Path, length: int) -> Path:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    return directory


def with_corrupt_header(directory: Path) -> Path:
    """A header that is not JSON."""
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[9:40] = b"x" * 31
    file.write_bytes(bytes(content))
    return directory


def as_pickle(directory: Path) -> Path:
    """The weights only as a .bin file."""
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


def without(directory: Path, *files: str) -> Path:
    for file in files:
        (directory / file).unlink()
    return directory


def set_value(name: str, value: float) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name].view(-1)[5] = value

    return change


def with_config_text(directory: Path, config: str) -> Path:
    (directory / "config.json").write_text(config)
    return directory


def llama(to: Path, **fields: Any) -> Path:
    return saved("llama", to, **fields)


def without_attention(to: Path) -> Path:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 40}
    hf.FNetForMaskedLM(hf.FNetConfig(**sizes)).save_pretrained(to)
    return to


UNFIT = r"the weights of .* do not fit its config \({}: .*\); download or save both again"
NO_MODEL_TYPE = r"config.json names no model type \(model_type\); download it again"
CANNOT = r"cannot load .* \(.*{}.*\); check its config.json or download it again"
NO_FIELD = r"the config has {}, which may change attention .* 'llama' does not handle; remove the field, .*llama.py"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty file": (
        lambda to: truncated(llama(to), 0),
        r"model.safetensors is truncated or corrupt .*; download it again",
    ),
    "cut in the header": (
        lambda to: truncated(llama(to), 100),
        r"model.safetensors is truncated or corrupt .*; download it again",
    ),
    "cut in the weights": (lambda to: truncated(llama(to), 20_000), r"truncated or corrupt .*; download it again"),
    "one byte short": (lambda to: truncated(llama(to), -1), r"truncated or corrupt .*; download it again"),
    "corrupt header": (lambda to: with_corrupt_header(llama(to)), r"truncated or corrupt .*; download it again"),
    "wider config": (lambda to: llama(to, hidden_size=48), UNFIT.format("wrong shape")),
    "more heads": (lambda to: llama(to, num_attention_heads=8), UNFIT.format("wrong shape")),
    "more groups": (lambda to: llama(to, num_key_value_heads=4), UNFIT.format("wrong shape")),
    "more words": (lambda to: llama(to, vocab_size=41), UNFIT.format("wrong shape")),
    "more layers": (lambda to: llama(to, num_hidden_layers=3), UNFIT.format("missing")),
    "fewer layers": (lambda to: llama(to, num_hidden_layers=1), UNFIT.format("of a layer that the config lacks")),
    "missing tensor": (
        lambda to: with_tensors(llama(to), lambda tensors: tensors.__delitem__(Q)),
        r"\(missing: model.layers.1.self_attn.q_proj.weight\); download or save both again",
    ),
    "NaN": (
        lambda to: with_tensors(llama(to), set_value(UP, torch.nan)),
        r"the weight model.layers.0.mlp.up_proj.weight holds NaN or infinity; download the checkpoint again",
    ),
    "infinity": (
        lambda to: with_tensors(llama(to), set_value("model.norm.weight", torch.inf)),
        r"the weight model.norm.weight holds NaN or infinity; download the checkpoint again",
    ),
    "pickle": (
        lambda to: as_pickle(llama(to)),
        r"contains pytorch_model.bin, a pickle that can run code, .* convert it once; type from transformers import",
    ),
    "no weights": (
        lambda to: without(llama(to), "model.safetensors"),
        r"contains no \*.safetensors; choose the directory",
    ),
    "no config": (lambda to: without(llama(to), "config.json"), r"contains no config.json; choose the directory"),
    "config cut": (lambda to: with_config_text(llama(to), "{"), r"config.json is no valid JSON; download it again"),
    "config of another kind": (lambda to: with_config_text(llama(to), "[]"), NO_MODEL_TYPE),
    "no model type": (lambda to: llama(to, model_type=None), NO_MODEL_TYPE),
    "unknown model type": (
        lambda to: llama(to, model_type="foo"),
        r"transformers does not know the model type of .*; choose a model",
    ),
    "model type without attention": (
        lambda to: without_attention(to),
        r"FNetForMaskedLM has no softmax over tokens, so it has no attention",
    ),
    "remote code": (
        lambda to: llama(to, model_type="foo", auto_map={"AutoConfig": "x.Y", "AutoModelForCausalLM": "x.Z"}),
        r"code that comes with a model is never run; choose",
    ),
    "quantised": (
        lambda to: llama(to, quantization_config={"quant_method": "quanto", "weights": "int8"}),
        r"is quantised by quanto, which does not open it here .*; install its packages, or choose the unquantised model",
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
def test_a_damaged_checkpoint_raises_one_line(fault: str, tmp_path: Path) -> None:
    make, pattern = BROKEN[fault]
    refused(make(tmp_path / "model"), pattern)


def test_an_empty_directory_and_a_file_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "contains no config.json; choose the directory that a model was saved to")
    (tmp_path / "notes").write_text("nothing")
    refused(tmp_path / "notes", "contains no config.json; choose")
    refused(tmp_path / "nowhere", "there is no directory .*nowhere; choose one with config.json")


@pytest.mark.parametrize("name", ["gpt2", "someone/gpt2-nothing"])
def test_a_hub_name_without_a_network_is_refused(name: str) -> None:
    refused(
        name,
        f"{name} is neither a directory nor in the cache, and the hub cannot be reached; choose a directory or go online",
    )


def test_a_directory_whose_name_looks_like_an_error_is_still_a_directory(tmp_path: Path) -> None:
    message = refused(
        with_config_text(llama(tmp_path / "offline-401-gated"), "{"), r"is no valid JSON; download it again"
    )
    assert "licence" not in message


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path, max_shard_size="10KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0
    shards[0].unlink()
    refused(tmp_path, r"lacks 1 of the \d+ weight files that model.safetensors.index.json lists \(model-00001-of")
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    refused(tmp_path, r"model.safetensors.index.json is no index of weight files; download it again")


def test_unknown_devices_and_dtypes_are_refused(tmp_path: Path) -> None:
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
def test_anything_but_a_name_or_a_model_is_refused(source: Any) -> None:
    is_module = isinstance(source, torch.nn.Module)
    expected = "load expects a transformers model" if is_module else "source must be a name, a directory or a model"
    refused(source, f"{expected}, got ")


def test_the_advised_code_converts_a_pickle(tmp_path: Path) -> None:
    """After the advised code has run, the directory opens with the same logits."""
    message = refused(as_pickle(saved("gpt2_by_depth", tmp_path)), "convert it once")
    code = re.search(r"convert it once; type (.*)", message)
    assert code is not None
    exec(code[1], {})
    assert gap(rs.load(tmp_path).run(text()), traced("gpt2_by_depth").logits) == 0


def test_a_pickle_beside_safetensors_is_not_read(tmp_path: Path) -> None:
    llama(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert gap(rs.load(tmp_path).run(text()), traced("llama").logits) == 0


def test_an_unknown_class_falls_back_to_the_language_model(tmp_path: Path) -> None:
    assert type(rs.load(llama(tmp_path, architectures=["Nope"])).network) is hf.LlamaForCausalLM
    saved("bert_bare", tmp_path / "bert", architectures=None)
    assert type(rs.load(tmp_path / "bert").network) is hf.BertModel


def test_a_window_that_llama_does_not_have_changes_nothing(tmp_path: Path) -> None:
    """Hugging Face's Llama ignores the field, and so do we, also beyond the tokens of the certificate."""
    loaded = rs.load(llama(tmp_path, sliding_window=12))
    assert gap(loaded.run(text()), traced("llama").logits) == 0
    trace = loaded.trace(text())
    assert gap(trace.weights(0, 1), traced("llama").weights(0, 1)) == 0


def test_a_failed_load_leaves_nothing_behind(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """After a failure, the repaired directory opens, and the settings of transformers are unchanged."""
    verbosity, bars = hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()
    directory = llama(tmp_path / "model")
    weights = (directory / "model.safetensors").read_bytes()
    refused(truncated(directory, 20_000), "truncated")
    (directory / "model.safetensors").write_bytes(weights)
    assert gap(rs.load(directory).run(text()), traced("llama").logits) == 0
    assert (hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()) == (verbosity, bars)
    assert len(recwarn) == 0


def test_silence_libraries_restores_the_verbosity_after_an_error() -> None:
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


@pytest.mark.parametrize("content", ["", "{", '{"version": "1.0"}'])
def test_a_damaged_tokenizer_is_refused_and_without_it_ids_work(content: str, tmp_path: Path) -> None:
    """The weights are intact. Without the file, ids still work and a text is refused with advice."""
    llama(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(
        RheoscopeError, match=r"tokenizer.json is not a valid tokenizer.json \(.*\); download it again, or"
    ):
        rs.load(tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    loaded = rs.load(tmp_path)
    assert torch.equal(loaded.trace(text()).points, traced("llama").points)
    with pytest.raises(RheoscopeError, match=r"this model has no tokenizer, expected a tokenizer\.json"):
        loaded.trace("w5")


# Fingerprints and dtypes


@pytest.mark.parametrize("name", EVERY)
def test_one_changed_number_changes_the_fingerprint(name: str) -> None:
    second = copy.deepcopy(network(name))
    assert fingerprint(second) == fingerprint(network(name)) == model(name).view.facts["weights"]
    with torch.no_grad():
        next(reversed(list(second.parameters()))).view(-1)[0] += 1e-3
    assert fingerprint(second) != fingerprint(network(name))


def test_the_control_is_always_the_same_and_leaves_the_seed_alone() -> None:
    config = network("gpt2").config
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = (initial_network(hf.GPT2LMHeadModel, config) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert fingerprint(first) == fingerprint(second)
    assert first.config is not config


@pytest.mark.parametrize("name", ["llama", "gemma3", "neox", "phi3", "qwen3"])
def test_rotary_tables_keep_their_precision(name: str) -> None:
    half_precision = move_network(
        copy.deepcopy(network(name)), torch.device("cpu"), torch.bfloat16, FIXED_DTYPE_BUFFERS
    )
    assert all(x.dtype is torch.bfloat16 for x in half_precision.parameters())
    tables = {key: x for key, x in half_precision.named_buffers() if key.endswith("inv_freq")}
    assert tables
    for key, x in tables.items():
        assert torch.equal(x, network(name).get_buffer(key))


def test_loading_does_not_change_the_directory(tmp_path: Path) -> None:
    """Loading reads and writes nothing."""
    directory = llama(tmp_path / "model")
    content = {file.name: file.read_bytes() for file in directory.iterdir()}
    rs.load(directory)
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == content
    shutil.rmtree(directory)
    assert json.loads(content["config.json"])["model_type"] == "llama"
