"""The monitor in `rheoscope train --monitor`: it checks the heads on held-out texts and writes to the folder of the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxtyping import Int
from torch import Tensor, nn

from rheoscope.learn.monitor.fixed_batch import MAX_TEXTS
from rheoscope.learn.monitor.monitor import Monitor
from rheoscope.messages.message import Message
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Task
from rheoscope.shapes import RheoscopeError


@dataclass(eq=False)
class MonitorObserver:
    """An observer for `train(observe=…)`. The monitor opens the model at the first call."""

    every: int
    out: Path
    texts: Sequence[Int[Tensor, " n"]]
    monitors: list[Monitor] = field(default_factory=list)

    def __call__(self, step: int, model: nn.Module) -> None:
        if not self.monitors:
            self.monitors.append(Monitor(model, self.every, self.out, self.texts))
        if step:
            self.monitors[0].step(step=step)

    @staticmethod
    def from_task(every: int, out: Path, task: Task, recipe: Recipe) -> "MonitorObserver":
        """An observer that uses the first held-out texts."""
        if recipe.config.form == "encoder-decoder":
            raise RheoscopeError(
                Message(
                    "monitor needs a model with a single stack of layers, got an encoder-decoder; leave monitor out"
                )
            )
        inputs, _ = next(iter(task.held_out_batches(recipe)))
        return MonitorObserver(every, out, list(inputs[:MAX_TEXTS]))
