"""The picture of decay: the size and the direction of the deviation over depth, for the edit and for noise."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Difference of the residual streams with and without the edit, from the edited layer on. A falling line means that later "
    "layers undo the change. Noise displaces every token equally far at the start, in random directions (isotropic) or in those "
    "of another token (exchanged). Dashed lines are the ends of the 95 % interval of the edit."
)
TITLES = {
    "deviation_ratio": Message("Deviation relative to the first step"),
    "deviation": Message("Deviation relative to the token's length"),
    "direction": Message("Cosine with the first deviation"),
}
LINE_STYLES = {
    "edit": (Message("edit"), "first"),
    "isotropic": (Message("isotropic noise"), "null"),
    "exchanged": (Message("exchanged noise"), "second"),
}
INTERVAL_NAMES = {"low": Message("edit, lower end"), "high": Message("edit, upper end")}


def picture(dataset: "xarray.Dataset") -> Picture:
    """One panel per field, with one line per change."""
    panels = tuple(_field_panel(dataset, name, title) for name, title in TITLES.items())
    return Picture(Message("How later layers change the deviation"), CAPTION, panels)


def _field_panel(dataset: "xarray.Dataset", name: str, title: Message) -> Panel:
    steps = tuple(_step_label(Step.parse(str(step))) for step in dataset.step.values)
    x = range(len(steps))
    lines = []
    for change in map(str, dataset.change.values):
        label, colour = LINE_STYLES[change]
        lines.append(Line(label, x, dataset[name].sel(change=change).values, colour))
    if name == "deviation_ratio":
        lines += [
            Line(label, x, dataset[f"deviation_ratio_{end}"][0].values, "first", "dashed")
            for end, label in INTERVAL_NAMES.items()
        ]
    return Panel(title, dataset[name].attrs["definition"], tuple(lines), Axis("", steps), Axis(low=0.0))


def _step_label(step: Step) -> str:
    return f"L{step.layer}" if step.is_end_of_layer else f"L{step.layer} mid"
