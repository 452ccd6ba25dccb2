"""Endpoints that are busy, faulty or dead, and errors of the person: one line each, and nothing is lost."""

import json
import signal
import threading
import time

import pytest
from tests.train.regeneration.support.files import assistant, read, regenerate, start, user, write
from tests.train.regeneration.support.scripted import DROP, Reply, said, scripted

from eyas.base.errors import UserError
from eyas.train.regeneration import endpoint as endpoints

CHATS = [[user(f"question {number}")] for number in range(1, 11)]
BUSY = {"error": {"message": "the queue is full"}}
KEY = "sk-very.secret+0123456789=="


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "in.jsonl", *CHATS), tmp_path / "out.jsonl"


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(endpoints, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(endpoints, "MIN_RETRY_AFTER_S", 0.01)


def number_of(body):
    return int(body["messages"][-1]["content"].split()[-1])


def echo(body):
    return said(f"answer {number_of(body)}")


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def test_busy_and_broken_replies_are_asked_again(files, capsys):
    first = {
        1: Reply(BUSY, 429, {"retry-after": "0"}),
        2: Reply("<html>no backend</html>", 503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        3: Reply(BUSY, 503, {"retry-after": "soon"}),
        4: DROP,
        5: Reply({"error": {"message": "the engine failed"}}, 500),
        6: Reply(json.dumps(said("half").body), headers={"content-length": "4000"}),
    }
    with scripted(lambda body: first.pop(number_of(body), None) or echo(body)) as endpoint:
        assert regenerate(*files, endpoint.url) == 0
    assert {line: chat["messages"][-1]["content"] for line, chat in read(files[1]).items()} == {
        number: f"answer {number}" for number in range(1, 11)
    }
    assert len(endpoint.bodies) == 16
    assert "waiting for" in capsys.readouterr().err


def test_no_request_waits_for_days(files, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_RETRY_AFTER_S", 0.2)
    busy = [
        Reply(BUSY, 429, {"retry-after": "999999"}),
        Reply(BUSY, 429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}),
    ]
    with scripted(lambda body: busy.pop() if busy else echo(body)) as endpoint:
        assert regenerate(*files, endpoint.url, "--limit", "1", "--concurrency", "1") == 0
    assert len(endpoint.bodies) == 3


def test_no_request_comes_before_its_retry_after(files):
    times = []

    def script(body):
        times.append(time.monotonic())
        return echo(body) if len(times) > 1 else Reply(BUSY, 429, {"retry-after": "1"})

    with scripted(script) as endpoint:
        assert regenerate(*files, endpoint.url, "--concurrency", "1", "--limit", "1") == 0
    assert times[1] - times[0] >= 1


def test_a_chat_that_the_endpoint_drops_each_time_fails_alone(files, capsys):
    def script(body):
        time.sleep(0.02)
        return DROP if number_of(body) == 2 else echo(body)

    with scripted(script) as endpoint:
        assert regenerate(*files, endpoint.url, "--concurrency", "2") == 0
    assert sorted(read(files[1])) == [1, *range(3, 11)]
    assert "in.jsonl:2: tried" in capsys.readouterr().err


def test_an_endpoint_that_dies_halfway_loses_nothing(files):
    served = []

    def script(body):
        served.append(number_of(body))
        if len(served) > 5:
            threading.Thread(target=endpoint.die).start()
            return DROP
        return echo(body)

    with scripted(script) as endpoint, pytest.raises(UserError) as error:
        regenerate(*files, endpoint.url, "--concurrency", "1", "--patience", "1")
    text = one_line(error)
    assert "answered nothing for 1 s" in text
    assert "5 of 10 chats are done" in text and "the same command goes on" in text
    assert sorted(read(files[1])) == [1, 2, 3, 4, 5]

    with scripted(echo) as endpoint:  # on another port
        assert regenerate(*files, endpoint.url) == 0
    assert sorted(map(number_of, endpoint.bodies)) == [6, 7, 8, 9, 10]
    assert sorted(read(files[1])) == list(range(1, 11))


def test_the_number_of_requests_at_once_is_bounded_and_used(files):
    def script(body):
        time.sleep(0.05)
        return echo(body)

    with scripted(script) as endpoint:
        assert regenerate(*files, endpoint.url, "--concurrency", "3") == 0
    assert endpoint.most_in_flight == 3


def refuse(status, message):
    return lambda body: Reply({"error": {"message": message}}, status)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (refuse(400, "unknown field\n\x1b[31m 'top_p'"), "answered none of 8 chats (status 400: unknown field [31m"),
        (refuse(404, "no model x"), "status 404 (no model x); check --model"),
        (refuse(401, "who are you"), "wants an API key: --api-key env:NAME"),
        (lambda body: Reply("<html>"), "the answer is no chat completion"),
        (lambda body: Reply({"choices": []}), "the answer is no chat completion"),
        (lambda body: Reply("[" * 100_000), "the answer is no chat completion"),
    ],
    ids=["400", "404", "401", "HTML", "no choices", "deep"],
)
def test_an_endpoint_that_takes_no_request_is_one_clear_error(files, script, words):
    with scripted(script) as endpoint, pytest.raises(UserError) as error:
        regenerate(*files, endpoint.url, "--concurrency", "1")
    assert words in one_line(error) and "0 of 10 chats are done" in str(error.value)
    assert len(endpoint.bodies) <= 8


