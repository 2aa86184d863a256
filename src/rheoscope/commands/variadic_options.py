"""A command with options that take several values, and with lists that may be typed in parts."""

from typing import Any

from typer.core import TyperCommand

VARIADIC_OPTIONS = ("--data", "--held-out", "--texts", "--set", "--penalty")
"""Options that take all values up to the next option."""


class VariadicCommand(TyperCommand):
    """A command in which --data, --held-out, --texts, --set and --penalty take all values up to the next option.

    An option with a list (its `metavar` is A,B,…) may be repeated: --mechanisms tied --mechanisms metric means
    --mechanisms tied,metric.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        comma_options = {
            name: option.opts[0] for option in self.params if "," in (option.metavar or "") for name in option.opts
        }
        parsed_args, comma_values = list[str](), dict[str, list[str]]()
        option = ""
        for arg in args:
            if option in comma_values:
                comma_values[option].append(arg)
                option = ""
            elif arg in comma_options:
                option = comma_options[arg]
                comma_values.setdefault(option, [])
            elif (name := arg.partition("=")[0]) in comma_options:
                comma_values.setdefault(comma_options[name], []).append(arg.partition("=")[2])
                option = ""
            elif arg.startswith("-"):
                option = arg if arg in VARIADIC_OPTIONS else ""
                parsed_args += [] if option else [arg]
            else:
                parsed_args += [option, arg] if option else [arg]
        for name, values in comma_values.items():
            parsed_args += [name, ",".join(values)] if values else [name]
        return super().parse_args(ctx, parsed_args)
