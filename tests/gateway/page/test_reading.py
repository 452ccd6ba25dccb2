"""How answers are read: links, tables, tasks, formulas, colours, and texts that are made to be slow."""

import random
import re

import pytest
from tests.gateway.support.browser import CONTENT

RENDER = """async (text) => {
    const { Markdown } = await import("/page/read/markdown.js");
    await (await import("/page/read/maths.js")).load();
    const element = document.createElement("div");
    new Markdown(element).set(text);
    return element.innerHTML;
}"""
COLOUR = """async (text) => {
    const { Markdown } = await import("/page/read/markdown.js");
    const { modeOf } = await import("/page/read/highlight.js");
    const element = document.createElement("div");
    new Markdown(element).set(text);
    await modeOf(/^```(\\S+)/.exec(text)[1]);
    await new Promise((done) => setTimeout(done));
    return element.innerHTML;
}"""
GROW = """async ([texts, most]) => {
    const { Markdown } = await import("/page/read/markdown.js");
    const whole = (text) => {
        const element = document.createElement("div");
        new Markdown(element).set(text);
        return element.innerHTML;
    };
    for (const text of texts) {
        const element = document.createElement("div");
        const view = new Markdown(element);
        const steps = Math.min(text.length, most);
        for (let n = 1; n <= steps; n++) {
            const part = text.slice(0, Math.ceil((text.length * n) / steps));
            view.set(part);
            if (element.innerHTML !== whole(part)) return [part, element.innerHTML, whole(part)];
        }
    }
    return null;
}"""
TIME = """async (text) => {
    const { Markdown } = await import("/page/read/markdown.js");
    const best = [];
    for (let n = 0; n < 3; n++) {
        const element = document.createElement("div");
        const start = performance.now();
        new Markdown(element).set(text);
        best.push(performance.now() - start);
    }
    return Math.min(...best);
}"""


@pytest.fixture(scope="module")
def reader(browser, server):
    page = browser.new_page()
    page.goto(server.url)
    yield page
    page.close()


@pytest.fixture(scope="module")
def render(reader):
    return lambda text: reader.evaluate(RENDER, text)


LINK = '<a href="{0}" rel="noopener noreferrer nofollow" target="_blank">{1}</a>'
INLINE = {
    "[w](https://a.b/Foo_(bar))": LINK.format("https://a.b/Foo_(bar)", "w"),
    "[w](https://a.b/Foo_(bar)_(baz) 'title') x": '<a href="https://a.b/Foo_(bar)_(baz)" title="title" '
    'rel="noopener noreferrer nofollow" target="_blank">w</a> x',
    "(see https://a.b/Foo_(bar)).": "(see " + LINK.format("https://a.b/Foo_(bar)", "https://a.b/Foo_(bar)") + ").",
    "(see https://a.b/c).": "(see " + LINK.format("https://a.b/c", "https://a.b/c") + ").",
    "<https://a.b/c> and **[x](https://y.z)**": LINK.format("https://a.b/c", "https://a.b/c")
    + " and <strong>"
    + LINK.format("https://y.z", "x")
    + "</strong>",
    "![cat](https://a.b/c.png)": LINK.format("https://a.b/c.png", "Picture: cat"),
    "**a** *b* ~~d~~ __e__": "<strong>a</strong> <em>b</em> <s>d</s> <strong>e</strong>",
    "***c***": "<em><strong>c</strong></em>",
    "**a*b*c** d_e_f a*b*c 2 * 3": "<strong>a*b*c</strong> d_e_f a*b*c 2 * 3",
    "\\*a\\* `\\*` ``a`b``": "*a* <code>\\*</code> <code>a`b</code>",
    "$5 and $6, $7/$8": "$5 and $6, $7/$8",
    "a<br>b": "a<br>b",
}


@pytest.mark.parametrize("text", INLINE)
def test_text_inside_a_line(render, text):
    assert render(text) == f"<p>{INLINE[text]}</p>"


