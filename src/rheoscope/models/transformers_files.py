"""Models of this project in the files that transformers opens: `AutoModelForCausalLM.from_pretrained(…, trust_remote_code=True)`.

The folder has one module of two lines, which imports the classes of the installed package. It contains no other code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from rheoscope.files import write_file
from rheoscope.models.checkpoint import CONFIG, check_no_foreign_files, save

MODULE = "modeling_rheoscope"
CLASSES = {"AutoConfig": "RheoscopeConfig", "AutoModelForCausalLM": "RheoscopeForCausalLM"}
SOURCE = f'"""Needs the package rheoscope."""\n\nfrom rheoscope.models.transformers_model import {", ".join(CLASSES.values())}\n'
TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast"}


def save_for_transformers(
    model: nn.Module,
    directory: str | Path,
    tokenizer: Any = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Write a decoder to a directory that `rheoscope.load` and transformers open, with the same logits.

    **Settings** as in `checkpoint.save`.

    >>> import tempfile, torch, transformers
    >>> from rheoscope.models.config import Config
    >>> from rheoscope.models.transformer import Transformer
    >>> model = Transformer(Config(vocabulary=9, width=8, depth=1, heads=2)).eval()
    >>> folder = save_for_transformers(model, tempfile.mkdtemp())
    >>> opened = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    >>> torch.equal(opened(torch.tensor([[1, 2, 3]])).logits, model(torch.tensor([[1, 2, 3]])))
    True
    """
    directory = Path(directory)
    check_no_foreign_files(directory)
    save(model, directory, tokenizer, card)
    content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    content["auto_map"] = {auto: f"{MODULE}.{name}" for auto, name in CLASSES.items()}
    files = {CONFIG: json.dumps(content, indent=1) + "\n", f"{MODULE}.py": SOURCE}
    if tokenizer is not None:
        files["tokenizer_config.json"] = json.dumps(TOKENIZER_CONFIG) + "\n"
    for name, text in files.items():
        write_file(directory / name, lambda file, text=text: file.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    return directory
