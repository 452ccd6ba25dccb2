"""The HTML report in Chromium, opened from disk with the network off: console, widths, colours, what its buttons do."""

import json
import re
from importlib.resources import files

import pytest
from tests.bench.endpoint.support.hostile import hostile_run
from tests.bench.endpoint.support.synthetic import synthetic_run
from tests.gateway.support.browser import CHROMIUM, CHROMIUM_FLAGS

from eyas.bench.endpoint.reports.page import page
from eyas.bench.endpoint.reports.run_file import load_run
from eyas.bench.endpoint.reports.summary import summary

STYLE = (files("eyas.bench.endpoint.reports") / "page.css").read_text()
WIDE, PHONE = {"viewport": {"width": 1200, "height": 900}}, {"viewport": {"width": 360, "height": 740}}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM} on this machine")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=str(CHROMIUM), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Files of a run as it should be, and of one full of hostile names."""
    made = {}
    for name, run in (("plain", synthetic_run(concurrencies=(1, 2, 4), num_requests=4)), ("hostile", hostile_run())):
        made[name] = tmp_path_factory.mktemp("report") / f"{name}.html"
        made[name].write_text(page(run, summary(run)), encoding="utf-8")
    return made


@pytest.fixture
def shown(browser):
    """`shown(path, **options of the context)`. Afterwards: nothing on the console, nothing asked for but the file."""
    checks = []

    def shown(path, **options):
        context = browser.new_context(offline=True, **options)
        opened = context.new_page()
        said, asked = [], []
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(path.as_uri())
        checks.append((context, said, asked, path.as_uri()))
        return opened

    yield shown
    for context, said, asked, url in checks:
        context.close()
        assert said == [] and [one for one in asked if not one.startswith("blob:")] == [url]


def sticking_out(opened):
    """Elements beyond the right edge, but for those in a box that scrolls by itself."""
    return opened.evaluate("""() => [...document.querySelectorAll("body *")]
        .filter((it) => it.getBoundingClientRect().right > innerWidth + 1 && !it.closest(".scroll, pre"))
        .map((it) => it.outerHTML.slice(0, 120))""")


@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_on_a_phone(shown, reports, name):
    opened = shown(reports[name], **PHONE)
    assert opened.evaluate("document.documentElement.scrollWidth") == 360
    assert sticking_out(opened) == []
    assert opened.evaluate("window.hacked") is None
    sizes = opened.evaluate("""() => [...document.querySelectorAll(".picture text")]
        .filter((it) => it.textContent.trim()).map((it) => it.getBoundingClientRect().height)""")
    assert min(sizes) > 10  # in pixels of the phone, line height included


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["plain", "hostile"])
def test_light_and_dark(shown, reports, name, scheme):
    opened = shown(reports[name], color_scheme=scheme, **WIDE)
    light = opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(248, 247, 244)"
    assert light == (scheme == "light")
    assert sticking_out(opened) == [] and opened.evaluate("window.hacked") is None


@pytest.mark.slow
def test_the_button_saves_the_run(shown, reports, tmp_path):
    opened = shown(reports["plain"], accept_downloads=True, **WIDE)
    with opened.expect_download() as waiting:
        opened.click("#save")
    waiting.value.save_as(tmp_path / "saved.json")
    assert load_run(tmp_path / "saved.json") == synthetic_run(concurrencies=(1, 2, 4), num_requests=4)
    assert json.loads((tmp_path / "saved.json").read_bytes())["figures"]["base"] == "off"


@pytest.mark.slow
def test_markdown_is_copied(shown, reports):
    opened = shown(reports["plain"], permissions=["clipboard-read", "clipboard-write"], **WIDE)
    opened.click("#copy")
    opened.wait_for_function("document.querySelector('#copy').textContent !== 'Copy as Markdown'")
    assert opened.inner_text("#copy") == "Copied"
    assert opened.evaluate("navigator.clipboard.readText()") == opened.text_content("#pasteable")


@pytest.mark.slow
def test_without_scripts_nothing_is_missing(shown, reports):
    opened = shown(reports["plain"], java_script_enabled=False, **WIDE)
    assert opened.locator(".picture").count() == 12 and not opened.is_visible("#save")


@pytest.mark.slow
def test_paper_is_white_and_whole(shown, reports):
    opened = shown(reports["plain"], color_scheme="dark", **WIDE)
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.is_visible("#save") and opened.is_visible("table")
    assert opened.pdf(format="A4").startswith(b"%PDF")


def test_our_script_is_small():
    assert len((files("eyas.bench.endpoint.reports") / "page.js").read_bytes()) <= 10_000


def palettes():
    """Colours by name: light, dark and paper."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    assert len(blocks) == 3
    light, dark, paper = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block)) for block in blocks)
    return {"light": light, "dark": light | dark, "paper": light | paper}


def linear(colour):
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(one, other):
    """WCAG 2's ratio."""
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(sum(w * c for w, c in zip(weights, linear(x), strict=True)) for x in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark", "paper"])
def test_texts_have_the_contrast_that_wcag_asks_for(mode):
    colours = palettes()[mode]
    pairs = [(text, ground) for text in ("ink", "muted", "accent", "alarm") for ground in ("bg", "surface")]
    pairs += [("on-alarm", "alarm"), *((f"s{i}", "surface") for i in range(8))]
    pairs += [
        ("ink", "faster"),
        ("ink", "slower"),
        *((f"s{i}", ground) for i in range(4) for ground in ("faster", "slower")),
    ]
    weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert not {pair: ratio for pair, ratio in weak.items() if ratio < 4.5}


# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as the colour-blind see it.
SEEN = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def lab(channels):
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * c for a, c in zip(row, channels, strict=True)) / w for row, w in zip(rows, white, strict=True)]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("kind", SEEN)
def test_the_colour_blind_tell_the_first_arms_apart(mode, kind):
    """A difference of 10 in CIELAB is seen at a glance; all arms have shapes as well."""
    colours = palettes()[mode]
    seen = []
    for i in range(4):
        channels = linear(colours[f"s{i}"])
        seen.append(lab([min(1, max(0, sum(a * c for a, c in zip(row, channels, strict=True)))) for row in SEEN[kind]]))
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 10
