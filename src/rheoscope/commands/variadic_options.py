"""A command some of whose options take several words."""

from typing import Any

from typer.core import TyperCommand

FOLLOWED = ("--data", "--held-out", "--texts", "--set", "--penalty")
"""Options that take all the words up to the next option."""


class Several(TyperCommand):
    """A command whose options --data, --held-out, --texts, --set and --penalty take all the words up to the next option.

    An option whose values are parted by commas (its `metavar` is A,B,…) may be typed again: --mechanisms tied --mechanisms metric is
    --mechanisms tied,metric.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        parted = {
            name: option.opts[0] for option in self.params if "," in (option.metavar or "") for name in option.opts
        }
        words, typed = list[str](), dict[str, list[str]]()
        option = ""
        for word in args:
            if option in typed:
                typed[option].append(word)
                option = ""
            elif word in parted:
                option = parted[word]
                typed.setdefault(option, [])
            elif (name := word.partition("=")[0]) in parted:
                typed.setdefault(parted[name], []).append(word.partition("=")[2])
                option = ""
            elif word.startswith("-"):
                option = word if word in FOLLOWED else ""
                words += [] if option else [word]
            else:
                words += [option, word] if option else [word]
        for name, values in typed.items():
            words += [name, ",".join(values)] if values else [name]
        return super().parse_args(ctx, words)
