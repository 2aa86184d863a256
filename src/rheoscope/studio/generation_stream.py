"""The flow of generated tokens as events: the cloud of the prompt, then every token with its path and its sources."""

from typing import Any

from rheoscope.flow.generation.answer import attribution_groups, is_head
from rheoscope.flow.generation.generated_token import GeneratedToken
from rheoscope.flow.generation.generation import Generation, generate
from rheoscope.picture.token_labels import display_token
from rheoscope.running.runner import RunnableModel
from rheoscope.space.trace import Trace
from rheoscope.studio.jobs import Job
from rheoscope.studio.projected_points import Axes, principal_axes, project_cloud
from rheoscope.studio.request_bodies import GenerationBody

SPACE = "sphere"
N_HEADS = 8
"""The number of heads that the summary of an answer lists."""


def stream_generation(job: Job, model: RunnableModel, body: GenerationBody) -> None:
    """Generate, and publish `prompt`, one `token` for each new token, and `answer`. The log holds these events and no points."""
    generation = generate(model, body.text, body.tokens, body.temperature, body.top_k, seed=body.seed)
    start = generation.trace()
    axes = principal_axes(start, SPACE)
    job.log.publish("prompt", **prompt_json(generation, start, axes))
    for token in generation:
        job.checkpoint()
        job.log.publish("token", **token_json(generation, token, axes))
    job.log.publish("answer", **answer_json(generation))


def prompt_json(generation: Generation, start: Trace, axes: Axes) -> dict[str, Any]:
    """The tokens of the prompt, and the paths (token, step, axis) of those that the generating stack reads."""
    paths = project_cloud(start, axes, SPACE).points.transpose(0, 1)
    return {
        "tokens": [display_token(text) for text in generation.prompt_tokens],
        "read": [display_token(text) for text in start.tokens],
        "steps": [str(step) for step in start.steps],
        "lens_steps": generation.lens_steps,
        "paths": rounded(paths.tolist()),
    }


def token_json(generation: Generation, token: GeneratedToken, axes: Axes) -> dict[str, Any]:
    """A token with the path that ends in its prediction."""
    return {
        "index": token.index,
        "shown": display_token(token.text),
        "position": token.position,
        "probability": token.probability,
        "path": rounded(token_path(generation, token, axes)),
        "lens": [
            {"step": prediction.step, "shown": display_token(prediction.text), "probability": prediction.probability}
            for prediction in token.lens
        ],
        "decided_at": token.decided_at,
        "logit_above_mean": token.logit_above_mean,
        "from_prompt": token.from_prompt,
        "from_answer": token.from_answer,
        "by_prompt_token": rounded(token.by_prompt_token.tolist()),
        "sources": [
            {
                "position": source.position,
                "shown": display_token(source.text),
                "value": source.value,
                "cross": source.is_cross,
            }
            for source in token.sources
        ],
        "heads": [{"name": head.name, "value": head.value} for head in token.heads],
    }


def token_path(generation: Generation, token: GeneratedToken, axes: Axes) -> list[list[float]]:
    """The points of one token on the axes of the prompt (step, axis)."""
    trace = generation.trace_of_position(token.position)
    return project_cloud(trace, axes, SPACE).points[:, 0].tolist()


def answer_json(generation: Generation) -> dict[str, Any]:
    """The groups of the whole answer, its total per prompt token and its largest heads."""
    explanation = generation.explain()
    names = [str(name) for name in explanation.component.values]
    totals = dict(zip(names, explanation.component_total.values.tolist(), strict=True))
    heads = sorted(filter(is_head, names), key=lambda name: -abs(totals[name]))[:N_HEADS]
    return {
        "logit_above_mean": float((explanation.logit - explanation.mean_logit).sum()),
        "groups": attribution_groups(explanation),
        "by_prompt_token": rounded(explanation.prompt_total.values.tolist()),
        "heads": [{"name": name, "value": totals[name]} for name in heads],
    }


def rounded(values: Any) -> Any:
    """Numbers with four decimals, in lists of any depth.

    >>> rounded([[0.123456], [1.0]])
    [[0.1235], [1.0]]
    """
    return [rounded(value) for value in values] if isinstance(values, list) else round(values, 4)
