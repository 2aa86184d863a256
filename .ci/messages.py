"""Update the message catalogues from the source. `--missing` only lists the templates without a translation.

Templates come from the package (`Message`, `Field`, `Analysis`) and from the page's table of texts. Babel reads and writes
the catalogues. Templates that the source no longer has are removed. New ones are added without a translation.
"""

import argparse
import ast
import sys
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po, write_po

from rheoscope.messages.catalogue import LANGUAGES, parameters_of
from rheoscope.messages.extraction import page_templates, python_templates
from rheoscope.picture.field_panels import field_title

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rheoscope"
FOLDER = SOURCE / "messages"
PAGE = ROOT / "frontend" / "src" / "messages" / "en.ts"


def extract() -> dict[str, list[str]]:
    """Every template of the project and the files that use it."""
    places: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for _, template in python_templates(file.read_text(encoding="utf-8")):
            places.setdefault(template, []).append(str(file.relative_to(ROOT)))
    for _, template in page_templates(PAGE.read_text(encoding="utf-8")):
        places.setdefault(template, []).append(str(PAGE.relative_to(ROOT)))
    return places


def literals() -> set[str]:
    """Every string constant of the package, and every name in the two forms that the page shows: with spaces, and as a title.

    A plain string that equals an entry of the catalogue is translated too.
    """
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {value for value in constants if value.isidentifier()} | {
        node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg
    }
    return constants | {name.replace("_", " ") for name in names} | {field_title(name) for name in names}


def load(language: str) -> Catalog:
    with (FOLDER / f"{language}.po").open("rb") as file:
        return read_po(file, locale=language)


def missing(language: str) -> dict[str, list[str]]:
    """Templates without a translation or with other parameters in it, and the files that use them."""
    catalogue = load(language)
    return {
        template: files for template, files in extract().items() if not is_translated(template, catalogue.get(template))
    }


def is_translated(template: str, entry: Message | None) -> bool:
    """Whether the entry has a translation with the parameters of the template."""
    return entry is not None and bool(entry.string) and parameters_of(str(entry.string)) == parameters_of(template)


def known_files(language: str) -> set[str]:
    """The files that have entries in the catalogue. In other files, a missing translation is only a warning."""
    return {file for entry in load(language) for file, _ in entry.locations}


def update(language: str) -> None:
    """Add new templates, remove unused ones and keep all translations."""
    old = load(language)
    new = Catalog(  # with the old date, so that two branches do not conflict in it
        locale=language, charset="utf-8", header_comment=old.header_comment, creation_date=old.creation_date
    )
    for template, files in extract().items():
        previous = old.get(template)
        new.add(
            template, str(previous.string) if previous else "", locations=[(file, 0) for file in sorted(set(files))]
        )
    string_constants = literals()
    for entry in old:
        if entry.id and entry.id in string_constants and entry.id not in new:
            new.add(entry.id, entry.string)
    with (FOLDER / f"{language}.po").open("wb") as file:
        write_po(file, new, width=0, sort_output=True, include_lineno=False, omit_header=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--missing", action="store_true", help="only list untranslated templates")
    options = parser.parse_args()
    others = [language for language in LANGUAGES if language != "en"]
    if options.missing:
        lacking = {language: missing(language) for language in others}
        for language, templates in lacking.items():
            print(
                f"{language}: {len(templates)} of {len(extract())} templates have no translation",
                *(f"{template}  [{files[0]}]" for template, files in templates.items()),
                sep="\n  ",
            )
        return int(any(lacking.values()))
    for language in others:
        update(language)
    return 0


if __name__ == "__main__":
    sys.exit(main())
