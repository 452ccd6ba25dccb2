"""Choosing a route: by name, by the classifier, by the resident model, and without it when it does not answer."""

import asyncio
import json

import httpx
import pytest
from tests.support.serving import served

from eyas.router.routes.choosing import REMEMBERED, Routes
from eyas.router.routes.classifier import Classifier
from eyas.router.routes.deciding import answer_of, question
from eyas.router.settings.schema import ROUTES, ModelSettings, RouterSettings, RouteSettings

PROMPT = "Prove that the square of an odd number is odd."  # the classifier: MATH


def settings(*names, decide="classifier"):
    routes = tuple(RouteSettings(name=name, effort="low") for name in names or ROUTES)
    return RouterSettings(
        backends=(), models=(ModelSettings(name="resident", backends=("one",)),), routes=routes, decide=decide
    )


def saying(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class Model:
    """Answers with what it is given, one after another and the last for ever; raises what is an exception."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, body):
        self.asked.append(json.loads(body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def chosen(routes, prompt=PROMPT, name="auto"):
    return asyncio.run(routes.choose(name, prompt)).name


@pytest.mark.parametrize("name", ROUTES)
def test_a_named_route_is_taken_as_it_is(name):
    model = Model(AssertionError("nobody has to be asked"))
    assert chosen(Routes(settings(decide="model"), model), name=name) == name
    assert not model.asked


def test_the_classifier_chooses_among_the_routes_of_the_file():
    assert chosen(Routes(settings(), None)) == "MATH"
    assert chosen(Routes(settings("RESEARCH", "SIMPLE_CODE"), None)) in ("RESEARCH", "SIMPLE_CODE")
    with pytest.raises(KeyError):
        chosen(Routes(settings("MATH"), None), name="RESEARCH")


def test_without_decide_model_nobody_is_asked():
    model = Model(saying('{"route": "RESEARCH"}'))
    assert chosen(Routes(settings(), model)) == "MATH"
    assert not model.asked


def test_the_resident_model_decides_against_the_classifier(caplog):
    model = Model(saying('{"route": "RESEARCH"}'))
    routes = Routes(settings(decide="model"), model)
    assert chosen(routes) == "RESEARCH"
    assert not caplog.text
    assert model.asked[0]["model"] == "resident"
    assert PROMPT in model.asked[0]["messages"][-1]["content"]


def test_the_schema_allows_the_names_of_the_files_routes_only():
    body = json.loads(question("x", model="m", among=("MATH", "RESEARCH")))
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["route"]["enum"] == ["MATH", "RESEARCH"]
    assert schema["required"] == ["route"]
    assert not schema["additionalProperties"]
    assert "COMPLEX_CODE" not in body["messages"][0]["content"]


BAD = {
    "no route": saying('{"route": "POETRY"}'),
    "a route that the file lacks": saying('{"route": "COMPLEX_CODE"}'),
    "no JSON": saying("MATH"),
    "cut": saying('{"route": "MA'),
    "no choice": b'{"choices": []}',
    "null content": b'{"choices": [{"message": {"content": null}}]}',
    "an error": b'{"error": {"message": "no such model"}}',
    "a page": b"<html>",
    "bytes that are no text": b"\xff\xfe",
    "refused": ConnectionRefusedError("connection refused"),
    "unexpected": RuntimeError("whatever"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_if_the_model_names_no_route_the_classifier_does(answer, caplog):
    routes = Routes(settings("MATH", "RESEARCH", decide="model"), Model(answer, saying('{"route": "RESEARCH"}')))
    assert chosen(routes) == "MATH"
    assert "the classifier chooses the route: " in caplog.text
    assert chosen(routes) == "RESEARCH", "it is asked again the next time"


def test_a_model_that_takes_too_long_is_left(caplog):
    left = []

    async def ask(body):
        try:
            await asyncio.sleep(60)
        finally:
            left.append(body)

    routes = Routes(settings(decide="model"), ask, decide_s=0.01)
    assert chosen(routes) == "MATH"
    assert len(left) == 1
    assert "the classifier chooses the route: " in caplog.text


def test_a_client_that_leaves_takes_the_question_with_it():
    async def ask(body):
        await asyncio.sleep(60)

    async def leave():
        task = asyncio.create_task(Routes(settings(decide="model"), ask).choose("auto", PROMPT))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())


def test_the_steps_of_a_session_ask_once():
    model = Model(saying('{"route": "RESEARCH"}'))
    routes = Routes(settings(decide="model"), model)
    assert [chosen(routes) for _ in range(3)] == ["RESEARCH"] * 3
    assert len(model.asked) == 1
    for at in range(REMEMBERED):
        chosen(routes, f"other {at}")
    chosen(routes)
    assert len(model.asked) == 2 + REMEMBERED, "only the newest are remembered"


def test_an_empty_prompt_asks_nobody():
    model = Model(saying('{"route": "RESEARCH"}'))
    assert chosen(Routes(settings(decide="model"), model), "") == Classifier.shipped().route("")
    assert not model.asked


@pytest.mark.slow
def test_the_demo_model_answers_by_the_schema():
    """Which route it names is another matter: it is a small model that has learnt nothing of routes."""
    with served("demo") as server, httpx.Client(base_url=server.url, timeout=120) as client:
        for prompt in (PROMPT, "hi", "```python\nprint(1)\n```\nwhy?"):
            body = question(prompt, model="eyas-demo", among=ROUTES)
            headers = {"content-type": "application/json"}
            answer = client.post("/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer_of(answer.content, ROUTES) in ROUTES
