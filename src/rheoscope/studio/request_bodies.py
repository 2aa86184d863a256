"""The bodies of HTTP requests and their lists of numbers, validated by pydantic."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rheoscope.report.story import STORY_LINES
from rheoscope.studio.edits import Edit

Index = Annotated[int, Field(ge=0, le=100_000)]
TokenIds = Annotated[str, Field(pattern=r"^\d{1,7}(,\d{1,7}){0,19}$")]
"""At most 20 ids of tokens, separated by commas."""


class StrictBody(BaseModel):
    """A body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class OpenModelBody(StrictBody):
    source: str = Field(max_length=1000)
    untrained: bool = False


class NewTraceBody(StrictBody):
    text: str
    target: str | None = None
    model: str | None = Field(default=None, max_length=1000)
    edits: list[Edit] = Field(default=[], max_length=32)
    untrained: bool = False
    lines: list[str] | None = Field(default=None, max_length=len(STORY_LINES))
    window: int | None = Field(default=None, ge=1, le=100_000)


class SourceBody(StrictBody):
    text: str
    model: str | None = Field(default=None, max_length=1000)


class GenerationBody(StrictBody):
    text: str
    model: str | None = Field(default=None, max_length=1000)
    tokens: int = Field(default=40, ge=1, le=500)
    temperature: float = Field(default=0.0, ge=0, le=100)
    top_k: int | None = Field(default=50, ge=1)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class QueryKeyBody(StrictBody):
    layer: Index
    head: Index
    query: Index
    key: Index
