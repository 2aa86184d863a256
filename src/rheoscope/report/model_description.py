"""How a model was interpreted, in the terminal and as JSON: `rheoscope describe`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, Verbatim, join, plural
from rheoscope.notebook_html import format_count
from rheoscope.picture.blocks import Block, Lines, Story, StoryEntry
from rheoscope.report.console import console
from rheoscope.report.json_file import save_json
from rheoscope.report.terminal import Terminal

if TYPE_CHECKING:
    from rheoscope.running.certificate import Coverage
    from rheoscope.running.layer_structure import LayerStructure
    from rheoscope.running.runner import RunnableModel
    from rheoscope.space.head import Heads

RESULT_NAME = "describe"
"""The key of the result in a JSON file: the public name of the function."""
SHOWN_LAYERS = 3
"""How many layers of an arithmetic progression are listed before its last one."""


def show_description(model: "RunnableModel", json_file: Path | None) -> None:
    """Run `rheoscope describe`: read the structure of every layer, print the page, write the file."""
    from rheoscope.running.layer_structure import layer_structures
    from rheoscope.running.model_structure import structure_dataset

    structures = list(layer_structures(model))
    terminal = Terminal(console(), [])
    dataset = structure_dataset(structures, dict(model.view.facts))
    messages = [] if json_file is None else [save_json({RESULT_NAME: dataset}, json_file)]
    for block in description_blocks(model, structures):
        terminal.print_block(block)
    terminal.print_files(messages)


def description_blocks(model: "RunnableModel", structures: Sequence["LayerStructure"]) -> list[Block]:
    """The model, the formulas of every group of layers, where their matrices live, and the blocks without attention."""
    from rheoscope.running.model_structure import layer_groups
    from rheoscope.running.operator_formulas import SYMBOLS

    numbers = layer_groups(structures)
    groups = [
        [structure for structure, other in zip(structures, numbers, strict=True) if other == number]
        for number in dict.fromkeys(numbers)
    ]
    formulas = [formula_block(group) for group in groups]
    opaque = model.description.opaque_blocks
    return [
        model_block(model),
        *formulas,
        Lines(Message("Symbols"), SYMBOLS),
        *location_blocks(structures),
        *([opaque_block(opaque)] if opaque else []),
        *([streams_block(model.description.n_streams)] if model.description.n_streams > 1 else []),
    ]


def model_block(model: "RunnableModel") -> Story:
    """The type of the model, its sizes, its weights and its certificate."""
    view = model.view
    size = [
        view.depth,
        plural("{n} head", "{n:,} heads", n=view.heads),
        Message("width {width}", width=view.width),
        Message("{n:,} tokens in the vocabulary", n=len(view.embed))
        if view.reads_tokens
        else Message("no vocabulary, reads {input}", input=str(view.facts.get("input"))),
        Message("{count} parameters", count=format_count(model.parameter_count)),
    ]
    facts, certificate = view.facts, view.facts.get("certificate")
    return Story(
        Verbatim(view.name),
        [
            StoryEntry(Message("type"), type_text(str(facts.get("type")), str(facts.get("family"))), ""),
            StoryEntry(Message("size"), join(", ", size), ""),
            StoryEntry(
                Message("weights"), Message("{dtype} on {device}", dtype=facts["dtype"], device=facts["device"]), ""
            ),
            StoryEntry(Message("certificate"), Message("none") if certificate is None else certificate.summary, ""),
            *([] if certificate is None else coverage_entries(certificate.coverage)),
        ],
    )


def coverage_entries(coverage: "Coverage") -> list[StoryEntry]:
    """The positions at which the View was compared with the model, and those at which it could not be."""
    places = [Message("positions {positions}", positions=position_list(coverage.positions))]
    if coverage.windows:
        sizes = ", ".join(f"{size:,}" for size in coverage.windows)
        places.append(Message("the edges of windows of {sizes}", sizes=sizes))
    if coverage.switches:
        switches = ", ".join(f"{position:,}" for position in coverage.switches)
        places.append(Message("the switch of the rotary scaling at {positions}", positions=switches))
    if coverage.is_padded:
        places.append(Message("padding"))
    entries = [StoryEntry(Message("proved at"), join(", ", places), "")]
    if coverage.untested:
        entries.append(StoryEntry(Message("not proved at"), join("; ", coverage.untested), ""))
    return entries


def position_list(positions: Sequence[int]) -> str:
    """Positions in their order, with ranges.

    >>> position_list([0, 1, 2, 3, 511, 512, 2047])
    '0–3, 511, 512, 2,047'
    """
    runs = list[list[int]]()
    for position in positions:
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    texts = [[f"{x:,}" for x in run] if len(run) < 3 else [f"{run[0]:,}–{run[-1]:,}"] for run in runs]
    return ", ".join(text for run in texts for text in run)


def type_text(model_type: str, family: str) -> Message:
    """The model type, and who described it: the finder, a family file, or this package."""
    from rheoscope.pretrained.finder.describe_network import FAMILY

    if family == FAMILY:
        return Message("{type}, found on a tape of one forward pass", type=model_type)
    if model_type == "rheoscope":
        return Message("{form} of Rheoscope", form=family)
    return Message("{type}, described by the family file {family}", type=model_type, family=family)


def formula_block(group: Sequence["LayerStructure"]) -> Story:
    """The formulas of layers that differ only in their weights."""
    from rheoscope.running.operator_formulas import LINES, layer_formulas

    formulas = layer_formulas(group[0])
    heading = join(": ", [layers_title(group), heads_text(group[0])])
    return Story(heading, [StoryEntry(LINES[name], formula, "") for name, formula in formulas.items()])


def layers_title(group: Sequence["LayerStructure"]) -> Message:
    """The layers of a group, and what they belong to."""
    layers = index_list([structure.layer for structure in group])
    titles = {
        "decoder": plural("Layer {layers}", "Layers {layers}", n=len(group), layers=layers),
        "encoder": plural(
            "Layer {layers} of the encoder", "Layers {layers} of the encoder", n=len(group), layers=layers
        ),
        "cross": plural(
            "Cross-attention of layer {layers}", "Cross-attention of layers {layers}", n=len(group), layers=layers
        ),
    }
    return titles[group[0].kind]


def heads_text(structure: "LayerStructure") -> Message:
    """The number of heads and their widths."""
    heads = structure.heads
    n_kv, width, value_width = len(heads.W_K), heads.W_Q.shape[-1], heads.W_V.shape[-1]
    parts = [plural("{n} head", "{n:,} heads", n=heads.n_heads)]
    if n_kv != heads.n_heads:
        parts.append(plural("{n} key/value head", "{n:,} key/value heads", n=n_kv))
    parts.append(Message("width {width}", width=width))
    if value_width != width:
        parts.append(Message("values of width {width}", width=value_width))
    return join(", ", parts)


def index_list(indices: Sequence[int]) -> str:
    """The indices of layers: a range, an arithmetic progression, or a list.

    >>> index_list([0, 1, 2, 3]), index_list([0, 2, 4, 6, 8]), index_list([0, 1, 5]), index_list([7])
    ('0–3', '0, 2, 4, …, 8', '0, 1, 5', '7')
    """
    steps = {later - earlier for earlier, later in pairwise(indices)}
    if len(indices) > 2 and steps == {1}:
        return f"{indices[0]}–{indices[-1]}"
    shown = list(map(str, indices))
    if len(indices) > SHOWN_LAYERS + 1 and len(steps) == 1:
        shown = [*shown[:SHOWN_LAYERS], "…", shown[-1]]
    return ", ".join(shown)


def location_blocks(structures: Sequence["LayerStructure"]) -> list[Story]:
    """The parameters that hold each matrix. Layers whose names differ only in the number of the layer share a block, with *."""
    by_names: dict[tuple[str, ...], list[LayerStructure]] = {}
    for structure in structures:
        by_names.setdefault((structure.kind, *starred(structure.locations).values()), []).append(structure)
    heading = Message("Where each matrix lives")
    blocks = []
    for group in by_names.values():
        is_shared = all(structure.locations == group[0].locations for structure in group)
        locations = group[0].locations if is_shared else starred(group[0].locations)
        entries = [
            StoryEntry(location_title(name, group[0].heads), Verbatim(location), "")
            for name, location in locations.items()
            if location
        ]
        title = heading if len(by_names) == 1 else join(": ", [heading, layers_title(group)])
        note = Message("These layers share their weights.") if is_shared and len(group) > 1 else ""
        blocks.append(Story(title, entries, note))
    return blocks


def location_title(name: str, heads: "Heads") -> str:
    """The symbol of a map in the formulas."""
    if name == "norm":
        return Verbatim("D" if heads.norm.bias is None else "D, b")
    if name == "output_norm":
        return Verbatim("G_O" if heads.output_norm is None or heads.output_norm.bias is None else "G_O, c_O")
    return Message("gate") if name == "gate" else Verbatim(name)


def starred(locations: Mapping[str, str]) -> dict[str, str]:
    """Locations with * in place of the numbers of layers."""
    from rheoscope.running.model_structure import without_layer_number

    return {name: without_layer_number(location) for name, location in locations.items()}


def opaque_block(names: Sequence[str]) -> Lines:
    """The blocks that have no M and no F."""
    return Lines(
        Message("Blocks without attention"),
        [
            plural(
                "{names} has no softmax or reads the keys of another block, so it has no M and no F. It counts as part of the "
                "layer before it, or of the embedding.",
                "{names} have no softmax or read the keys of another block, so they have no M and no F. Each counts as part "
                "of the layer before it, or of the embedding.",
                n=len(names),
                names=", ".join(names),
            )
        ],
    )


def streams_block(n: int) -> Lines:
    """What the points of a network with several streams are."""
    return Lines(
        Message("Points"),
        [
            Message(
                "Every layer mixes {n} streams. A point is the mix that attention reads and is added to. The rest of the layer writes "
                "into all streams, so it is no function of the point.",
                n=n,
            )
        ],
    )
