"""Memory on the router's page: owners, levels and orders as the status has them, and a real router's models in turn."""

import hashlib

import msgspec
import pytest
from playwright.sync_api import expect
from tests.fleet.conftest import lab
from tests.fleet.support.lab import free_port
from tests.router.support.operated import SERVER_KEY, at_backend, in_thread, operated_in_thread
from tests.router.support.pooled import Ballast, pooled, write_file
from tests.router.support.spark import spark_pool, spark_settings, unmeasured

from eyas.router.manager.condition import Condition
from eyas.router.manager.happenings import Happening
from eyas.router.operation.feed import INTERVAL_S

__all__ = ["lab"]

REFUSED = "Failed to load resource"  # Chromium's own line for any status of 400 and above
NARROW = {"width": 360, "height": 800}


def card(page, name):
    return page.locator(f".backend[data-backend={name}]")


def buttons(page, name):
    return card(page, name).locator("button:visible").all_inner_texts()


def signed_in(open_page, url, **options):
    page = open_page(url, expected_errors=[REFUSED], **options)
    page.locator("#live-note input").fill(SERVER_KEY)
    page.locator("#live-note input").press("Enter")
    expect(page.locator("#live-note")).to_be_hidden()
    return page


def test_without_pools_there_is_no_such_section(open_page):
    with operated_in_thread() as server:
        page = open_page(server.one.url)
        expect(page.locator("#ready")).to_have_text("3 of 3")
        expect(page.locator("#pools")).to_be_hidden()
        expect(card(page, "spark").locator(".swatch")).to_be_hidden()


def test_owners_levels_and_faults(open_page, shot):
    now = spark_pool(large=61.0, eyes=6.2)
    with operated_in_thread(spark_settings(), pools=(now,)) as server:

        def stand(pool, *events):
            server.one.control.stand = (pool,)
            for event in events:
                server.run(server.one.operation.happened, event)

        page = open_page(server.one.url)
        pool = page.locator(".pool[data-pool=spark]")
        bar = pool.locator(".parts")
        expect(pool).to_contain_text("79.2 GiB of 119.7 GiB, 66 %")
        expect(bar).to_have_attribute(
            "aria-label", "spark: 79.2 GiB of 119.7 GiB, 66 %, normal; others 12.0 GiB, large 61.0 GiB, eyes 6.2 GiB"
        )
        expect(pool.locator(".owners")).to_contain_text("small idle")
        expect(card(page, "large")).to_contain_text("takes 61.2 GiB, learnt · pinned · exclusive")
        expect(card(page, "small")).to_contain_text("takes 14.1 GiB, learnt (12.5 GiB declared)")
        expect(card(page, "eyes")).to_contain_text("takes 6.0 GiB, declared · low priority")
        assert page.locator(".backend button:visible").count() == 0, "no key, no orders"
        note = {"time_s": 1.8e9, "kind": "memory"}
        stand(
            msgspec.structs.replace(spark_pool(large=61, small=14, others=33, level="emergency"), some=31.0, full=12.0),
            Happening(memory="pressure", text="normal -> critical: 99 GiB", **note),
            Happening(memory="pressure", text="critical -> emergency: 108 GiB", **note),
            Happening(memory="larger", backend="small", text="takes 14.1 GiB, 12.5 GiB were declared", **note),
            Happening(memory="unload", backend="eyes", text="emergency: 91% of the memory is used", **note),
            Happening(memory="late", backend="eyes", text="1.0 GiB of 6.0 GiB came back in 60 s", **note),
        )
        expect(pool.locator(".state")).to_have_text("emergency")
        expect(pool).to_contain_text("some tasks stalled for memory 31 %, all 12 %")
        bad = page.locator("#events .bad .what")
        expect(bad).to_have_text(["memory is late", "larger than declared", "pressure"])
        same = "one => getComputedStyle(one).backgroundColor"
        assert bar.locator(".part").nth(1).evaluate(same) == card(page, "large").locator(".swatch").evaluate(same)
        shot(page, "router-memory-emergency")
        stand(msgspec.structs.replace(now, age_s=41, fault="nvidia-smi does not answer within 10 s"))
        expect(pool.locator(".reason")).to_have_text("nvidia-smi does not answer within 10 s · measured 41 s ago")
        stand(unmeasured(now, "there is no nvidia-smi here"))
        expect(pool.locator(".state")).to_have_text("unknown")
        expect(pool).to_contain_text("not measured yet")


