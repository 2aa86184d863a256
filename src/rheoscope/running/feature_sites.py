"""Where a sparse dictionary reads and writes: a point of the stream, an update of a layer, or the input of an MLP."""

import re
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from rheoscope.messages.advice import Advice, use
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.components import mlp_step
from rheoscope.space.safe_arithmetic import at_least_float32
from rheoscope.space.step import Step
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

POINTS = ("resid_pre", "resid_mid", "resid_post")
UPDATES = ("attention", "mlp")
MLP_INPUTS = ("mlp_input", "mlp_normalized")
"""The input of an MLP after its norm, and that norm's hook point, which precedes the gain of an RMSNorm."""
HOOK_KINDS = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attention",
    "hook_mlp_out": "mlp",
    "mlp.hook_in": "mlp_input",
    "ln2.hook_normalized": "mlp_normalized",
}
"""The name of a hook point in a block → the kind of site."""
SITE_LABEL = re.compile(rf"L(\d+)\.({'|'.join((*POINTS, *UPDATES, *MLP_INPUTS))})")
_BLOCK_HOOK = re.compile(r"blocks\.(\d+)\.(.+)")
_BLOCK_OUTPUT = re.compile(r"(?:model\.layers\.|transformer\.h\.|gpt_neox\.layers\.|resid_post_layer_)(\d+)")
"""Names of a block whose output is read: modules of transformers, and the names of dictionary_learning."""
SITE_ADVICE = Advice("rs.Features.load(path, site='L3.resid_post')", "--features DIR@L3.resid_post")


@dataclass(frozen=True)
class Site:
    """A point (`L3.resid_post`), an update (`L3.mlp`, `L3.attention`) or an input (`L3.mlp_input`) of a layer.

    >>> Site.parse("L3.mlp"), Site.of_hook("blocks.3.hook_resid_pre")
    (Site(layer=3, kind='mlp'), Site(layer=3, kind='resid_pre'))
    """

    layer: int
    kind: str

    def __str__(self) -> str:
        return f"L{self.layer}.{self.kind}"

    @staticmethod
    def parse(label: str) -> "Site":
        """The site of a label. Raises for any other text."""
        match = SITE_LABEL.fullmatch(label)
        if match is None:
            raise RheoscopeError(
                Message(
                    "site must be a layer and one of {kinds}, got {received!r}",
                    kinds=", ".join((*POINTS, *UPDATES, *MLP_INPUTS)),
                    received=label,
                ),
                use(site="L3.resid_post"),
            )
        return Site(int(match[1]), match[2])

    @staticmethod
    def of_hook(name: str) -> "Site":
        """The site of a hook point of TransformerLens, or of a block of transformers. Raises for any other name."""
        match, output = _BLOCK_HOOK.fullmatch(name), _BLOCK_OUTPUT.fullmatch(name)
        if match is not None and match[2] in HOOK_KINDS:
            return Site(int(match[1]), HOOK_KINDS[match[2]])
        if output is not None:
            return Site(int(output[1]), "resid_post")
        raise RheoscopeError(
            Message(
                "this dictionary reads the hook point {hook!r}, expected one of blocks.N.{kinds}",
                hook=name,
                kinds=", ".join(HOOK_KINDS),
            ),
            SITE_ADVICE,
        )

    @property
    def hook_name(self) -> str:
        """The name of the hook point in TransformerLens."""
        return f"blocks.{self.layer}.{next(hook for hook, kind in HOOK_KINDS.items() if kind == self.kind)}"

    @property
    def is_point(self) -> bool:
        return self.kind in POINTS

    @property
    def is_update(self) -> bool:
        return self.kind in UPDATES

    def last_step(self, trace: Trace) -> int:
        """The index of the step whose point this site is, or that its update leads to."""
        self.check_layer(trace.view)
        if self.kind == "resid_pre":
            return trace.input_steps[self.layer]
        if self.kind == "attention":
            return trace.mid_steps[self.layer]
        if self.kind == "mlp":
            return mlp_step(trace, self.layer)
        return trace.index(Step(self.layer, self.kind if self.is_point else "resid_mid"))

    def vectors(self, trace: Trace, positions: list[int]) -> Float[Tensor, "n d"]:
        """The vectors of some tokens at this site, in float32 or better."""
        step = self.last_step(trace)
        points = at_least_float32(trace.points[step, positions])
        if self.is_update:
            return points - at_least_float32(trace.points[step - 1, positions])
        if self.is_point:
            return points
        is_parallel = trace.steps[step] in trace.unread_steps
        x = trace.points[trace.input_steps[self.layer] if is_parallel else step, positions]
        norm = trace.view.layer_heads[self.layer].norm
        if self.kind == "mlp_normalized" and not norm.subtracts_mean:
            return norm.normalise(at_least_float32(x))
        return at_least_float32(mlp_norm_output(trace.view, self.layer, x))

    def check_layer(self, view: View) -> None:
        """Raise if the model has no such layer."""
        if self.layer >= view.layers:
            raise RheoscopeError(
                Message(
                    "this dictionary belongs to layer {layer}, but the model has layers 0 to {last}",
                    layer=self.layer,
                    last=view.layers - 1,
                )
            )


def check_writable(writes: Site) -> None:
    """Raise for a site inside a layer, which no part of a sum belongs to."""
    if not (writes.is_point or writes.is_update):
        raise RheoscopeError(
            Message("this dictionary writes {site}, expected a point or an update of the stream", site=str(writes)),
            SITE_ADVICE,
        )


def mlp_norm_output(view: View, layer: int, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The points x after the model's own norm before the MLP. Raises for an MLP without a norm module."""
    outputs, thread = [], get_ident()

    def record(module: Any, arguments: tuple[Any, ...], output: Any) -> None:
        is_norm = "norm" in type(module).__name__.lower() and arguments and isinstance(output, Tensor)
        if get_ident() == thread and is_norm and arguments[0].shape[-2:] == x.shape:
            outputs.append(output)

    handle = register_module_forward_hook(record)
    try:
        view.mlps[layer](x[None])
    finally:
        handle.remove()
    if not outputs:
        raise RheoscopeError(
            Message(
                "this dictionary reads the input of the MLP of layer {layer}, which has no norm module", layer=layer
            ),
            SITE_ADVICE,
        )
    return outputs[0][0]
