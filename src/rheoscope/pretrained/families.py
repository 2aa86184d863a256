"""Which file describes which model type: the only registry of families, and the refusal of what none of them knows."""

import re
from types import ModuleType
from typing import Any

from rheoscope.pretrained.family import bert, gemma3, gpt2, llama, neox, opt, phi3, qwen3
from rheoscope.shapes import RheoscopeError

FAMILIES: dict[str, ModuleType] = {
    "gpt2": gpt2,
    "llama": llama,
    "mistral": llama,
    "qwen2": llama,
    "qwen3": qwen3,
    "gpt_neox": neox,
    "opt": opt,
    "gemma3_text": gemma3,
    "phi3": phi3,
    "bert": bert,
    "roberta": bert,
}

ATTENTION_FIELD = re.compile(
    r"attn|attention|head|rope|rotary|window|softcap|qk_|norm|scal|alibi|position|sink|layer_types|clip"
)
"""Names of config fields that may change what attention computes."""
HARMLESS_FIELDS = frozenset(
    {"_attn_implementation", "_attn_implementation_internal", "hidden_act", "num_labels", "pruned_heads"}
)


def family_of(config: Any) -> ModuleType:
    """The family of a model type; an unknown type, or a field that its family does not know, is refused by name."""
    model_type = getattr(config, "model_type", "")
    if model_type not in FAMILIES:
        raise RheoscopeError(
            f"unknown model type {model_type!r}; described are {', '.join(FAMILIES)}: see docs/how-to/add_a_family.md for another"
        )
    family = FAMILIES[model_type]
    for name, value in config.to_diff_dict().items():
        if (
            value is None
            or value is False
            or name in family.KNOWN_FIELDS
            or name in HARMLESS_FIELDS
            or not ATTENTION_FIELD.search(name)
        ):
            continue
        raise RheoscopeError(
            f"the config has {name}={value!r}, which the description of {model_type!r} does not know and which may change "
            f"attention; remove the field, or teach src/rheoscope/pretrained/family/{family.__name__.rsplit('.', 1)[-1]}.py about it"
        )
    return family