def test_orders_by_state(open_page):
    with operated_in_thread(spark_settings(SERVER_KEY), pools=(spark_pool(large=61, small=14),)) as server:
        page = signed_in(open_page, server.one.url)
        expect(page.locator("#ready")).to_have_text("4 of 4")
        assert buttons(page, "large") == ["Unload", "Unpin", "Stop"]
        assert buttons(page, "small") == ["Unload", "Pin", "Stop"]
        assert buttons(page, "eyes") == ["Load", "Pin", "Stop"]
        assert buttons(page, "cloud") == ["Stop"]
        for name, state in (("eyes", Condition(state="out", cause="stopped")), ("cloud", Condition(state="out"))):
            server.run(server.one.manager.report, name, state)
        expect(card(page, "cloud").get_by_role("button", name="Start cloud")).to_be_visible()
        assert buttons(page, "eyes") == ["Load", "Pin"]
        card(page, "eyes").get_by_role("button", name="Load eyes").click()
        card(page, "small").get_by_role("button", name="Pin small").click()
        card(page, "small").get_by_role("button", name="Unload small").click()
        visit, _ = server.run(at_backend, server.one.manager, "model-large", ("large",))
        expect(card(page, "large")).to_contain_text("1 of 4")
        for choice in ("cancel", "unload"):
            card(page, "large").get_by_role("button", name="Unload large").click()
            expect(page.locator("#confirm-text")).to_have_text(
                "1 of its answers is not complete. They have a while to end, then they are cut. It is pinned."
            )
            page.locator(f"#confirm button[value={choice}]").click()
        expect(page.locator("#confirm")).to_be_hidden()
        card(page, "cloud").get_by_role("button", name="Start cloud").click()
        expect(page.locator("#live-note")).to_be_hidden()
        server.run(visit.left)
        orders = [("load", "eyes"), ("pin", "small"), ("unload", "small"), ("unload", "large"), ("start", "cloud")]
        assert server.one.control.orders == orders


def test_events_that_say_the_same_are_one_line(open_page):
    with operated_in_thread(spark_settings(), pools=(spark_pool(),), ready=False) as server:
        page = open_page(server.one.url)
        expect(page.locator("#ready")).to_have_text("0 of 4")

        def tell(kind, text):
            happening = Happening(time_s=1.8e9, kind="memory", memory=kind, backend="small", text=text)
            server.run(server.one.operation.happened, happening)

        def stand(**fields):
            server.run(server.one.manager.report, "small", Condition(**fields))

        tell("load", "is loaded: 14 GiB fit into 30 GiB")
        for step in ("starting", "waiting for the server"):
            stand(state="loading", reason=step)
        stand(state="ready")
        tell("loaded", "is loaded")
        page.wait_for_timeout(1000 * 2 * INTERVAL_S)  # more at once are counted, not shown
        tell("unload", "makes room for large")
        stand(state="unloading", reason="makes room for large")
        stand(state="idle", reason="is loaded when it is asked for")
        tell("refused", "is too large")
        stand(state="out", cause="memory", reason="is too large")
        lines = [
            *("small no room is too large", "small idle is loaded when it is asked for"),
            *("small unload makes room for large", "small ready", "small loading waiting for the server"),
            "small load is loaded: 14 GiB fit into 30 GiB",
        ]
        expect(page.locator("#events li")).to_have_count(len(lines))
        shown = page.locator("#events li").evaluate_all("all => all.map((one) => one.innerText)")
        assert [" ".join(text.split()[1:]) for text in shown] == lines


HISTORY = """async ([pools, seconds]) => {
  const { Memory, Owners } = await import("/page/memory.js");
  const section = document.createElement("section");
  section.append(document.querySelector("#pools-title"));
  const memory = new Memory(section, new Owners());
  const real = Date.now;
  const end = real();
  pools.forEach((pool, n) => {
    Date.now = () => end - 1000 * (seconds[pools.length - 1] - seconds[n]);
    memory.show([pool]);
  });
  Date.now = real;
  document.querySelector("#pools").replaceWith(section);
  section.id = "drawn";
  return [...section.querySelectorAll(".area")].map((path) => path.getAttribute("d"));
}"""


