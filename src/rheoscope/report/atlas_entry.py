"""An entry of the atlas: the card of a model, curves over its layers and numbers of its heads, stored as one small file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheoscope.files import signature, write_report
from rheoscope.messages.message import Message
from rheoscope.report.card import card, default_texts, prepare_texts
from rheoscope.report.card_clouds import CardCloud, clouds_of
from rheoscope.report.card_controls import untrained_model
from rheoscope.report.card_measurements import OnTask
from rheoscope.report.json_file import to_plain_json
from rheoscope.report.layer_curves import layer_tables
from rheoscope.report.next_steps import DEFAULT_MODEL
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.traces import Traces
from rheoscope.statistics.claim_answers import MIN_DRAWS, MIN_SHARED_DRAWS

if TYPE_CHECKING:
    import pandas
    import xarray

DIGITS = 6
"""The significant digits of stored numbers."""
LEFT_OUT = ("value", "story_number")
"""Fields of a card that stories use. The atlas does not, and they are half of its size."""
CLOUD = "cloud"


@dataclass(frozen=True, eq=False)
class AtlasEntry:
    """What the atlas knows about one model.

    `card` has the claims. `clouds` has a row per cloud, one for a model of one text, `source` and `target` for an encoder–decoder:
    its size, its texts and its tokens. `curves` and `heads` are those of `layer_tables`, with a column `cloud`. `command` computes
    the entry again.
    """

    model: str
    command: str
    card: "xarray.Dataset"
    clouds: "pandas.DataFrame"
    curves: "pandas.DataFrame"
    heads: "pandas.DataFrame"

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON can hold it, with numbers of six digits."""
        tables = {name: getattr(self, name).to_dict("list") for name in ("clouds", "curves", "heads")}
        content = {"model": self.model, "command": self.command, "card": self.card.to_dict()} | tables
        return rounded(to_plain_json(content))

    def save(self, path: Path) -> str:
        """Write the entry as a signed file."""
        text = json.dumps({"written_by": signature()} | self.to_json(), ensure_ascii=False, separators=(",", ": "))
        return write_report(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_entry(path: Path) -> AtlasEntry:
    """A stored entry. Raises for a file that is none."""
    import pandas as pd
    import xarray as xr

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stored_card = xr.Dataset.from_dict(content["card"])
        tables = {name: pd.DataFrame(content[name]).infer_objects() for name in ("clouds", "curves", "heads")}
        return AtlasEntry(content["model"], content["command"], with_numbers(stored_card), **tables)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RheoscopeError(
            Message("{path} is no entry of an atlas: {reason}", path=str(path), reason=str(error))
        ) from error


def atlas_entry(
    model: RunnableModel,
    texts: Sequence[Any] | None = None,
    draws: int = MIN_SHARED_DRAWS,
    untrained: int = MIN_DRAWS,
    seed: int = 0,
    cache: bool = True,
    progress: OnTask | None = None,
    command: str = "",
) -> AtlasEntry:
    """Compute the entry of a model. A stored card is read; the curves are computed here."""
    import pandas as pd

    result = card(model, texts, draws, untrained, seed, cache, progress)
    texts = prepare_texts(model, default_texts(model) if texts is None else texts, progress)
    control = untrained_model(model, seed)
    facts, curves, heads = [], [], []
    for cloud in clouds_of(model, texts):
        on_progress = None if progress is None else progress(Message("curves over the layers"))
        batches = cloud.traces()
        cloud_curves, cloud_heads = layer_tables(batches, cloud.in_model(control).traces(), on_progress)
        facts.append(cloud_facts(cloud, batches))
        curves.append(cloud_curves.assign(**{CLOUD: cloud.side}))
        heads.append(cloud_heads.assign(**{CLOUD: cloud.side}))
    kept_card = result.drop_vars([name for name in LEFT_OUT if name in result])
    name = entry_name(model)
    kept_card.attrs = without_path(kept_card.attrs, model.view.name, name) | {"model": name}
    tables = pd.DataFrame(facts), pd.concat(curves, ignore_index=True), pd.concat(heads, ignore_index=True)
    return AtlasEntry(name, command, kept_card, *tables)


def entry_name(model: RunnableModel) -> str:
    """The name of a model in the atlas, which is also that of its file: a directory without its path, `default` for the default model."""
    return "default" if model.view.name == DEFAULT_MODEL else Path(model.view.name).name


def without_path(attributes: Mapping[str, Any], path: str, name: str) -> dict[str, Any]:
    """Attributes whose sentences have the name of a model instead of its directory, so that a stored entry names no folder.

    >>> without_path({"skipped rest": "/home/me/bert has no MLP", "draws": 40}, "/home/me/bert", "bert")
    {'skipped rest': 'bert has no MLP', 'draws': 40}
    """
    return {key: value.replace(path, name) if isinstance(value, str) else value for key, value in attributes.items()}


def cloud_facts(cloud: CardCloud, batches: Sequence[Traces]) -> dict[str, Any]:
    """The size of a cloud's model, its texts and tokens, where its norms are, and how many tokens are massive."""
    view = batches[0].view
    n_massive = sum(int((traces.massive_tokens() & traces.is_token).sum()) for traces in batches)
    return {
        CLOUD: cloud.side,
        "type": str(view.facts.get("type")),
        "layers": view.layers,
        "distinct_layers": view.distinct_layers,
        "heads": view.heads,
        "width": view.width,
        "parameters": cloud.model.parameter_count,
        "is_causal": not view.is_bidirectional,
        "is_post_norm": any(step.is_sum for step in batches[0].steps),
        "n_texts": len(cloud.texts),
        "n_tokens": sum(int(traces.lengths.sum()) for traces in batches),
        "massive_per_text": n_massive / len(cloud.texts),
    }


def rounded(value: Any) -> Any:
    """Every float of a JSON value, to six significant digits.

    >>> rounded({"x": [0.123456789, 1]})
    {'x': [0.123457, 1]}
    """
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def with_numbers(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """A Dataset from JSON, whose arrays of numbers and null are numbers and NaN again."""
    is_mixed = {
        name: x.dtype == object and not any(isinstance(v, str) for v in x.values.flat) for name, x in dataset.items()
    }
    return dataset.assign({name: x.astype(np.float64) for name, x in dataset.items() if is_mixed[name]})
