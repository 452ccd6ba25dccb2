"""What is loaded in a pool: what fits, who goes for whom, and what happens when memory is short."""

import pytest
from tests.router.support.memory_runs import GIB, Box, Engine, Request

from eyas.router.memory.events import Fails, Stood, Waits
from eyas.router.settings.schema import MemorySettings


def test_what_fits_is_loaded_for_the_first_request_and_stays():
    box = Box([Engine("a", 20 * GIB), Engine("b", 20 * GIB)], requests=[Request("a", 1001.0), Request("b", 1002.0)])
    box.settle()
    assert [name for _, name in box.loads()] == ["a", "b"]
    assert box.states() == {"a": "ready", "b": "ready"} and not box.unloads()
    (_, _), (second, _) = box.loads()
    assert second >= box.loads()[0][0] + 10  # one at a time


def test_a_pinned_one_is_loaded_with_the_router():
    box = Box([Engine("a", 20 * GIB, is_pinned=True), Engine("b", 20 * GIB)])
    box.run(15)
    assert box.states() == {"a": "ready", "b": "idle"}


def test_the_lowest_priority_goes_first_then_the_one_least_recently_used():
    engines = [
        Engine("old", 20 * GIB),
        Engine("new", 20 * GIB),
        Engine("low", 20 * GIB, priority="low"),
        Engine("more", 20 * GIB),
        Engine("again", 20 * GIB),
    ]
    times = {"old": 1001.0, "new": 1020.0, "low": 1040.0, "more": 1060.0, "again": 1100.0}
    box = Box(engines, requests=[Request(name, at) for name, at in times.items()])
    box.settle()
    assert [name for _, name in box.unloads()] == ["low", "old"]
    assert box.states()["new"] == "ready"


def test_no_more_go_than_must():
    engines = [Engine("a", 10 * GIB), Engine("b", 30 * GIB), Engine("c", 30 * GIB), Engine("d", 35 * GIB)]
    times = {"a": 1001.0, "b": 1020.0, "c": 1040.0, "d": 1060.0}
    box = Box(engines, requests=[Request(name, at) for name, at in times.items()])
    box.settle()
    assert [name for _, name in box.unloads()] == ["b"]  # with it alone there is room, so a stays


def test_who_was_wanted_first_is_loaded_first():
    requests = [
        Request("first", 1001.0),
        *(Request(name, at) for name, at in (("c", 1003.0), ("a", 1004.0), ("b", 1005.0))),
    ]
    box = Box([Engine(name, 10 * GIB) for name in ("first", "a", "b", "c")], requests=requests)
    box.settle()
    assert [name for _, name in box.loads()] == ["first", "c", "a", "b"]
    waits = [effect for _, effect in box.effects if isinstance(effect, Waits)]
    assert waits[0] == Waits("c", "waits until first is loaded") and waits[1] == Waits("a", "waits for memory behind c")


def test_nobody_goes_in_vain():
    """A foreign process has the room, so that the other one would not fit even then."""
    box = Box([Engine("a", 20 * GIB), Engine("b", 50 * GIB)], foreign=40 * GIB, requests=[Request("a", 1001.0)])
    box.run(20)
    box.requests.append(Request("b", box.now))
    box.run(60)
    assert not box.unloads()
    (waits,) = [effect for _, effect in box.effects if isinstance(effect, Waits)]
    assert waits.reason == ("waits until others free memory: it takes 50.00 GiB, and 40.00 GiB can be had")
    box.foreign = 20 * GIB
    box.settle()
    assert [name for _, name in box.unloads()] == ["a"]


def test_two_exclusive_ones_take_turns_and_a_sidecar_stays():
    engines = [
        Engine("big", 50 * GIB, is_exclusive=True),
        Engine("small", 5 * GIB, is_exclusive=True),
        Engine("side", 5 * GIB),
    ]
    requests = [Request("side", 1001.0), Request("big", 1010.0), Request("small", 1040.0), Request("big", 1060.0)]
    box = Box(engines, requests=requests)
    box.settle()
    assert [name for _, name in box.unloads()] == ["big", "small"]
    assert all(one.refused is None for one in requests)