@pytest.mark.slow
def test_the_last_ten_minutes_are_drawn_with_gaps(open_page, shot):
    turns = {0: {"small": 14.0}, 1: {"small": 14.0, "eyes": 6.0}, 2: {"eyes": 6.0}, 3: {}}
    seconds = [at for at in range(750) if not 500 <= at < 550]  # 50 s are missing
    pools = [
        msgspec.to_builtins(
            spark_pool(others=12 + at % 97 / 20, large=61.0 if at > 330 else 0, **turns[int(at / 60) % 4])
        )
        for at in seconds
    ]
    with operated_in_thread(spark_settings(), pools=(spark_pool(),)) as server:
        page = open_page(server.one.url)
        expect(page.locator(".pool")).to_be_visible()
        server.run(server.one.manager.report, "small", Condition(state="idle", reason="is loaded when it is asked for"))
        expect(card(page, "small")).to_contain_text("idle")
        areas = page.evaluate(HISTORY, [pools, seconds])
        assert [area.count("M") for area in areas] == [2] * 4, "one gap"
        points = [float(point.split()[0]) for point in areas[0].strip("MZ").replace("ZM", "L").split("L")]
        assert len(points) < 2 * 305 and min(points) >= 0 and max(points) <= 600
        shot(page, "router-memory-history")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size(NARROW)
        page.click("[data-show=live]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shot(page, "router-memory-history-narrow")


@pytest.mark.slow
def test_models_come_and_go(open_page, shot, lab):
    engines = [
        Ballast("large", 120, more={"pinned": True, "priority": "critical"}),
        Ballast("coder", 90, answer_s=2.5, more={"exclusive": True}),
        Ballast("writer", 90, declared=0.8, more={"exclusive": True}),
        Ballast("eyes", 30, more={"role": "vision", "priority": "low"}),
    ]
    key = f"sha256:{hashlib.sha256(SERVER_KEY.encode()).hexdigest()}"
    server_settings = {"port": free_port(), "api_key": key}
    path = write_file(lab.tmp, engines, 420, lab.journal, server=server_settings)
    with in_thread(pooled(path)) as server:
        server.one.session.headers["authorization"] = f"Bearer {SERVER_KEY}"
        page = signed_in(open_page, server.one.url, viewport={"width": 1280, "height": 1500})

        def until(name, state):
            expect(card(page, name).locator(".state").first).to_have_text(state, timeout=60_000)

        until("large", "ready")
        until("coder", "idle")
        for name in ("eyes", "coder"):
            assert server.begin(server.one.ask, name).result(60)[0] == 200
        until("coder", "ready")
        asked = [server.begin(server.one.ask, "coder")]
        expect(card(page, "coder").locator(".load")).to_have_text("1 of 8")
        asked.append(server.begin(server.one.ask, "writer"))
        until("coder", "unloading")
        shot(page, "router-memory-unloading")
        assert [one.result(60)[0] for one in asked] == [200, 200]
        until("writer", "ready")
        expect(card(page, "writer")).to_contain_text("learnt (81 MiB declared)")
        expect(page.locator("#events .bad")).to_contain_text("larger than declared")
        card(page, "coder").get_by_role("button", name="Load coder").click()
        until("writer", "idle")
        until("coder", "ready")
        card(page, "coder").get_by_role("button", name="Pin coder").click()
        expect(card(page, "coder")).to_contain_text("pinned")
        assert server.begin(server.one.ask, "writer").result(60)[0] == 503
        expect(page.locator("#events .bad")).to_contain_text(["no room"])
        shot(page, "router-memory")
        page.emulate_media(color_scheme="dark")
        shot(page, "router-memory-dark")
        page.set_viewport_size(NARROW | {"height": 1400})
        page.click("[data-show=live]")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shot(page, "router-memory-narrow-dark")
        page.emulate_media(color_scheme="light")
        shot(page, "router-memory-narrow")
        page.close()  # before the router, whose end it would report
