"""The router's page in a real browser: backends, events, start and stop, keys, and a connection that is lost."""

import httpx
import pytest
from playwright.sync_api import expect
from tests.router.support.operated import SERVER_KEY, at_backend, operated_in_thread, small_settings
from tests.router.support.running import router_process
from tests.support.serving import served

from eyas.router.manager.condition import Condition

REFUSED = "Failed to load resource"  # Chromium's own line for any status of 400 and above
LOST = "ERR_"  # and for a connection that ends


def card(page, name):
    return page.locator(f".backend[data-backend={name}]")


def fail(server, times):
    """Let the first backend fail."""

    async def work():
        for _ in range(times):
            visit, name = await at_backend(server.one.manager, "gpt-oss-120b", ("spark", "plain"))
            assert name == "spark"
            visit.failed("budget", "no content for 120 s")
            visit.left()

    server.run(work)


def test_backends_and_events_as_they_happen(open_page, shot):
    with operated_in_thread() as server:
        manager = server.one.manager
        held = [server.run(at_backend, manager, "gpt-oss-120b", ("spark", "plain")) for _ in range(3)]
        page = open_page(server.one.url)
        expect(page.locator("#ready")).to_have_text("3 of 3")
        expect(page.locator("#in-flight")).to_have_text("3")
        expect(card(page, "spark").locator(".load")).to_have_text("3 of 4")
        expect(card(page, "plain")).to_contain_text("twin of spark, without speculation")
        expect(page.locator("#control-note")).to_contain_text("API key")
        expect(page.locator(".backend button:visible")).to_have_count(0)
        assert page.locator("#to option").all_inner_texts() == [
            *("gpt-oss-120b", "gpt-oss-20b", "route/auto", "route/MATH", "route/SIMPLE_CODE"),
        ]
        fail(server, 5)
        server.run(
            manager.report, "small", Condition(state="out", cause="canary", reason="the canary's answer repeats '!'")
        )
        expect(card(page, "spark")).to_contain_text("breaker open")
        expect(card(page, "small")).to_contain_text("the canary's answer repeats '!'")
        expect(page.locator("#ready")).to_have_text("1 of 3")
        expect(page.locator("#events li").first).to_contain_text("out")
        expect(page.locator("#events")).to_contain_text("failed: budget")
        expect(page.locator("#events")).to_contain_text("breaker open")
        shot(page, "router-page")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 360, "height": 740})
        page.click("[data-show=live]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shot(page, "router-page-narrow")
        page.click("[data-show=chat]")
        assert page.locator("#input").bounding_box()["width"] > 200
        for visit, _ in held:
            server.run(visit.left)


@pytest.mark.slow
def test_files_are_counted_by_a_backend(open_page, tmp_path):
    text = b"Some words of a file, and some more.\n" * 9
    with (
        served("demo", "--draft-tokens", "3") as server,
        router_process(tmp_path, {"engine": server.url}, model="eyas-demo") as router,
    ):
        page = open_page(router.url, expected_errors=[REFUSED])
        expect(page.locator("#ready")).to_have_text("1 of 1")
        file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": text}
        page.set_input_files("#dock input[type=file]", [file])
        count = httpx.post(f"{server.url}/tokenize", json={"prompt": text.decode()}).json()["count"]
        expect(page.locator(".chip")).to_have_text(f"notes.txt{count} tokens")


def test_a_text_of_a_backend_is_shown_as_text(open_page):
    hostile = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    with operated_in_thread() as server:
        page = open_page(server.one.url)
        expect(page.locator("#ready")).to_have_text("3 of 3")
        server.run(server.one.manager.report, "small", Condition(state="out", cause="canary", reason=hostile))
        expect(card(page, "small").locator(".reason")).to_have_text(hostile)
        expect(page.locator("#events li").first).to_contain_text("<img src=x")
        assert page.evaluate("window.hacked") is None


def test_start_and_stop_with_a_key_that_only_the_page_keeps(open_page):
    with operated_in_thread(small_settings(SERVER_KEY)) as server:
        page = open_page(server.one.url, expected_errors=[REFUSED])
        note = page.locator("#live-note")
        expect(note).to_contain_text("needs a valid API key")
        note.locator("input").fill("wrong")
        note.locator("input").press("Enter")
        expect(note).to_contain_text("needs a valid API key")
        note.locator("input").fill(SERVER_KEY)
        note.locator("input").press("Enter")
        expect(page.locator("#ready")).to_have_text("3 of 3")
        expect(note).to_be_hidden()
        card(page, "spark").locator("button:visible").click()
        page.locator("#confirm button[value=cancel]").click()
        card(page, "plain").locator("button:visible").click()
        page.locator("#confirm button[value=stop]").click()
        expect(note).to_contain_text("last one that can answer")
        card(page, "spark").locator("button:visible").click()
        expect(page.locator("#confirm-title")).to_have_text("Stop spark?")
        page.locator("#confirm button[value=stop]").click()
        server.run(server.one.manager.report, "spark", Condition(state="out", cause="stopped", reason="stopped"))
        start = card(page, "spark").get_by_role("button", name="Start spark")
        with page.expect_response(lambda response: response.request.method == "POST"):
            start.click()
        expect(start).to_be_visible()
        assert server.one.control.orders == [("stop", "spark"), ("start", "spark")]
        kept = "[Object.values(localStorage), Object.values(sessionStorage), document.cookie, document.body.innerHTML]"
        assert SERVER_KEY not in str(page.evaluate(kept))
        page.reload()
        expect(note).to_contain_text("needs a valid API key")


@pytest.mark.slow
def test_a_router_that_goes_away_is_said(open_page):
    with operated_in_thread() as server:
        page = open_page(server.one.url, expected_errors=[REFUSED, LOST])
        expect(page.locator("#ready")).to_have_text("3 of 3")
    expect(page.locator("#live-note")).to_contain_text("Trying again")
    expect(page.locator(".backend.faded")).to_have_count(3)


@pytest.mark.slow
def test_each_conversation_has_its_model(open_page):
    with operated_in_thread() as server:
        page = open_page(server.one.url, expected_errors=[REFUSED])
        expect(page.locator("#to")).to_have_value("gpt-oss-120b")
        bodies = []
        page.on("request", lambda one: bodies.append(one.post_data_json) if one.url.endswith("completions") else None)
        for model, text in (("gpt-oss-20b", "One"), ("route/auto", "Two")):
            page.click("#new")
            page.select_option("#to", model)
            page.fill("#input", text)
            page.press("#input", "Enter")
            expect(page.locator("#banner")).to_be_visible()  # there is no relay here
        assert [body["model"] for body in bodies] == ["gpt-oss-20b", "route/auto"]
        page.click("#open-library")
        page.click(".talk >> text=One")
        expect(page.locator("#to")).to_have_value("gpt-oss-20b")
        page.click(".talk >> text=Two")
        expect(page.locator("#to")).to_have_value("route/auto")
        page.reload()
        expect(page.locator(".bubble")).to_have_text("Two")
        expect(page.locator("#to")).to_have_value("route/auto")
