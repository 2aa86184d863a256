"""The training monitor: every few steps it measures all heads on a small fixed batch, and reports what goes wrong in one line."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rheoscope.learn.monitor.alarms import Alarm, AlarmList
from rheoscope.learn.monitor.fixed_batch import fixed_batch, random_texts, texts_of
from rheoscope.learn.monitor.live_model import LiveModel, undisturbed, unwrap
from rheoscope.learn.monitor.logs import Log, open_logs
from rheoscope.learn.monitor.quantities import Reading, measure
from rheoscope.learn.monitor.training_callbacks import TrainingCallbacks
from rheoscope.messages.advice import use
from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message
from rheoscope.running.runner import RunnableModel
from rheoscope.shapes import RheoscopeError

if TYPE_CHECKING:
    import xarray

LOGGER = logging.getLogger("rheoscope.monitor")
MAX_READINGS = 1000
"""The number of readings that stay in memory. Logs have all of them."""
LARGE_SHARE = 0.02
"""The share of the training time from which the monitor names a larger `every`."""


class Monitor(TrainingCallbacks):
    """A training monitor: what every head does while a model trains, and alarms before the loss shows a failure.

    **Question** Do scores explode, does attention collapse, do tokens become equal, is a head dead or duplicated?

    **Settings** `model` is a network that `rs.load` opens, or a Model. It may be wrapped before or after: by torch.compile,
    DistributedDataParallel or FullyShardedDataParallel. `every` is the number of optimiser steps between two checks. `log` is a folder
    (which `rheoscope studio --runs FOLDER` shows), a TensorBoard `SummaryWriter`, "wandb", a function of the reading and its new
    alarms, or a list of these. `texts` is the fixed batch: strings or token ids, of which four are used, with 64 tokens each. Without
    it, the callbacks use the first batch of the training, and `step` uses random tokens.

    **Use** `Trainer(…, callbacks=[monitor])` of transformers or Lightning, or `monitor.step(loss)` after every optimiser step.
    With several processes, each of them calls it, and the first one measures.

    **Returns** `monitor.readings` and `monitor.alarms`; `monitor.dataset()` has the readings as (training_step, layer, head). An alarm
    is one line with the step, the head, the value, the rule and what to try. It also goes to the logger `rheoscope.monitor`.

    **Laws** The training takes the same steps with it and without it, bit for bit. A check that fails is reported in one line, and the
    training continues.

    **See also** `rheoscope train --look` measures all analyses at chosen steps, `rs.over_series` measures stored checkpoints.

    >>> import torch, rheoscope as rs
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> network = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, n_positions=16))
    >>> optimiser, monitor = torch.optim.AdamW(network.parameters()), rs.Monitor(network, every=2)
    >>> for ids in torch.randint(9, (4, 3, 16)):
    ...     loss = network(input_ids=ids, labels=ids).loss
    ...     loss.backward()
    ...     optimiser.step()
    ...     monitor.step(loss)
    >>> [reading.step for reading in monitor.readings], monitor.alarms
    ([2, 4], [])
    """

    def __init__(
        self, model: nn.Module | RunnableModel, every: int = 100, log: Any = None, texts: Sequence[Any] | None = None
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise RheoscopeError(
                Message("every must be an integer of at least 1, got {received!r}", received=every), use(every=100)
            )
        network, tokenizer = (model.network, model.tokenizer) if isinstance(model, RunnableModel) else (model, None)
        self.every, self.readings = every, deque[Reading](maxlen=MAX_READINGS)
        self._logs, self._alarms, self._texts = open_logs(log), AlarmList(), texts
        self._live_model, self._batch = LiveModel(network, tokenizer), list[Any]()
        self._step, self._last_check_end = 0, time.perf_counter()
        weakref.finalize(self, close_logs, self._logs)

    @property
    def alarms(self) -> list[Alarm]:
        """All alarms so far."""
        return self._alarms.alarms

    def step(self, loss: Any = None, step: int | None = None) -> None:
        """An optimiser step was taken, with this loss. `step` is its number, if it is not one more than before."""
        step = self._step + 1 if step is None else int(step)
        if step != self._step and step % self.every == 0:
            self._check(step, loss)
        self._step = step

    def follow(self, network: nn.Module | None) -> None:
        """Measure the network as a trainer has wrapped it, if it is the same one."""
        if network is not None and unwrap(network) is unwrap(self._live_model.network):
            self._live_model.network = network

    def suggest_texts(self, batch: Any) -> None:
        """Use the texts of a training batch (a function that returns it) unless the monitor has its texts."""
        if self._texts is None:
            try:
                with torch.random.fork_rng(devices=[]):
                    self._texts = texts_of(batch()) or ()
            except Exception as error:
                self._texts = ()
                report_failure(self._step, error)

    def _check(self, step: int, loss: Any) -> None:
        """Measure and report. No exception leaves it."""
        start = time.perf_counter()
        try:
            reading = self._measure(step, loss_value(loss))
            if reading is not None:
                self._report(reading, start)
        except Exception as error:
            report_failure(step, error)
        self._last_check_end = time.perf_counter()

    def _measure(self, step: int, loss: float | None) -> Reading | None:
        """The reading of a step; None in a process that does not measure."""
        model = self._live_model.current()
        if model is None:
            return None
        with undisturbed(model.network):
            if not self._batch:
                self._batch = fixed_batch(model, self._texts or random_texts(model.view))
            return measure(model.trace(self._batch), step, loss)

    def _report(self, reading: Reading, start: float) -> None:
        """Look for alarms, then write the reading to every log."""
        seconds = time.perf_counter() - start
        self._warn_of_cost(seconds, start - self._last_check_end)
        reading = reading.with_seconds(seconds)
        self.readings.append(reading)
        alarms = self._alarms.update(self.readings)
        for alarm in alarms:
            LOGGER.warning("%s", render(alarm.line))
        for log in self._logs:
            log.write(reading, alarms)

    def _warn_of_cost(self, seconds: float, training_seconds: float) -> None:
        """At the second check, name a larger `every` if the monitor takes more than 2 % of the training time."""
        share = seconds / max(training_seconds, 1e-9)
        if len(self.readings) == 1 and share > LARGE_SHARE:
            larger = -(-round(self.every * share / LARGE_SHARE) // 10) * 10
            line = Message(
                "the monitor takes {share:.1f} % of the training time; every={larger} takes 2 %",
                share=100 * share,
                larger=larger,
            )
            LOGGER.info("%s", render(line))

    def close(self) -> None:
        """The training has ended. The callbacks call this, and otherwise the end of the program does."""
        close_logs(self._logs)

    def dataset(self) -> "xarray.Dataset":
        """The readings in memory as a Dataset with the axes training_step, layer and head, for `rs.plot` and `rs.table`."""
        from rheoscope.learn.monitor.monitor_pictures import as_dataset

        return as_dataset(list(self.readings))


def close_logs(logs: Sequence[Log]) -> None:
    for log in logs:
        log.close()


def loss_value(loss: Any) -> float | None:
    """A loss as a number; None without one."""
    return None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def report_failure(step: int, error: Exception) -> None:
    """One line about a check that failed."""
    reason = str(error).strip().splitlines()
    line = Message(
        "step {step:,} was not measured ({reason}); the training continues",
        step=step,
        reason=reason[0] if reason else type(error).__name__,
    )
    LOGGER.warning("%s", render(line))
