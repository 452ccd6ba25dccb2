"""The command that repeats a request: a shell reads back what was sent, whatever it holds."""

import json
import shlex

from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.check.curl import KEY, MAX_INLINE, command
from eyas.bench.check.finding import Request

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)


@given(TEXTS)
def test_a_shell_reads_the_body_back(tmp_path_factory, text):
    body = {"messages": [{"role": "user", "content": text}]}
    request = Request(method="POST", path="/v1/chat/completions", body=body)
    folder = tmp_path_factory.getbasetemp() / "curl"
    words = shlex.split(command(request, "http://h:1", has_key=True, folder=folder, name="x"))
    assert words[:4] == ["curl", "-sS", "-i", "http://h:1/v1/chat/completions"]
    assert f"Authorization: Bearer ${KEY}" in words
    sent = words[-1] if words[-2] == "-d" else (folder / "x.json").read_text()
    assert json.loads(sent) == body


def test_a_stream_and_a_get(tmp_path):
    stream = Request(method="POST", path="/v1/x", body={"stream": True})
    assert command(stream, "http://h", has_key=False, folder=tmp_path, name="x").startswith(
        "curl -sS -i -N http://h/v1/x -H"
    )
    get = Request(method="GET", path="/metrics")
    assert command(get, "http://h", has_key=False, folder=tmp_path, name="x") == "curl -sS -i http://h/metrics"


def test_a_long_body_is_in_a_file(tmp_path):
    request = Request(method="POST", path="/v1/x", body="x" * (MAX_INLINE + 1))
    line = command(request, "http://h", has_key=False, folder=tmp_path / "new", name="/v1/long prompt")
    assert line.endswith(f"--data-binary @{tmp_path}/new/v1-long-prompt.json")
    assert (tmp_path / "new" / "v1-long-prompt.json").read_text() == request.body
