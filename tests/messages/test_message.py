"""Messages keep their template, translate with their parameters and travel whole; catalogues are complete."""

import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
from babel.messages.catalog import Message as CatalogueEntry

from rheoscope.messages import catalogue
from rheoscope.messages.advice import Advice, analyse, use, with_advice
from rheoscope.messages.catalogue import (
    current_language,
    default_language,
    parameters_of,
    read_po,
    render,
    set_language,
    translate,
    use_language,
)
from rheoscope.messages.extraction import python_templates, templates_of
from rheoscope.messages.message import Message, Verbatim, join, plural
from tests.source_files import nodes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def german(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small catalogue of a language that the project does not have."""
    entries = {"{n} heads": "{n} Köpfe", "layer {layer}": "Schicht {layer}", "yes": "ja", "{a}, {b}": "{b}; {a}"}
    monkeypatch.setattr(catalogue, "templates", lambda language: entries)


def test_a_message_is_its_english_sentence() -> None:
    message = Message("{n} of {total:,} heads", n=3, total=2400)
    assert message == "3 of 2,400 heads"
    assert isinstance(message, str)
    assert (message.template, message.parameters) == ("{n} of {total:,} heads", {"n": 3, "total": 2400})


def test_a_template_without_parameters_is_not_formatted() -> None:
    assert Message("the set {1, 2}") == "the set {1, 2}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("norm", "范数"), ("norm layer", "归一化层"), ("centred", "中心化部分"), ("Centred tokens", "中心化的词元")],
)
def test_a_term_has_one_chinese_name(name: str, shown: str) -> None:
    """A norm ‖x‖ is no layer norm, and the centred share of scores has the root of centred tokens."""
    assert translate(name, "zh") == shown


@pytest.mark.usefixtures("german")
def test_translation_fills_in_the_same_parameters() -> None:
    assert translate(Message("{n} heads", n=3), "de") == "3 Köpfe"
    assert translate("yes", "de") == "ja"


@pytest.mark.usefixtures("german")
def test_parameters_that_are_messages_are_translated_too() -> None:
    both = Message("{a}, {b}", a=Message("{n} heads", n=3), b=Message("layer {layer}", layer=5))
    assert translate(both, "de") == "Schicht 5; 3 Köpfe"
    assert translate(join(" ", [Message("yes"), Message("{n} heads", n=1)]), "de") == "ja 1 Köpfe"


@pytest.mark.usefixtures("german")
def test_an_unknown_template_stays_english() -> None:
    assert translate(Message("{n} tokens", n=2), "de") == "2 tokens"


@pytest.mark.parametrize(
    ("title", "shown"), [("Effective rank", "有效秩"), ("P value", "p 值"), ("F", "F"), ("QK", "QK")]
)
def test_a_title_is_translated_by_its_name_without_capital(title: str, shown: str) -> None:
    assert translate(title, "zh") == shown


def test_a_message_survives_pickling() -> None:
    message = pickle.loads(pickle.dumps(Message("{n} heads", n=3)))
    assert (message, message.template) == ("3 heads", "{n} heads")


def test_plural_chooses_by_the_count() -> None:
    assert [plural("{n} head", "{n} heads", n=n) for n in (0, 1, 2)] == ["0 heads", "1 head", "2 heads"]


def test_advice_has_a_form_for_each_surface() -> None:
    both = use(draws=8, keep_massive=True)
    assert with_advice("no", both, "python") == "no; type draws=8, keep_massive=True"
    assert with_advice("no", both, "shell") == "no; type --draws 8 --keep-massive"
    assert analyse("energy").shell == "rheoscope analyse energy"


def test_advice_with_one_form_says_where_it_works() -> None:
    assert with_advice("no", Advice("rs.load()"), "shell") == "no; in Python type rs.load()"
    assert with_advice("no", Advice("", "make studio"), "python") == "no; on the command line type make studio"


def test_the_page_has_advice_of_its_own() -> None:
    """On the page nobody types Python, unless there is no other way."""
    no_tokenizer = Advice("model.trace([1, 2, 3])", page="open another model")
    assert with_advice("no", no_tokenizer, "page") == "no; open another model"
    assert with_advice("no", use(draws=1000, projection="query"), "page") == "no; type draws=1000, projection=query"
    assert with_advice("no", analyse("trajectory"), "page") == "no; open the analysis trajectory"
    assert with_advice("no", Advice("rs.load()"), "page") == "no; in Python type rs.load()"
    assert with_advice("no", Advice("rs.load()", "make demo"), "page") == "no; on the command line type make demo"


def test_a_quoted_value_survives_the_shell() -> None:
    assert use(M="rank 8").shell == "--M 'rank 8'"


@pytest.mark.parametrize(("value", "language"), [("zh_CN.UTF-8", "zh"), ("de_DE.UTF-8", "en"), ("C", "en")])
def test_the_locale_chooses_the_language(value: str, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", value)
    assert default_language() == language


def test_a_catalogue_reads_long_and_quoted_entries(tmp_path: Path) -> None:
    file = tmp_path / "xx.po"
    file.write_text('msgid ""\nmsgstr ""\n\nmsgid "a \\"b\\""\nmsgstr ""\n"c "\n"d"\n', encoding="utf-8")
    assert read_po(file) == {'a "b"': "c d"}


def test_every_literal_for_people_is_extracted() -> None:
    source = 'Field(("a",), "how far", unit="nats"); Analysis(name="x", question="Why?"); plural("{n} a", "{n} b", n=n)'
    assert {template for _, template in python_templates(source)} == {"how far", "nats", "Why?", "{n} a", "{n} b"}


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    """The script, which shares the syntax trees with the other tests of this process and reads each catalogue once."""
    functions = run_path(str(ROOT / ".ci" / "messages.py"))
    functions["extract"].__globals__.update(
        python_templates=lambda source: templates_of(nodes(source)), load=cache(functions["load"])
    )
    return SimpleNamespace(**functions)


@pytest.mark.filterwarnings("default:without a translation")
def test_every_template_of_the_project_is_translated_with_its_parameters(script: SimpleNamespace) -> None:
    """A file without any entry in the catalogue is new. Its missing translations raise a warning, and English is shown."""
    missing, catalogued_files = script.missing("zh"), script.known_files("zh")
    assert [template for template, files in missing.items() if catalogued_files & set(files)] == [], (
        "type make messages"
    )
    if missing:
        warnings.warn(f"without a translation: {', '.join(missing)}", stacklevel=1)


def test_a_translation_with_other_parameters_is_missing(script: SimpleNamespace) -> None:
    template = "{n} of {total} heads"
    assert script.is_translated(template, CatalogueEntry(template, "{total} 个头中的 {n} 个"))
    assert not script.is_translated(template, CatalogueEntry(template, "{n} 个头"))
    assert not script.is_translated(template, CatalogueEntry(template, ""))
    assert not script.is_translated(template, None)


def test_every_percentage_has_a_space() -> None:
    """28 %, not 28%. The format `.0%` writes no space."""
    entries = catalogue.templates("zh")
    texts = [text for text in [*entries, *entries.values()] if re.search(r"[\d}]%|%\}", text)]
    assert len(entries) > 1000
    assert texts == []


def test_templates_with_other_parameter_names_are_distinguished() -> None:
    assert parameters_of("{n} of {total:,}") != parameters_of("{n} von {all}")


def test_render_uses_the_innermost_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    model = Message("Model")
    assert (current_language(), render(model)) == ("zh", "模型")
    with use_language("en"):
        assert render(model) == "Model"
        with use_language("zh"):
            assert render(model) == "模型"
        assert render(model) == "Model"
    assert current_language() == "zh"


def test_set_language_holds_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    set_language("en")
    try:
        with ThreadPoolExecutor(1) as executor:
            assert executor.submit(current_language).result() == "en"
        with use_language("zh"):
            assert current_language() == "zh"
    finally:
        set_language(None)
    assert current_language() == "zh"


def test_verbatim_text_is_not_translated() -> None:
    assert translate("Model", "zh") == translate(Message("{x}", x="Model"), "zh") == "模型"
    assert translate(Verbatim("Model"), "zh") == translate(Message("{x}", x=Verbatim("Model")), "zh") == "Model"
