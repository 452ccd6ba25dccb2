"""The page of a running router while a backend is killed inside an answer, and the chat that goes on with another."""

import json

import pytest
from playwright.sync_api import expect
from tests.gateway.support.browser import CONTENT, QUESTION
from tests.router.support.running import router_process
from tests.router.support.scripted import scripted_process

FIRST = "A draft head guesses tokens, and the model checks them. "


def script(**fields) -> str:
    return json.dumps({"thoughts": 3, **fields})


@pytest.mark.slow
def test_a_backend_is_killed_inside_an_answer(open_page, shot, tmp_path):
    slow = script(text=FIRST * 40, pieces=200, between_s=0.1)
    whole = script(text=CONTENT, pieces=30)
    with (
        scripted_process("spark", "--script", slow) as (spark, process),
        scripted_process("plain", "--script", whole) as (plain, _),
        router_process(tmp_path, {"spark": spark, "plain": plain}) as router,
    ):
        page = open_page(router.url)
        expect(page.locator("#ready")).to_have_text("2 of 2")
        page.fill("#input", json.dumps({"text": "Done.", "first_s": 1.5, "between_s": 0.0, "thoughts": 0}))
        page.press("#input", "Enter")
        expect(page.locator(".wait")).to_have_text("The model reads the prompt")
        expect(page.locator(".assistant .text")).to_have_text("Done.")
        page.click("#new")
        page.fill("#input", QUESTION)
        page.press("#input", "Enter")
        expect(page.locator(".assistant .text")).to_contain_text(FIRST.strip())
        expect(page.locator(".backend[data-backend=spark] .load")).to_contain_text("1 of 8")
        process.kill()
        expect(page.locator(".assistant .note")).to_have_text("The answer was cut; ask again.")
        expect(page.locator("#events")).to_contain_text("failed: broken")
        shot(page, "router-kill")
        again = page.locator(".banner.good button")
        expect(again).to_have_text("Ask again")
        again.click()
        expect(page.locator(".assistant .text")).to_contain_text("Why nothing changes")
        expect(page.locator(".assistant .stats")).to_contain_text("plain")
        expect(page.locator("#ready")).to_have_text("1 of 2")
        expect(page.locator("#in-flight")).to_have_text("0")
        shot(page, "router-after-kill")
        assert router.backend("spark")["state"] != "ready"
        page.close()  # before the router, whose end it would report
