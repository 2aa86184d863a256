"""Checkpoints along training as a series of models, loaded one at a time, and any analysis over such a series."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.opening import load
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import SUBJECTS

if TYPE_CHECKING:
    import xarray

CHECKPOINT = "checkpoint"
"""The axis of a result over a series."""
MODEL_FILES = ("config.json", "adapter_config.json")
"""A folder with one of these files is a checkpoint."""
Label = int | str
OnCheckpoint = Callable[[int, int, Label], None]
"""Called with the number of finished checkpoints, their total and the label of the next one."""


@dataclass(frozen=True)
class CheckpointSeries(Sequence):
    """Checkpoints of one training run in order. `series[i]` and iteration load a model each time, so that only one is in memory.

    `labels` are the training steps, or names where they have no number.

    >>> import rheoscope as rs
    >>> series = CheckpointSeries("two copies", (0, 100), ({"source": None}, {"source": None}))
    >>> len(series), series[1].view.layers
    (2, 6)
    """

    name: str
    labels: tuple[Label, ...]
    load_options: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> RunnableModel: ...
    @overload
    def __getitem__(self, index: slice) -> "CheckpointSeries": ...
    def __getitem__(self, index: int | slice) -> "RunnableModel | CheckpointSeries":
        if isinstance(index, slice):
            return CheckpointSeries(self.name, self.labels[index], self.load_options[index])
        return load(**self.load_options[index])

    def __iter__(self) -> Iterator[RunnableModel]:
        return (load(**options) for options in self.load_options)

    def __repr__(self) -> str:
        labels = ", ".join(map(str, self.labels if len(self) <= 6 else [*self.labels[:3], "…", *self.labels[-2:]]))
        return f"<CheckpointSeries {self.name}: {len(self)} checkpoints ({labels})>"


def load_series(
    source: str | Path,
    revisions: Sequence[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    tokenizer: Any = None,
) -> CheckpointSeries:
    """Open the checkpoints of a training run as a series of models, in the order of their steps.

    **Returns** a sequence of Models with `labels`. A model is loaded when it is read, and nothing keeps it in memory.

    **Settings**
    `source` is a folder with one folder per checkpoint, such as `checkpoint-500` of the `Trainer` of transformers, or a Hub name with
    `revisions`. Folders of adapters open on the base model that they name.
    `revisions` are branches or tags of the Hub repository, for example `["step0", "step1000"]`.
    `device`, `dtype` and `tokenizer` are those of `rs.load`.

    The last number in a name is its step, and the series is sorted by it. Revisions without a number stay in the given order.

    **See also** `rs.over_series` runs an analysis over it. `rs.atlas([rs.card(model) for model in series])` compares the cards.

    >>> import rheoscope as rs
    >>> rs.load_series("EleutherAI/pythia-70m", revisions=["step1000", "step0", "step512"])
    <CheckpointSeries EleutherAI/pythia-70m: 3 checkpoints (0, 512, 1000)>
    """
    options = {"device": device, "dtype": dtype, "tokenizer": tokenizer}
    if revisions is not None:
        return _series_of_revisions(str(source), revisions, options)
    folders = _checkpoint_folders(Path(source))
    steps = {folder: _step(folder.name) for folder in folders}
    nameless = [folder.name for folder in folders if steps[folder] is None]
    if nameless:
        raise RheoscopeError(
            Message(
                "the name of the checkpoint {name} in {folder} has no step; rename it, for example to checkpoint-500",
                name=nameless[0],
                folder=str(source),
            )
        )
    ordered = sorted(folders, key=lambda folder: steps[folder] or 0)
    labels = tuple(steps[folder] or 0 for folder in ordered)
    _check_distinct(str(source), labels, [folder.name for folder in ordered])
    return CheckpointSeries(str(source), labels, tuple(options | {"source": str(folder)} for folder in ordered))


def over_series(
    analysis: "Callable[..., xarray.Dataset]",
    series: CheckpointSeries | list[RunnableModel] | tuple[RunnableModel, ...],
    text: Any = None,
    on_checkpoint: OnCheckpoint | None = None,
    **settings: Any,
) -> "xarray.Dataset":
    """Run an analysis on every checkpoint of a series: one result with the axis `checkpoint`.

    **Question** How does this change during training?

    **Settings**
    `analysis` is any analysis of `rs.analyses()`, or your own function of `view`, `trace` or `model` that returns a Dataset.
    `series` is the result of `rs.load_series`, or a list of Models, which are numbered from 0.
    `text` is traced in every checkpoint, if the analysis reads a text. `settings` are those of the analysis.
    `on_checkpoint(done, total, label)` reports progress.

    **Returns** every field that has the same axes in all checkpoints, stacked along `checkpoint`, with its definition and its null.
    The coordinate `weights_hash` has the hash of each model. `attrs["fields_not_shared"]` lists all other fields. `rs.plot` draws the
    result.

    **Laws** `result.isel(checkpoint=i)` has the numbers of the analysis of `series[i]`.

    **See also** `rheoscope analyse NAME --series FOLDER` is the same on the command line. `rheoscope learned` follows chosen
    quantities during a training run of this package.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> rs.over_series(rs.operators, [rs.load(untrained=True), model]).symmetry.dims
    ('checkpoint', 'layer', 'head')
    """
    labels = getattr(series, "labels", tuple(range(len(series))))
    subjects = _subjects(analysis, text)
    results, hashes, models = [], [], iter(series)
    for index, label in enumerate(labels):
        if on_checkpoint is not None:
            on_checkpoint(index, len(labels), label)
        model = next(models)
        results.append(analysis(*_subject_values(model, subjects, text), **settings))
        hashes.append(str(model.view.facts["weights"]))
        del model  # before the next one is loaded
    if not results:
        raise RheoscopeError(
            Message("over_series needs at least 1 checkpoint, got 0"), Advice("rs.load_series('runs/checkpoints')")
        )
    return _join(results, labels, hashes).assign_attrs(series=getattr(series, "name", ""))


# Sources


def _series_of_revisions(source: str, revisions: Sequence[str], options: dict[str, Any]) -> CheckpointSeries:
    if Path(source).exists():
        raise RheoscopeError(
            Message("{source} is a directory, but revisions belong to a hub name; leave them out", source=source),
            Advice(f"rs.load_series({source!r})", f"--series {source}"),
        )
    if isinstance(revisions, str) or not revisions:
        raise RheoscopeError(
            Message("revisions must be a list of at least 1 name, got {received!r}", received=revisions),
            Advice("revisions=['step0', 'step1000']", "--revisions step0,step1000"),
        )
    steps = [_step(revision) for revision in revisions]
    labels: list[Label] = list(revisions) if None in steps else [step or 0 for step in steps]
    ordered = (
        sorted(zip(labels, revisions, strict=True)) if None not in steps else list(zip(labels, revisions, strict=True))
    )
    _check_distinct(source, [label for label, _ in ordered], [revision for _, revision in ordered])
    load_options = tuple(options | {"source": source, "revision": revision} for _, revision in ordered)
    return CheckpointSeries(source, tuple(label for label, _ in ordered), load_options)


def _checkpoint_folders(directory: Path) -> list[Path]:
    """The folders of checkpoints in a directory. Raises if there are none."""
    if not directory.is_dir():
        raise RheoscopeError(
            Message("there is no directory {directory}; a hub name needs revisions", directory=str(directory)),
            Advice(
                f"rs.load_series({str(directory)!r}, revisions=['step0', 'step1000'])", "--revisions step0,step1000"
            ),
        )
    folders = [
        folder
        for folder in directory.iterdir()
        if folder.is_dir() and any((folder / name).is_file() for name in MODEL_FILES)
    ]
    if not folders:
        raise RheoscopeError(
            Message(
                "{directory} contains no folders of checkpoints; choose the directory that holds checkpoint-500, checkpoint-1000, …",
                directory=str(directory),
            )
        )
    return folders


def _step(name: str) -> int | None:
    """The last number in a name, or None.

    >>> _step("checkpoint-500"), _step("stage1-step-000100"), _step("main")
    (500, 100, None)
    """
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def _check_distinct(source: str, labels: Sequence[Label], names: Sequence[str]) -> None:
    first = next((index for index in range(1, len(labels)) if labels[index] == labels[index - 1]), None)
    if first is not None:
        raise RheoscopeError(
            Message(
                "{first} and {second} of {source} have the same step {step}; a series is one training run",
                first=names[first - 1],
                second=names[first],
                source=source,
                step=labels[first],
            )
        )


# Analyses over a series


def _subjects(analysis: Any, text: Any) -> tuple[str, ...]:
    """The inputs of an analysis, in order. Raises if it has none, or if it reads a text and there is none."""
    parameters = inspect.signature(analysis).parameters if callable(analysis) else {}
    subjects = tuple(name for name in parameters if name in SUBJECTS)
    name = getattr(analysis, "__name__", repr(analysis))
    if not subjects:
        raise RheoscopeError(
            Message("over_series needs a function of view, trace or model, but {name} takes none of them", name=name),
            Advice("rs.over_series(rs.operators, series)"),
        )
    if text is None and {"trace", "text", "texts"} & set(subjects):
        raise RheoscopeError(
            Message("{name} reads a text, and over_series got none", name=name),
            Advice(f"rs.over_series(rs.{name}, series, 'The keys to the cabinet are')"),
        )
    return subjects


def _subject_values(model: RunnableModel, subjects: Sequence[str], text: Any) -> list[Any]:
    values: dict[str, Callable[[], Any]] = {
        "view": lambda: model.view,
        "model": lambda: model,
        "trace": lambda: model.trace(text),
        "text": lambda: text,
        "texts": lambda: text,
    }
    return [values[subject]() for subject in subjects]


def _join(results: "Sequence[xarray.Dataset]", labels: Sequence[Label], hashes: Sequence[str]) -> "xarray.Dataset":
    """All results along `checkpoint`: the fields with the same axes, and the attributes that all have in common."""
    import xarray as xr

    first = results[0]
    names = [str(name) for name in first.data_vars if _is_shared(str(name), results)]
    if not names:
        raise RheoscopeError(Message("the checkpoints have no field with the same axes; are they of one training run?"))
    coords = {CHECKPOINT: list(labels), "weights_hash": (CHECKPOINT, list(hashes))}
    fields = {
        name: xr.Variable(
            (CHECKPOINT, *first[name].dims), _stack([result[name].values for result in results]), first[name].attrs
        )
        for name in names
    }
    shared = {
        key: value
        for key, value in first.attrs.items()
        if all(_is_equal(result.attrs.get(key), value) for result in results)
    }
    not_shared = sorted({str(name) for result in results for name in result.data_vars} - set(names))
    attributes = {key: value for key, value in shared.items() if key != "weights"} | {"fields_not_shared": not_shared}
    return xr.Dataset(fields, {**first[names].coords, **coords}, attributes)


def _stack(arrays: Sequence[Any]) -> Any:
    import numpy as np

    return np.stack([np.asarray(array) for array in arrays])


def _is_shared(name: str, results: "Sequence[xarray.Dataset]") -> bool:
    """Whether a field has the same axes with the same coordinates in all results."""
    first, *others = (result.get(name) for result in results)
    if first is None or CHECKPOINT in first.dims:
        return False
    return all(
        other is not None
        and other.dims == first.dims
        and other.shape == first.shape
        and other.coords.to_dataset().equals(first.coords.to_dataset())
        for other in others
    )


def _is_equal(value: Any, expected: Any) -> bool:
    return type(value) is type(expected) and bool(value == expected)
