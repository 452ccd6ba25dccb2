"""What a look at a backend means: which model it has, whether it must be asked a question, when an outage is one."""

import pytest

from eyas.router.backends.judgement import HUNG_S, Look, Memory, after_canary, judge
from eyas.router.manager.condition import Condition
from eyas.router.settings.schema import BackendSettings

ANY = BackendSettings(name="a", url="http://x")
NAMED = BackendSettings(name="a", url="http://x", model="large")
SOUND = Memory(model="large", is_sound=True)
READY = Condition(state="ready", model="large")


def judged(look, memory=None, settings=ANY, now=0.0):
    return judge(settings, memory or Memory(), look, now, instance="me")


def listed(*names, **fields):
    return Look(kind="listed", names=names, **fields)


def test_at_first_sight_it_is_asked_a_question():
    first = judged(listed("large"))
    assert first.wants_canary and first.model == "large" and first.condition.state == "unknown"
    good = judged(listed("large"), after_canary(first.memory, None))
    assert good.condition == READY and not good.wants_canary
    bad = judged(listed("large"), after_canary(first.memory, "garbage came back"))
    assert (bad.condition.state, bad.condition.cause, bad.condition.reason) == ("out", "canary", "garbage came back")


@pytest.mark.parametrize(
    ("settings", "memory", "names", "said"),
    [
        (NAMED, SOUND, ("small",), "has small, not large"),
        (
            NAMED,
            SOUND,
            ("larg", "b", "c", "d", "e", "f"),
            "has larg, b, c, d, e, ..., not large (did you mean 'larg'?)",
        ),
        (ANY, SOUND, ("small",), "had the model large and now has small"),
        (ANY, Memory(), ("a", "b"), "has several models (a, b); name one: model: a"),
    ],
)
def test_another_model_never_serves(settings, memory, names, said):
    verdict = judged(listed(*names, num_models=len(names)), memory, settings)
    assert verdict.condition == Condition(state="out", cause="another_model", reason=said)
    back = judged(listed("large"), verdict.memory, NAMED)  # it has been started again with the right one
    assert back.wants_canary


@pytest.mark.parametrize("names", [("large",), ("small", "large"), ("large:latest",), ()])
def test_the_model_that_the_file_names(names):
    assert judged(listed(*names), SOUND, NAMED).condition == READY


def test_several_names_of_one_model():
    assert judged(listed("large", "claude-large"), SOUND).condition == READY
    assert judged(listed("large", "claude-large")).model == "large"


def test_a_server_of_ours():
    assert judged(listed("large", is_ours=True), SOUND).condition == Condition(
        state="ready", model="large", is_ours=True
    )
    ours = BackendSettings(name="a", url="http://x", engine="eyas")
    assert judged(listed("large"), SOUND, ours).condition.is_ours


@pytest.mark.parametrize("kind", ["listed", "keyless", "other"])
def test_this_router_is_no_backend(kind):
    condition = judged(Look(kind=kind, names=("large",), router="me"), SOUND).condition
    assert condition.state == "out" and "would ask itself" in condition.reason
    other = judged(listed("large", router="another"), SOUND)
    assert other.condition.state == "ready"


def test_it_says_that_it_loads():
    verdict = judged(Look(kind="loading", text="loads its model"), SOUND)
    assert verdict.condition == Condition(state="loading", reason="loads its model")
    assert judged(listed("large"), verdict.memory).wants_canary


def test_a_refused_key():
    verdict = judged(Look(kind="keyless", text="refuses the key"), SOUND)
    assert verdict.condition == Condition(state="out", cause="failed", reason="refuses the key")


def test_a_lost_connection_is_an_outage_after_which_it_is_asked_again():
    verdict = judged(Look(kind="gone", text="does not answer"), SOUND)
    assert verdict.condition == Condition(reason="does not answer")
    assert judged(listed("large"), verdict.memory).wants_canary
    assert judged(listed("other"), verdict.memory).condition.cause == "another_model"


@pytest.mark.parametrize("kind", ["late", "other"])
def test_a_late_answer_alone_is_no_outage(kind):
    look = Look(kind=kind, text="is late")
    first = judged(look, SOUND, now=100.0)
    assert first.condition is None and first.memory.is_sound
    assert judged(look, first.memory, now=100.0 + HUNG_S - 1).condition is None
    assert judged(listed("large"), first.memory, now=101.0).condition == READY
    assert judged(listed("large"), first.memory, now=101.0).memory.missed_since is None
    verdict = judged(look, first.memory, now=100.0 + HUNG_S)
    assert verdict.condition == Condition(reason="is late")
    assert judged(listed("large"), verdict.memory).wants_canary


def test_one_that_failed_its_canary_stays_out_until_it_has_been_away():
    failed = Memory(model="large", fault="garbage")
    assert judged(listed("large"), failed).condition.cause == "canary"
    assert judged(Look(kind="late"), failed, now=1.0).condition is None
    away = judged(Look(kind="gone", text="x"), failed).memory
    assert judged(listed("large"), away).wants_canary