def test_the_answers_of_a_victim_may_end():
    engines = [Engine("a", 50 * GIB), Engine("b", 50 * GIB)]
    quick, slow = Request("a", 1001.0, seconds=25.0), Request("b", 1015.0)
    box = Box(engines, requests=[quick, slow])
    box.settle()
    assert quick.done - quick.sent == pytest.approx(25.0, abs=0.5)
    assert slow.sent > quick.done


def test_one_that_never_fits_is_refused_with_both_numbers():
    engines = [Engine("kept", 50 * GIB, is_pinned=True), Engine("huge", 40 * GIB)]
    request = Request("huge", 1020.0)
    box = Box(engines, requests=[request])
    box.settle()
    (failed,) = [effect for _, effect in box.effects if isinstance(effect, Fails)]
    assert request.refused is not None and not box.unloads()
    assert failed.reason == "takes 40.00 GiB, and at most 30.00 GiB is left for it beside kept"


def test_an_exclusive_one_beside_a_pinned_one():
    engines = [Engine("kept", 20 * GIB, is_pinned=True, is_exclusive=True), Engine("other", 9 * GIB, is_exclusive=True)]
    box = Box(engines, requests=[Request("other", 1020.0)])
    box.settle()
    (failed,) = [effect for _, effect in box.effects if isinstance(effect, Fails)]
    assert failed.reason == "is exclusive, as kept is, which is pinned"


def test_a_foreign_process_grows():
    """At 70 % it is looked at, at 80 % what is idle goes and nothing loads, at 90 % all that is not pinned."""
    engines = [
        Engine("kept", 20 * GIB, is_pinned=True),
        Engine("idle", 10 * GIB, priority="critical"),
        Engine("busy", 10 * GIB, priority="low"),
    ]
    box = Box(engines, requests=[Request("idle", 1015.0), Request("busy", 1030.0, seconds=500.0)])
    box.run(60)
    assert box.states() == {"kept": "ready", "idle": "ready", "busy": "ready"} and not box.policy.is_watched
    box.foreign = 35 * GIB
    box.run(5)
    assert box.policy.level == "warning" and box.policy.is_watched and not box.unloads()
    box.foreign = 43 * GIB
    box.run(5)
    assert [name for _, name in box.unloads()] == ["idle"] and box.policy.level == "warning"
    box.foreign = 55 * GIB
    box.requests.append(Request("idle", box.now))
    box.run(5)
    assert box.policy.level == "critical" and box.states()["busy"] == "ready" and box.states()["idle"] == "idle"
    box.foreign = 61 * GIB
    box.run(5)
    assert box.states() == {"kept": "ready", "idle": "idle", "busy": "idle"}
    changes = [note.text.partition(":")[0] for note in box.noted("pressure")]
    assert changes[:4] == ["normal -> warning", "warning -> critical", "critical -> warning", "warning -> critical"]
    assert changes[4] == "critical -> emergency"


@pytest.mark.parametrize(
    ("some", "full", "left"), [(12.0, 1.0, {"busy"}), (40.0, 12.0, set()), (9.0, 9.0, {"idle", "busy"})]
)
def test_stalls_count_as_much_as_utilisation(some, full, left):
    box = Box(
        [Engine("idle", 5 * GIB), Engine("busy", 5 * GIB)],
        requests=[Request("idle", 1001.0), Request("busy", 1001.0, seconds=500.0)],
    )
    box.run(60)
    box.some, box.full = some, full
    box.run(10)
    assert {name for name, state in box.states().items() if state == "ready"} == left


