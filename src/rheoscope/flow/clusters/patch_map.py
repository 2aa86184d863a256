"""The picture of groups in an image: the largest clusters of patches after the last layer, drawn on the photo."""

from rheoscope.flow.photo_panels import group_panel
from rheoscope.messages.message import Message
from rheoscope.picture.picture import SERIES_COLOURS, Panel
from rheoscope.space.results import Results


def panels(results: Results) -> list[Panel]:
    """The photo with its largest clusters; nothing for a text, or if no two patches are close."""
    dataset, patches = results.datasets["clusters"], results.required_trace.patches
    if patches is None:
        return []
    members: dict[int, list[int]] = {}
    for label, token in zip(dataset.label.values[-1].tolist(), dataset.token.values.tolist(), strict=True):
        members.setdefault(int(label), []).append(int(token))
    largest = sorted((group for group in members.values() if len(group) > 1), key=len, reverse=True)
    groups: dict[str, list[int]] = {
        Message("{n} tokens like {token}", n=len(group), token=results.required_trace.tokens[group[0]]): group
        for group in largest[: len(SERIES_COLOURS)]
    }
    about = Message(
        "Patches of one colour belong to one cluster after the last layer. Only the largest clusters of two or more are coloured."
    )
    return [group_panel(Message("Groups of patches"), about, patches, groups)] if groups else []
