"""Decoders of this project as classes of transformers. Only folders written by `save_for_transformers` import this file."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from rheoscope.messages.message import Message
from rheoscope.models.checkpoint import load_network
from rheoscope.models.transformer import Transformer
from rheoscope.shapes import RheoscopeError

IGNORED = -100
"""Labels that are no targets, as in transformers."""


class RheoscopeConfig(PretrainedConfig):
    """The fields of `Config` for transformers."""

    model_type = "rheoscope"

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class RheoscopeForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder of this project. Its network is the one that `rheoscope.load` opens, so its logits are the same.

    It has no cache of keys and values, so generation reads the text again for every token; `rheoscope generate` has one.
    """

    config_class = RheoscopeConfig
    main_input_name = "input_ids"

    def __init__(self, config: RheoscopeConfig, network: Transformer) -> None:
        super().__init__(config)
        self.network = network

    @classmethod
    def from_pretrained(cls, directory: Any, *args: Any, config: Any = None, **options: Any) -> "RheoscopeForCausalLM":
        """The model in a directory, in float32 on the CPU."""
        network, _ = load_network(Path(directory))
        own_config = config if isinstance(config, RheoscopeConfig) else RheoscopeConfig.from_pretrained(directory)
        own_config.vocab_size = network.config.vocabulary
        own_config.use_cache = False
        if not isinstance(network, Transformer):
            raise RheoscopeError(Message("{directory} holds an encoder-decoder", directory=str(directory)))
        return cls(own_config, network).eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.network.stack.embed

    def forward(
        self,
        input_ids: Int[Tensor, "b n"],
        attention_mask: Int[Tensor, "b n"] | None = None,
        labels: Int[Tensor, "b n"] | None = None,
        **options: Any,
    ) -> CausalLMOutput:
        """Logits, and the mean loss of the next tokens if there are labels. Padding may only be on the right."""
        is_token = None if attention_mask is None else attention_mask.bool()
        if is_token is not None and (is_token[:, 1:] & ~is_token[:, :-1]).any():
            raise RheoscopeError(Message("texts are padded on the left, expected padding on the right"))
        logits = self.network(input_ids, is_token)
        return CausalLMOutput(loss=None if labels is None else next_token_loss(logits, labels), logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, **options: Any) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": options.get("attention_mask")}


def next_token_loss(logits: Float[Tensor, "b n v"], labels: Int[Tensor, "b n"]) -> Float[Tensor, ""]:
    """The mean cross-entropy of labels i + 1 under logits i, without labels of −100."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten().to(torch.long), ignore_index=IGNORED
    )