def test_the_next_load_waits_until_memory_is_back():
    engines = [Engine("a", 50 * GIB, back_s=9.0), Engine("b", 50 * GIB)]
    box = Box(engines, requests=[Request("a", 1001.0), Request("b", 1020.0)])
    box.settle()
    (gone,), (_, second) = box.unloads(), box.loads()
    assert second[0] - gone[0] >= 4 and box.noted("late")  # it waits while memory comes back, and no longer
    engines = [Engine("a", 50 * GIB, back_s=2.0), Engine("b", 50 * GIB)]
    box = Box(engines, requests=[Request("a", 1001.0), Request("b", 1020.0)])
    box.settle()
    (gone,), (_, second) = box.unloads(), box.loads()
    assert 3 <= second[0] - gone[0] <= 3.5 and not box.noted("late")


def test_without_a_figure_nothing_is_loaded():
    box = Box([Engine("a", 20 * GIB)])
    box.fault = "the driver does not answer"
    box.run(20)
    box.requests.append(Request("a", box.now))
    box.run(30)
    assert box.states() == {"a": "idle"}
    assert [note.text for note in box.noted("unknown")] == [
        "memory cannot be measured: the driver does not answer; nothing is loaded until it can"
    ]
    waits = [effect.reason for _, effect in box.effects if isinstance(effect, Waits)]
    assert waits == ["waits until the memory can be measured: the driver does not answer"]
    box.fault = ""
    box.settle()
    assert box.states() == {"a": "ready"}


def test_every_wait_has_an_end():
    box = Box([Engine("a", 20 * GIB)], settings=MemorySettings(wait_s=60.0))
    box.fault = "the driver does not answer"
    box.run(20)
    request = Request("a", box.now)
    box.requests.append(request)
    box.settle()
    assert request.refused == pytest.approx(request.at + 60, abs=1)


def test_one_that_is_larger_than_declared_is_learnt_and_told_once():
    box = Box([Engine("a", 40 * GIB, declared=0.7), Engine("b", 42 * GIB)], requests=[Request("a", 1001.0)])
    box.run(30)
    assert [note.text for note in box.noted("larger")] == ["takes 40.00 GiB, 28.00 GiB were declared"]
    assert box.policy.members["a"].footprint.peak == pytest.approx(44 * GIB, rel=0.05)
    box.requests.append(Request("b", box.now))
    box.settle()
    assert [name for _, name in box.unloads()] == ["a"]
    box.requests.append(Request("a", box.now))
    box.settle()
    assert len(box.noted("larger")) == 1


def test_a_load_that_passes_emergency_is_ended_and_learnt_from():
    box = Box([Engine("a", 95 * GIB, declared=0.5)], requests=[Request("a", 1001.0)])
    box.settle()
    assert box.requests[0].refused is not None and box.states() == {"a": "idle"}
    assert max(box.shares) < 1.0 and len(box.loads()) == 1


def test_a_pinned_one_that_failed_is_loaded_again():
    box = Box([Engine("a", 20 * GIB, is_pinned=True)])
    box.run(5)
    box.by_name["a"].state = "idle"
    box.decide(Stood("a", "out"))
    box.run(5)
    assert box.states() == {"a": "idle"} and len(box.loads()) == 1
    box.decide(Stood("a", "idle"))
    box.run(15)
    assert box.states() == {"a": "ready"} and len(box.loads()) == 2


def test_a_person_loads_unloads_and_pins():
    box = Box([Engine("a", 50 * GIB), Engine("b", 50 * GIB)])
    box.order("a", "load")
    box.run(15)
    assert box.states() == {"a": "ready", "b": "idle"}
    box.order("a", "pin")
    box.requests.append(Request("b", box.now))
    box.run(5)
    assert box.requests[0].refused is not None
    box.order("a", "unpin")
    box.order("b", "load")
    box.run(30)
    assert box.states() == {"a": "idle", "b": "ready"}
    box.order("b", "unload")
    box.run(5)
    assert box.states() == {"a": "idle", "b": "idle"}


def test_no_load_starts_for_clients_that_have_left():
    box = Box([Engine("a", 50 * GIB), Engine("b", 50 * GIB)], requests=[Request("a", 1001.0, seconds=20.0)])
    box.run(15)
    request = Request("b", box.now)
    box.requests.append(request)
    box.run(5)
    box.requests.remove(request)
    box.run(60)
    assert [name for _, name in box.loads()] == ["a"]
