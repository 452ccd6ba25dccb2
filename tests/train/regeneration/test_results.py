"""A run goes on where it was: torn lines, other settings, other files, two processes, a full disk."""

import json
import resource
import signal

import pytest
from tests.train.regeneration.support.files import read, regenerate, user, write
from tests.train.regeneration.support.scripted import said, scripted

from eyas.base.errors import UserError
from eyas.train.regeneration.results import Results

CHATS = [[user(f"question {number} \u20ac")] for number in range(1, 6)]


def script(body):
    """Answer a chat by its words; the second one is cut."""
    text = body["messages"][-1]["content"]
    return said(f"to {text}", finish="length" if " 2 " in text else None)


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "in.jsonl", *CHATS), tmp_path / "out.jsonl"


@pytest.fixture(scope="module")
def endpoint():
    with scripted(script) as served:
        yield served


def test_a_file_torn_at_any_byte_is_made_whole(files, endpoint, tmp_path):
    regenerate(*files, endpoint.url, "--concurrency", "1")
    whole, run = files[1].read_bytes(), (tmp_path / "out.jsonl.run").read_bytes()
    assert run.count(b"\n") == 2 and sorted(read(files[1])) == [1, 3, 4, 5]
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (0, 1, last, last + 1, *range(last + 30, len(whole), 41), len(whole) - 1):
        files[1].write_bytes(whole[:cut])
        num_before = len(endpoint.bodies)
        assert regenerate(*files, endpoint.url, "--concurrency", "1") == 0
        assert files[1].read_bytes() == whole
        assert len(endpoint.bodies) - num_before == 4 - whole[:cut].count(b"\n")

    header = run.index(b"\n") + 1
    for cut in (header, header + 1, len(run) - 1):
        (tmp_path / "out.jsonl.run").write_bytes(run[:cut])
        num_before = len(endpoint.bodies)
        assert regenerate(*files, endpoint.url) == 0
        assert (tmp_path / "out.jsonl.run").read_bytes() == run and files[1].read_bytes() == whole
        assert len(endpoint.bodies) - num_before == 1


def test_nothing_is_asked_once_all_is_answered(files, endpoint, capsys):
    regenerate(*files, endpoint.url)
    before, num_before = files[1].read_bytes(), len(endpoint.bodies)
    assert regenerate(*files, endpoint.url) == 0
    assert files[1].read_bytes() == before and len(endpoint.bodies) == num_before
    first, second = capsys.readouterr().out.splitlines()
    assert "4 of 5 chats, 4 answers, 50 tokens of prompts, 25 of answers" in first
    assert "4 of 5 chats, 4 answers, 50 tokens of prompts, 25 of answers, 0 tok/s" in second
    assert second.endswith("(4 chats from earlier runs)")


def test_the_limit_may_grow(files, endpoint):
    regenerate(*files, endpoint.url, "--limit", "1")
    assert sorted(read(files[1])) == [1]
    regenerate(*files, endpoint.url, "--limit", "3", "--concurrency", "2")
    assert sorted(read(files[1])) == [1, 3]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--temperature", "0.5"), "another temperature (1.0, now 0.5)"),
        (("--model", "other"), "another model (target, now other)"),
        (("--max-tokens", "9"), "another max_tokens (None, now 9)"),
        (("--effort", "low"), "another effort (None, now low)"),
        (("--seed", "1"), "another seed (None, now 1)"),
    ],
)
def test_other_settings_are_refused_by_name(files, endpoint, flags, words):
    regenerate(*files, endpoint.url)
    before = files[1].read_bytes()
    with pytest.raises(UserError) as error:
        regenerate(*files, endpoint.url, *flags)
    assert words in str(error.value) and "choose another file" in str(error.value)
    assert files[1].read_bytes() == before


def test_other_prompts_are_refused(files, endpoint):
    regenerate(*files, endpoint.url)
    write(files[0], *CHATS, [user("one more")])
    with pytest.raises(UserError, match="another sha256 of the prompts"):
        regenerate(*files, endpoint.url)
    files[1].unlink()  # with the output gone it is a new run
    assert regenerate(*files, endpoint.url) == 0
    assert len(read(files[1])) == 5


def test_a_file_of_something_else_is_left_alone(files, endpoint, tmp_path):
    regenerate(*files, endpoint.url)
    text = files[1].read_text()
    for spoiled in (
        text + text,
        text.replace('"line": 3', '"line": 99'),
        text.replace("messages", "").replace("source", ""),
        "x\n",
    ):
        files[1].write_text(spoiled)
        with pytest.raises(UserError, match=r"choose another file"):
            regenerate(*files, endpoint.url)
        assert files[1].read_text() == spoiled
    (tmp_path / "out.jsonl.run").unlink()
    with pytest.raises(UserError, match="does not say which run it is of"):
        regenerate(*files, endpoint.url)
    with pytest.raises(UserError, match="does not say which run it is of"):
        regenerate(files[0], files[0], endpoint.url)
    assert len(files[0].read_text().splitlines()) == 5 and files[1].read_text() == spoiled
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory"):
        regenerate(files[0], tmp_path / "nowhere" / "out.jsonl", endpoint.url)


def test_two_runs_do_not_write_one_file(files, endpoint):
    described = {"anything": 1}
    with Results(files[1], num_lines=5, described=described):
        with pytest.raises(UserError, match="is being written by another run"):
            Results(files[1], num_lines=5, described=described)
        with pytest.raises(UserError, match="is being written by another run"):
            regenerate(*files, endpoint.url)
    Results(files[1], num_lines=5, described=described).close()


def test_a_full_disk_leaves_whole_lines(files, endpoint):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN  # Python's default: writing fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*File too large.* the same command goes on"):
            regenerate(*files, endpoint.url, "--concurrency", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert 0 < len(read(files[1])) < 4
    assert files[1].read_bytes().endswith(b"\n")
    assert regenerate(*files, endpoint.url) == 0
    assert sorted(read(files[1])) == [1, 3, 4, 5]
    assert all("\u20ac" in json.dumps(chat, ensure_ascii=False) for chat in read(files[1]).values())
