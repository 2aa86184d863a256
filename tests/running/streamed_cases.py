"""Checkpoints of tiny networks with several shards, loaded in memory and streamed."""

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers as hf

import rheoscope as rs
from tests.pretrained.cases import GROUPED, network, randomised

FAMILIES = ["llama", "gpt2", "bert", "neox", "gemma3"]
SHARD_SIZE = "20KB"


@cache
def checkpoint(name: str) -> Path:
    """A directory with the weights of a case, in several files."""
    directory = TemporaryDirectory(prefix="rheoscope-shards-")
    atexit.register(directory.cleanup)
    network(name).save_pretrained(directory.name, max_shard_size=SHARD_SIZE)
    return Path(directory.name)


@cache
def resident(name: str) -> Any:
    return rs.load(checkpoint(name), stream=False)


@cache
def streamed(name: str) -> Any:
    return rs.load(checkpoint(name), stream=True)


@cache
def deep_streamed() -> Any:
    """A streamed model of five layers."""
    directory = TemporaryDirectory(prefix="rheoscope-deep-")
    atexit.register(directory.cleanup)
    config = hf.LlamaConfig(**GROUPED | {"num_hidden_layers": 5})
    randomised(hf.LlamaForCausalLM(config)).save_pretrained(directory.name)
    return rs.load(directory.name, stream=True)
