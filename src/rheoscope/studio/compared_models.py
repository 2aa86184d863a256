"""The comparison of a text in two models, as blocks for the page: computed once, in a job that reports progress."""

from typing import TYPE_CHECKING, Any

from rheoscope.messages.message import Message
from rheoscope.model_comparison.compare import compare_on_traces
from rheoscope.model_comparison.shared_parts import shared_parts
from rheoscope.picture.blocks import Drawing
from rheoscope.report.comparison_blocks import comparison_blocks
from rheoscope.running.progress import listen
from rheoscope.studio.jobs import Job
from rheoscope.studio.report_blocks import block_json

if TYPE_CHECKING:
    from rheoscope.studio.session import Session, TextEntry

SETTINGS = {"threshold": 0.1, "top": 5, "rank": "stream_change", "max_tokens": 64, "seed": 0}
"""The defaults of `rs.compare`."""


def shares_space(first: "TextEntry", second: "TextEntry") -> bool:
    """Whether the models of two texts have the same heads and write in the same coordinates, so that their clouds share axes."""
    return shared_parts(first.edited_model.view, second.edited_model.view).same_heads


def comparison_job(session: "Session", first: "TextEntry", second: "TextEntry") -> Job:
    """The job that compares both models on the text that each of them has traced."""
    return session.queue.submit(
        "analysis", Message("comparing the models"), lambda job: comparison_json(session, first, second, job)
    )


def comparison_json(session: "Session", first: "TextEntry", second: "TextEntry", job: Job) -> dict[str, Any]:
    """The blocks of a comparison, with the picture below the sentences. They are computed once."""
    key = (first.id, "compare", second.id)
    content = session.cache.get(key)
    if content is None:
        models, pair = (first.edited_model, second.edited_model), (first.trace, second.trace)
        with listen(job.progress_callback(job.name)):
            result = compare_on_traces(models, [pair], 1, SETTINGS)
        summary, *others = comparison_blocks(result)
        drawings = [block for block in others if isinstance(block, Drawing)]
        tables = [block for block in others if not isinstance(block, Drawing)]
        content = {"blocks": [block_json(block) for block in (summary, *drawings, *tables)]}
        session.cache.put(key, content, result.nbytes + 20_000)
    return content
