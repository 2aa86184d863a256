"""What a server shows: its session, the stored example and the corpus run. Requests wait here for jobs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request

from rheoscope.messages.message import Message
from rheoscope.studio.corpus import LiveCorpusRun
from rheoscope.studio.edits import Edit
from rheoscope.studio.jobs import MAX_SHORT_COST, CancelledError, Job
from rheoscope.studio.session import Session, TextEntry
from rheoscope.studio.stored_example import StoredExample
from rheoscope.studio.training_runs import TrainingRuns

if TYPE_CHECKING:
    import xarray

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Studio:
    """The session of the server, and the stored example, the corpus run and the training runs, if there are any."""

    session: Session
    stored_example: StoredExample | None
    corpus_run: LiveCorpusRun | None
    training_runs: TrainingRuns | None

    def stored_response(self, trace_id: str, path: str, extension: str) -> bytes | None:
        """The stored response about the example. The id is a hash, so a computed response would be the same."""
        return None if self.stored_example is None else self.stored_example.read_response(trace_id + path, extension)

    def stored_card(self, model_id: str) -> bytes | None:
        """The stored card of the example's model."""
        return None if self.stored_example is None else self.stored_example.read_card(model_id)

    def is_example(self, trace_id: str) -> bool:
        return self.stored_example is not None and trace_id == self.stored_example.id

    async def get_entry(self, trace_id: str) -> TextEntry:
        """The text of an id. The example is traced when a request needs more than is stored."""
        if self.stored_example is not None and self.is_example(trace_id) and self.session.cache.get(trace_id) is None:
            await self.get_or_trace(self.stored_example.model_json["id"], self.stored_example.text, [])
        return self.session.get_entry(trace_id)

    async def open_axes_owner(self, axes_name: str) -> None:
        """Trace the stored example, if a text is to be shown on its axes."""
        if self.stored_example is not None and axes_name.startswith(f"text:{self.stored_example.id}"):
            await self.get_entry(self.stored_example.id)

    async def get_or_trace(
        self,
        model_id: str,
        text: str,
        edits: list[Edit],
        window_number: int | None = None,
        request: Request | None = None,
        target: str | None = None,
    ) -> tuple[TextEntry, bool]:
        """Trace a text, after its model is loaded. Not if the client of the request has disconnected meanwhile."""
        opened_model = self.session.get_model(model_id)
        model = await wait_for_client(opened_model.job, request)

        def trace() -> tuple[TextEntry, bool]:
            return self.session.get_or_trace(opened_model, model, text, edits, window_number, target)

        job = self.session.queue.submit_quick(len(text), lambda job: trace())
        try:
            return await wait_for_client(job, request)
        except CancelledError:
            job.stop()
            raise

    async def run_quick(self, subject: TextEntry | None, work: Callable[[], T]) -> T:
        """Run a quick request. Its cost is the length of the text that it is about."""
        cost = MAX_SHORT_COST + 1 if subject is None else len(subject.text)
        return await asyncio.wrap_future(self.session.queue.submit_quick(cost, lambda job: work()).result)

    async def analysis_result(self, trace_id: str, name: str, request: Request) -> tuple[TextEntry, "xarray.Dataset"]:
        """Wait for the result of an analysis. Its job ends when the last waiting client disconnects."""
        entry = await self.get_entry(trace_id)
        outcome = await asyncio.to_thread(self.session.result_or_job, entry, name, dict(request.query_params))
        if not isinstance(outcome, Job):
            return entry, outcome
        holder_id = self.session.queue.add_holder(outcome)
        try:
            return entry, await wait_for_client(outcome, request)
        finally:
            self.session.queue.release(holder_id)

    def model_list(self) -> list[dict[str, Any]]:
        """The opened models. Until the example's model is loaded, its stored description is listed."""
        by_id = {model_id: opened_model.json_dict for model_id, opened_model in list(self.session.models.items())}
        if self.stored_example is not None and not by_id.get(self.stored_example.model_json["id"], {}).get("ready"):
            by_id[self.stored_example.model_json["id"]] = self.stored_example.model_json
        return list(by_id.values())


async def wait_for_client(job: Job, request: Request | None) -> Any:
    """The result of a job. Waiting ends as soon as the client of the request disconnects."""
    future = asyncio.wrap_future(job.result)
    disconnection = None if request is None else asyncio.ensure_future(_wait_for_disconnection(request))
    try:
        await asyncio.wait(filter(None, (future, disconnection)), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise CancelledError(Message("the client has disconnected"))
        return future.result()
    finally:
        future.cancel()  # so that asyncio does not log the exception of an abandoned job
        if disconnection is not None:
            disconnection.cancel()


async def _wait_for_disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