def test_no_endpoint_at_all_is_an_error_at_once(files):
    with scripted(echo) as endpoint:
        pass
    for flags in ((), ("--model", "m")):
        with pytest.raises(UserError, match=r"no server answers at http://127\.0\.0\.1"):
            regenerate(*files, endpoint.url, *flags)
    assert not files[1].exists()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://", "http://me:secret@host/v1", "http://h/v1?key=secret"])
def test_a_url_with_a_secret_or_without_a_host_is_refused_unquoted(files, url):
    with pytest.raises(UserError, match="--url wants a URL such as") as error:
        regenerate(*files, url)
    assert "secret" not in one_line(error)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('{"messages": [{"role": "user", "content": "a"}]}\n{"messages"', "in.jsonl:2 is not JSON"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "in.jsonl:1: 'messages[0].role' cannot be 'robot'"),
        ('{"messages": [{"role": "user", "content": 5}]}', "in.jsonl:1: 'messages[0].content'"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "in.jsonl:1: no message is a user's"),
        ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "in.jsonl:1 is not UTF-8"),
        ("\n \n", "has no chats"),
        ("[]", "in.jsonl:1: 'the line' is a list"),
    ],
)
def test_a_bad_line_is_named_before_anything_is_asked(tmp_path, lines, words):
    (tmp_path / "in.jsonl").write_text(lines)
    with scripted(echo) as endpoint, pytest.raises(UserError) as error:
        regenerate(tmp_path / "in.jsonl", tmp_path / "out.jsonl", endpoint.url)
    assert words in one_line(error)
    assert not endpoint.bodies and not (tmp_path / "out.jsonl").exists()


def leaky(body):
    """Echo the key wherever an endpoint can put it into a text for people."""
    number = number_of(body)
    if number < 4:
        return [
            Reply({"error": {"message": f"bad request with Bearer {KEY}"}}, 400),
            Reply(f"no backend for {KEY}", 503, {"retry-after": "0"}),
            Reply({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401),
        ][number - 1]
    return echo(body)


def test_the_key_stands_nowhere(tmp_path):
    out = tmp_path / "out.jsonl"
    for limit, code in ((1, 1), (2, 1), (3, 1)):
        chats = [CHATS[limit - 1]]
        with scripted(leaky) as endpoint:
            flags = ("--api-key", "env:OUR_KEY", "--patience", "0")
            process = start(write(tmp_path / f"{limit}.jsonl", *chats), out, endpoint.url, *flags, OUR_KEY=KEY)
            texts = process.communicate()
        assert process.returncode == code and endpoint.keys == [f"Bearer {KEY}"]
        assert "eyas: error: " in texts[1] and "Traceback" not in texts[1]
        assert KEY not in "".join(texts)
        for path in tmp_path.iterdir():
            assert KEY not in path.read_text()
            if path.name.startswith("out"):
                path.unlink()


def test_a_key_on_the_command_line_is_refused_in_one_line_without_it(files):
    with scripted(echo) as endpoint:
        process = start(*files, endpoint.url, "--api-key", KEY)
        out, err = process.communicate()
    assert process.returncode == 2 and not out and not endpoint.bodies
    assert err.count("\n") == 1 and "wants env:NAME" in err and KEY not in err


def test_sigint_writes_what_is_finished_and_exits_with_130(files):
    stop = threading.Event()

    def script(body):
        if number_of(body) > 4:
            stop.wait(30)
        return echo(body)

    with scripted(script) as endpoint:
        process = start(*files, endpoint.url, "--concurrency", "2")
        while len(endpoint.bodies) < 6:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        stop.set()
    assert process.returncode == 130 and "4 of 10 chats" in out
    assert "4 of 10 chats are done" in err and "the same command goes on" in err and "Traceback" not in err
    assert sorted(read(files[1])) == [1, 2, 3, 4]


def test_assistants_of_the_recording_are_no_questions(tmp_path):
    prompts = write(tmp_path / "in.jsonl", [assistant("only me")])
    with pytest.raises(UserError, match="no message is a user's"):
        regenerate(prompts, tmp_path / "out.jsonl", "http://127.0.0.1:1/v1")
