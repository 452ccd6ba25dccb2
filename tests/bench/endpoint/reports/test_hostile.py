"""Names from strangers stay names: no markup, script or link comes of them, in HTML and in Markdown."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.bench.endpoint.support.hostile import CORPUS, hostile_run
from tests.bench.endpoint.support.pictures import parse

from eyas.bench.endpoint.reports.markdown import escaped, markdown
from eyas.bench.endpoint.reports.page import page
from eyas.bench.endpoint.reports.plots.elements import clean, element, serialized
from eyas.bench.endpoint.reports.presets import preset_markdown
from eyas.bench.endpoint.reports.summary import summary

TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "div",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "bdi",
        "strong",
    ),
    *("span", "figure", "figcaption", "svg", "g", "path", "line", "rect", "text", "details", "summary", "section"),
    *("table", "thead", "tbody", "tr", "th", "td", "small", "dl", "dt", "dd", "button", "pre", "script"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "class", "role", "id", "type", "hidden", "tabindex", "title"),
    *(
        "scope",
        "data-plot",
        "viewbox",
        "width",
        "height",
        "aria-hidden",
        "d",
        "transform",
        "x",
        "y",
        "x1",
        "x2",
        "y1",
        "y2",
    ),
}
MARKDOWN_TAGS = {"h3", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "br"}


@pytest.fixture(scope="module")
def run():
    return hostile_run()


@pytest.fixture(scope="module")
def html(run):
    return page(run, summary(run))


def test_nothing_but_our_own_elements(html):
    tree = parse(html)
    nodes = list(tree.all())
    assert len(nodes) > 500
    assert {node.tag for node in nodes} <= TAGS
    assert {name for node in nodes for name in node.attributes} <= ATTRIBUTES
    scripts = list(tree.all("script"))
    assert [s.attributes.get("type") for s in scripts] == ["application/json", None] and "hacked" not in scripts[
        1
    ].text()
    assert len(list(tree.all("style"))) == 1 and "hacked" not in next(tree.all("style")).text()
    assert [m.attributes.get("http-equiv") for m in tree.all("meta") if "http-equiv" in m.attributes] == [
        "Content-Security-Policy"
    ]


def test_every_name_is_shown_as_it_is(run, html):
    text = parse(html).text()
    for word in CORPUS:
        assert clean(word) in text, word


def test_the_data_keeps_every_character(run, html):
    (script,) = [node for node in parse(html).all("script") if node.attributes.get("id") == "run"]
    assert "<" not in script.text()
    data = json.loads(script.text())
    assert [w["arm"] for w in data["windows"]] == [w.arm for w in run.windows]
    assert data["header"]["stamp"]["endpoint"] == run.header.stamp.endpoint


@given(st.text(st.characters(codec="utf-8"), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_is_text(text):
    shown = parse(serialized(element("p", text, element("b", text), text, title=text)))
    (p,) = shown.all("p")
    (b,) = p.all()
    assert b.children in ([clean(text)], []) and p.text() == clean(text) * 3
    assert p.attributes["title"] == clean(text)


def _rendered(text):
    """As GitHub does, tables included; HTML passes through, so none may be left."""
    return parse(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_markdown_has_no_links_and_no_html(run):
    for text in (markdown(summary(run)), preset_markdown(summary(run), "s3")):
        tree = _rendered(text)
        assert {node.tag for node in tree.all()} <= MARKDOWN_TAGS
        (*_, table) = tree.all("table")
        rows = list(table.all("tr"))
        assert len({len(list(row.all())) for row in rows}) == 1


def test_markdown_shows_names_as_they_are(run):
    tree = _rendered(markdown(summary(run)))
    cells = [cell.text() for cell in tree.all("td")]
    for arm in {w.arm for w in run.windows}:
        assert " ".join(arm.split()) in cells
    assert len(list(tree.all("code"))) == 1  # the definitions


@given(st.text(st.characters(codec="utf-8"), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_is_one_paragraph_of_text(text):
    tree = _rendered("x" + escaped(text) + "x")
    (p,) = tree.children[:1]
    assert p.tag == "p" and list(p.all()) == []
    assert p.text().replace("\u200b", "") == "x" + " ".join(clean(text).split()).replace("\u200b", "") + "x"
