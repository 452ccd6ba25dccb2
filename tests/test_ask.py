"""`eyas ask`: what is shown, what is sent, calls that run in the sandbox, and errors of one line."""

import io
import json

import pytest
from tests.support.serving import served
from tests.support.streams import streamed
from tests.train.regeneration.support.scripted import Reply, scripted

from eyas import cli
from eyas.sandbox import sandbox

QUESTION = "3424*4334+342342+943"
CODE = json.dumps({"code": f"print({QUESTION})"})


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="module")
def _sandbox():
    """Skips without a sandbox; the refusal has tests of its own."""
    import asyncio

    from eyas.base.errors import UserError

    try:
        asyncio.run(sandbox.find_sandbox())
    except UserError as error:
        pytest.skip(str(error))


def calculator(body):
    """Call python for the question, then say its result, as a model does."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return streamed("It is ", f"{int(last['content']):,}.")
    return streamed(reasoning="A sum.", calls=[("python", CODE)])


@pytest.mark.usefixtures("_sandbox")
def test_the_answer_comes_through_an_executed_call(capsys):
    with scripted(calculator) as endpoint:
        assert cli.main(["ask", endpoint.url, "--python", QUESTION, "--json"]) == 0
    out, err = capsys.readouterr()
    *shown, last = out.splitlines()
    assert shown == ["(thinking) A sum.", f"(python) print({QUESTION})", "(result) 15182901", "It is 15,182,901."]
    found = json.loads(last)
    assert found["answer"] == "It is 15,182,901." and found["completion_tokens"] == 10 and found["answers"] == 2
    assert found["calls"] == [{"name": "python", "code": f"print({QUESTION})", "result": "15182901\n"}]
    assert err.startswith("target: 2 answers, 1 executed, 10 tokens, ")
    first, second = endpoint.bodies
    assert first["tools"][0]["function"]["name"] == "python" and "temperature" not in first
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "call_0", "content": "15182901\n"}


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("print(6 * 7)", "42\n"),  # as gpt-oss writes calls of its own python tool
        ('"print(6 * 7)"', "42\n"),
        ('{"program": "print(1)"}', 'the call needs {"code": "a Python program"}'),
        ('{"code": "1 / 0"}', "ZeroDivisionError"),
        ('{"code": "import socket; socket.create_connection((\'127.0.0.1\', 80))"}', "allows no network"),
    ],
)
def test_what_a_call_may_be(arguments, says):
    def script(body):
        return streamed("done") if len(body["messages"]) > 1 else streamed(calls=[("python", arguments)])

    with scripted(script) as endpoint:
        assert cli.main(["ask", endpoint.url, "--python", "Do"]) == 0
    assert says in endpoint.bodies[1]["messages"][-1]["content"]


def test_without_python_it_asks_alone(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Who are you?"))
    monkeypatch.setenv("OUR_KEY", "secret-1")
    flags = ["--system", "Be brief.", "--effort", "low", "--temperature", "0", "--seed", "3", "--max-tokens", "9"]
    with scripted(lambda body: streamed("I am\x1b[2J eyas", finish="length")) as endpoint:
        assert cli.main(["ask", endpoint.url, "-", "--api-key", "env:OUR_KEY", *flags]) == 0
    out, err = capsys.readouterr()
    assert out == "I am\ufffd[2J eyas\n" and err.startswith("target: 1 answer, 5 tokens, ")
    assert err.endswith(", cut at the most tokens\n")
    (body,) = endpoint.bodies
    assert "tools" not in body and endpoint.keys == ["Bearer secret-1"]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who are you?"},
    ]
    assert (body["reasoning_effort"], body["temperature"], body["seed"], body["max_tokens"]) == ("low", 0, 3, 9)


def test_errors_are_one_line(capsys):
    with scripted(lambda body: Reply({"error": {"message": "no such model"}}, status=404)) as endpoint:
        assert cli.main(["ask", endpoint.url, "Hi"]) == 1
    assert cli.main(["ask", "http://127.0.0.1:9", " "]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "no such model" in lines[0] and "the question is empty" in lines[1]


def test_without_a_sandbox_nothing_is_asked(capsys, monkeypatch):
    monkeypatch.setattr(sandbox, "find_bubblewrap", lambda: None)
    monkeypatch.setattr(sandbox, "with_namespaces", lambda layout, limits, inner: ["/bin/false"])
    with scripted(calculator) as endpoint:
        assert cli.main(["ask", endpoint.url, "--python", QUESTION]) == 1
    assert "eyas: error: there is no sandbox for Python on this machine (" in capsys.readouterr().err
    assert not endpoint.bodies


@pytest.mark.slow
@pytest.mark.usefixtures("_sandbox")
def test_the_demo_model_computes_through_an_executed_call(capsys):
    with served("demo", "--draft-tokens", "3") as server:
        assert cli.main(["ask", server.url, "--python", QUESTION, "--temperature", "0", "--json"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
    found = json.loads(last)
    assert found["calls"] == [{"name": "python", "code": f"print({QUESTION})", "result": "15182901\n"}]
    assert "15182901" in found["answer"].replace(",", "")
