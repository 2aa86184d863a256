"""A line of the story of a text: what a person would say about it, with the measured numbers and their null."""

from collections.abc import Callable
from dataclasses import dataclass

from rheoscope.messages.message import Message
from rheoscope.space.results import Results


@dataclass(frozen=True, eq=False)
class StoryLine:
    """One line of a story. The analysis that measures it declares it in its `words.py`.

    `order` is its place. `needs` are the analyses whose results it reads, and `required_fields` those of their fields that not
    every text or model has. `deeper` is the command that shows more. A line describes one text; it never answers yes or no.
    """

    order: int
    name: str
    title: str
    needs: tuple[str, ...]
    deeper: str
    compose: Callable[[Results], Message]
    required_fields: tuple[str, ...] = ()

    def sentence(self, results: Results) -> str:
        """The line, or the reason why there is none."""
        missing_analyses = [name for name in self.needs if not results.has(name)]
        if missing_analyses:
            return results.reason(missing_analyses[0])
        missing_fields = [
            field for field in self.required_fields if not any(field in results.datasets[name] for name in self.needs)
        ]
        if missing_fields:
            return Message("this text in this model has no field {field}", field=missing_fields[0])
        return self.compose(results)
