"""The registry of families: which file describes which model type, and a check for config fields that no family handles."""

import re
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from rheoscope.messages.message import Message
from rheoscope.pretrained import family as family_package
from rheoscope.pretrained.finder import describe_network
from rheoscope.pretrained.network_inputs import is_pair
from rheoscope.shapes import RheoscopeError


def load_families() -> dict[str, ModuleType]:
    """Every described model type with the file of its family, from the `MODEL_TYPES` of the files.

    >>> load_families()["mistral"].__name__
    'rheoscope.pretrained.family.llama'
    """
    files = [import_module(f"{family_package.__name__}.{file.name}") for file in iter_modules(family_package.__path__)]
    return {model_type: file for file in files for model_type in getattr(file, "MODEL_TYPES", ())}


FAMILIES = load_families()
"""The file of each described model type."""
ATTENTION_FIELD = re.compile(
    r"attn|attention|head|rope|rotary|window|softcap|qk_|norm|scal|alibi|position|sink|layer_types|clip"
)
"""Names of config fields that may change what attention computes."""
HARMLESS_FIELDS = frozenset(
    {"_attn_implementation", "_attn_implementation_internal", "hidden_act", "num_labels", "pruned_heads"}
)


def is_found(network: Any) -> bool:
    """Whether no family file describes a network, so that the finder does."""
    return is_pair(network) or family_of(network.config) is describe_network


def family_of(config: Any) -> ModuleType:
    """The file that describes a model type: its family, else the finder. Raises for a field that a family does not handle."""
    model_type = getattr(config, "model_type", "")
    if model_type not in FAMILIES:
        return describe_network
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
            Message(
                "the config has {name}={value!r}, which may change attention and which the description of "
                "{model_type!r} does not handle; remove the field, or handle it in "
                "src/rheoscope/pretrained/family/{file}.py",
                name=name,
                value=value,
                model_type=model_type,
                file=family.__name__.rsplit(".", 1)[-1],
            )
        )
    return family
