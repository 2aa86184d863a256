"""The monitor as a callback: of the Trainer of transformers, and of Lightning. Neither package is imported."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

OTHER_METHODS = ("setup", "teardown", "load_state_dict")
"""Methods of callbacks, besides events, that the monitor does not need."""


class TrainingCallbacks(ABC):
    """The events of both trainers that the monitor uses. Every other event does nothing."""

    state_key = "rheoscope.Monitor"

    @abstractmethod
    def step(self, loss: Any = None, step: int | None = None) -> None:
        """An optimiser step was taken."""

    @abstractmethod
    def close(self) -> None:
        """The training has ended."""

    @abstractmethod
    def follow(self, network: Any) -> None:
        """The network as a trainer has wrapped it."""

    @abstractmethod
    def suggest_texts(self, batch: Any) -> None:
        """A batch of the training, which may serve as the fixed batch."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """The Trainer of transformers starts: its first examples are the fixed batch."""
        self.follow(context.get("model"))
        self.suggest_texts(lambda: first_examples(context.get("train_dataloader")))

    def on_step_end(self, args: Any, state: Any, control: Any, **context: Any) -> None:
        """The Trainer of transformers took an optimiser step."""
        last_log = state.log_history[-1] if state.log_history else {}
        self.step(last_log.get("loss"), state.global_step)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Lightning trained on a batch. With accumulated gradients, several batches belong to one step."""
        self.suggest_texts(lambda: batch)
        self.step(outputs.get("loss") if isinstance(outputs, Mapping) else outputs, trainer.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Either trainer has finished."""
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Nothing of the monitor belongs to a checkpoint."""
        return {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in OTHER_METHODS:
            return ignore_event
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def ignore_event(*_: Any, **__: Any) -> None:
    """An event that the monitor does not use."""


def first_examples(loader: Any, count: int = 4) -> Any:
    """The first examples of the dataset behind a loader, which is not iterated; None if it has no index."""
    dataset: Any = getattr(loader, "dataset", None)
    if not hasattr(dataset, "__getitem__"):
        return None
    return [dataset[index] for index in range(min(count, len(dataset)))]
