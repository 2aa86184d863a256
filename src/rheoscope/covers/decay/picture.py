"""What later layers make of a change: how much of the deviation is left, and whether it still points the same way."""

from typing import TYPE_CHECKING

from rheoscope.picture.picture import Axis, Line, Panel, Picture
from rheoscope.space.step import Step

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "The stream under the change less the stream as it is, from the changed layer on. Lines that fall are healed by later layers. Noise "
    "(grey) moves every token as far at the start, in random directions or in those of another token; dashed lines are the ends of the "
    "bootstrap interval of the edit."
)
TITLES = {"remaining": "Deviation that remains", "deviation": "Deviation over length", "direction": "Same direction"}
CHANGE_COLOURS = {"edit": "first", "isotropic": "null", "exchanged": "second"}


def picture(dataset: "xarray.Dataset") -> Picture:
    """A line a change, for what remains, how large it is and where it points."""
    panels = tuple(_field_panel(dataset, name, title) for name, title in TITLES.items())
    return Picture("What later layers make of the change", CAPTION, panels)


def _field_panel(dataset: "xarray.Dataset", name: str, title: str) -> Panel:
    steps = tuple(_step_label(Step.parse(str(step))) for step in dataset.step.values)
    x = range(len(steps))
    lines = [
        Line(str(change), x, dataset[name].sel(change=change).values, CHANGE_COLOURS[str(change)])
        for change in dataset.change.values
    ]
    if name == "remaining":
        ends = ("low", "high")
        lines += [Line(f"edit, {end}", x, dataset[f"remaining_{end}"][0].values, "first", "dashed") for end in ends]
    return Panel(title, dataset[name].attrs["definition"], tuple(lines), Axis("", steps), Axis(low=0.0))


def _step_label(step: Step) -> str:
    return f"L{step.layer}" if step.is_end_of_layer else f"L{step.layer} mid"