def test_tables_and_tasks(render):
    assert render("x\n| a | b |\n|:-:|--:|\n| 1 \\| 2 | `c` | d |\n| 3 |\n\ny") == (
        '<p>x</p><div class="table" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
        '<th class="middle" scope="col">a</th><th class="right" scope="col">b</th></tr></thead><tbody>'
        '<tr><td class="middle">1 | 2</td><td class="right"><code>c</code></td></tr>'
        '<tr><td class="middle">3</td><td class="right"></td></tr></tbody></table></div><p>y</p>'
    )
    assert render("- [x] a\n- [ ] b") == (
        '<ul class="tasks"><li><input type="checkbox" disabled="" checked="" aria-label="done"><div class="item">'
        '<p>a</p></div></li><li><input type="checkbox" disabled="" aria-label="to do"><div class="item"><p>b</p></div>'
        "</li></ul>"
    )


FORMULAS = {
    r"\frac{1}{2}": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    r"x_i^2": '<msubsup><mi>x</mi><mi>i</mi><mn class="tml-sml-pad">2</mn></msubsup>',
    r"\sqrt[3]{a}": '<mroot><mrow><mi>a</mi><mspace width="0pt" height="0.5em"></mspace></mrow><mn>3</mn></mroot>',
    r"\mathbb{R}\mathbf{x}": "<mi>ℝ</mi><mi>𝐱</mi>",
    r"f'(x)": '<msup><mi>f</mi><mo lspace="0em" rspace="0em" class="tml-prime tml-lrg-pad">′</mo></msup>',
    r"\left(\frac a b\right]": '(</mo><mfrac><mi>a</mi><mi>b</mi></mfrac><mo fence="true" form="postfix" '
    'stretchy="true">]</mo>',
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": '<mtr><mtd style="padding-left: 0em; padding-right: 5.9776pt;"><mn>1</mn>',
    r"\text{if } x \ne 0": "<mtext>if&nbsp;</mtext><mi>x</mi><mo>≠</mo><mn>0</mn>",
    r"\hat{y} \to \infty": "<mo>→</mo><mi>∞</mi>",
    r"\operatorname{argmax}_\theta": "<msub><mi>argmax</mi><mi>θ</mi></msub>",
}


@pytest.mark.parametrize("tex", FORMULAS)
def test_formulas_are_mathml(render, tex):
    for text, display in ((f"a ${tex}$ b", "inline"), (f"\\[\n{tex}\n\\]", "block"), (f"$${tex}$$", "block")):
        drawn = render(text)
        assert FORMULAS[tex] in drawn and ("<math>" if display == "inline" else '<math display="block"') in drawn
        assert 'annotation encoding="application/x-tex"' in drawn


@pytest.mark.parametrize(
    "tex", [r"\unknown{x}", r"\frac{1}", r"{x", r"\left( x", r"\begin{x}\end{x}", r"\def\a{xx}\a", r"\href{#}{x}"]
)
def test_what_is_no_formula_stays_as_it_was_written(render, tex):
    drawn = render(f"$${tex}$$")
    assert "<math" not in drawn and f">{tex}</pre>" in drawn.replace("&amp;", "&")


def test_colours_of_code(reader):
    def render(text):
        return reader.evaluate(COLOUR, text)

    drawn = render('```python\ndef f(x):  # why\n    """doc\n    more"""\n    return x + 1.5e3\n```')
    for piece in (
        ">def<",
        't-f">f<',
        't-c"># why<',
        't-s">"""doc<',
        't-s">    more"""<',
        't-k">return<',
        't-n">1.5e3<',
    ):
        assert piece in drawn, piece
    assert "t-" not in render("```unheard-of\ndef f\n```")
    assert 't-add">+ a<' in render("```diff\n+ a\n- b\n```")


PIECES = [
    *(
        "\n",
        "\n\n",
        " ",
        "  ",
        "    ",
        "a",
        "word ",
        "- ",
        "* ",
        "1. ",
        "2) ",
        "> ",
        "# ",
        "### ",
        "```",
        "```py\n",
        "~~~\n",
    ),
    *(
        "| a | b |\n",
        "|---|---|\n",
        "|",
        "---",
        "***",
        "**",
        "*",
        "_",
        "~~",
        "`",
        "[",
        "](https://x.y/(z))",
        "](",
        ")",
        "\\",
    ),
    *(
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[\n",
        "\\]\n",
        "x^2",
        "- [ ] ",
        "- [x] ",
        "https://a.b/c",
        "<br>",
        "<https://q.r>",
        "é",
        "\t",
    ),
]


def test_a_growing_text_looks_like_the_whole(reader):
    rng = random.Random(7)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(4, 40))) for _ in range(150)]
    assert reader.evaluate(GROW, [[CONTENT, *texts], 60]) is None


def test_long_texts_look_the_same_however_they_grow(reader):
    """Paragraphs in pieces, and a table of several bodies."""
    rng = random.Random(11)
    inside = [*[one for one in PIECES if "\n" not in one], *["Some words. ", "more, and more; ", "It ends! "] * 20]
    texts = ["".join(rng.choices(inside, k=4000)) for _ in range(6)]
    texts.append("| a | b |\n|---|---|\n" + "".join(f"| {n} | `x` |\n" for n in range(250)) + "\nend")
    texts.append("Word. " * 3000)
    assert reader.evaluate(GROW, [texts, 25]) is None
    assert "pieces" in reader.evaluate(RENDER, texts[-1])


SLOW = {
    "stars": "**a " * 40_000,
    "bars": "|" * 60_000,
    "bars, dashes": "|" * 60_000 + "\n" + "|-" * 30_000,
    "bars, rows": ("x|" * 100 + "\n") + ("-|" * 100 + "\n") + "|" * 60_000,
    "ticks": "".join("`" * n + " " for n in range(1, 400)),
    "brackets": "[" * 60_000,
    "links": "[a](" * 20_000,
    "targets": "[" * 20 + "](" * 30_000,
    "pictures": "![" * 30_000 + "](x)" * 100,
    "marks": "*_~" * 30_000,
    "mixed marks": "*a _b ~~c **d __e " * 5_000,
    "both ways": "a**b*c" * 15_000,
    "dollars": "$a $" * 25_000,
    "formulas": "\\(" * 50_000 + "\\)",
    "formula blocks": "\\[\n" * 30_000,
    "quotes": ">" * 60_000,
    "quoted lines": "> " * 40 + "\n> - " * 5_000,
    "spaces": " " * 60_000 + "x\n" + "-" + " " * 60_000 + "x",
    "dashes": "- " * 30_000 + "x",
    "heading": "#" + " " * 50_000 + "#" * 10_000 + "x",
    "addresses": "https://" * 10_000,
    "closed addresses": "https://a" + ")" * 60_000,
    "angles": "<https://" * 10_000,
    "escapes": "\\*" * 40_000,
    "fences": "```\n" * 15_000,
    "code": "```js\n" + ('"' + "\\" * 1000 + "\n") * 60 + "```",
    "keys": "```yaml\n" + "a-" * 30_000 + "\n```",
    "expansions": (r"$\quad\ne\iff\dots" + r"\implies\ne" * 200 + "$ and ") * 30,
    "cells": (r"$$\begin{matrix}" + "&" * 2300 + r"\end{matrix}$$" + "\n\n") * 3,
    "formula in formula": "$x^{" + "a_{b^{" * 300 + "}" * 601 + "$",
    "braces": "$$" + "{" * 1900 + "}" * 1900 + "$$",
    "empty lines": "- a\n" + "\n" * 60_000 + "b",
}


@pytest.mark.parametrize("name", SLOW)
def test_nothing_takes_long(reader, name):
    """A text takes little more than four times as long as its first quarter: a quadratic reader takes 16 times.

    On a busy machine both take longer. Below 50 ms the quarter says nothing.
    """
    text = SLOW[name]
    quarter = reader.evaluate(TIME, text[: len(text) // 4])
    assert reader.evaluate(TIME, text) < 12 * max(quarter, 50)
    assert not re.search("<(img|script|iframe)", reader.evaluate(RENDER, text[:5000]))
