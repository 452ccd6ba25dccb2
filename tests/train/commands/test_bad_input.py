"""Bad input of `eyas train`: one line that says what is wrong, an exit code, and nothing lost."""

import fcntl
import os
import re
import shutil
import sys

import pytest
import torch
from tests.train.support.small_run import BUNDLED, contents, example_chats, train, write_chats, write_settings

from eyas.model.devices import available_bytes
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.train.states import opening
from eyas.train.states.memory import at_once

CALLS = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}


def complaint(capsys, command, *arguments):
    """Run a command that fails; return the one line of its error."""
    capsys.readouterr()
    assert train(command, *arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("eyas: error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0], lines
    return errors[0].removeprefix("eyas: error: ")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three steps that has ended: its folder and its settings file."""
    folder = tmp_path_factory.mktemp("finished")
    settings = write_settings(folder)
    assert train("run", settings) == 0
    return folder


@pytest.fixture
def ended(finished, tmp_path):
    """A copy of it, whose files have to stay as they are."""
    shutil.copytree(finished, tmp_path / "copy")
    write_settings(tmp_path / "copy", data={"chats": str(tmp_path / "copy" / "chats.jsonl")})
    out = tmp_path / "copy" / "out"
    record = (out / "run.json").read_text().replace(str(finished), str(tmp_path / "copy"))
    (out / "run.json").write_text(record)
    before = contents(out)
    yield tmp_path / "copy"
    assert contents(out) == before


# -- chats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"chats\.jsonl:2 is not JSON"),
        ("[]", r"chats\.jsonl:2: "),
        ('{"messages": [{"role": "robot", "content": "x"}]}', r"chats\.jsonl:2: .*messages\[0\].*role.*robot"),
        ('{"messages": [{"role": "user", "content": 7}]}', r"chats\.jsonl:2: .*messages\[0\].*content"),
    ],
)
def test_a_bad_chat_is_named_by_file_line_and_field(tmp_path, capsys, line, said):
    settings = write_settings(tmp_path)
    chats = tmp_path / "chats.jsonl"
    lines = chats.read_text().splitlines()
    chats.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    for command in ("run", "plan"):
        assert re.search(said, complaint(capsys, command, settings))


def test_a_chat_that_is_too_long_names_its_turn_and_what_to_do(tmp_path, capsys):
    settings = write_settings(tmp_path)
    long = {"messages": [{"role": "user", "content": "word " * 600}, {"role": "assistant", "content": "yes"}]}
    write_chats(tmp_path / "chats.jsonl", [*example_chats(2), long])
    said = complaint(capsys, "run", settings)
    assert re.search(r"chats\.jsonl:3, turn 1.* 400", said) and "context" in said and "too_long" in said


def test_chats_without_a_taught_token(tmp_path, capsys):
    settings = write_settings(tmp_path)
    write_chats(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": "hello"}]}])
    assert "no supervised token in 1 chats" in complaint(capsys, "run", settings)


def test_a_share_that_holds_out_nothing(tmp_path, capsys):
    settings = write_settings(tmp_path, data={"held_out_share": 1e-9})
    assert "none of 12 chats is held out" in complaint(capsys, "run", settings)


def test_no_chats(tmp_path, capsys):
    assert "data.chats names no file" in complaint(capsys, "run", write_settings(tmp_path), "data.chats=[]")
    assert "gone.jsonl cannot be read" in complaint(capsys, "run", tmp_path / "run.yaml", "data.chats=gone.jsonl")


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("head.kind=medusa", "head.kind: no kind 'medusa' can be trained"),
        ("head.kind=eagel3", "did you mean 'eagle3'?"),
        ("head.taps=[2,2]", "head.taps wants different boundaries"),
        ("head.taps=[99]", "head.taps wants different boundaries"),
        ("head.num_kv_heads=3", "impossible"),
        ("head.init=nowhere", "nowhere is neither a folder nor a hub id"),
        ("target=nowhere", "nowhere is neither a folder nor a hub id"),
        ("train.batch_tokens=100", "a batch has to have room for the longest document"),
        ("data.context=1m", "the target's own limit"),
        ("train.stps=1", "did you mean 'steps'?"),
        ("target.device=tpu", "'tpu' is not a device"),
        ("states.folder=nowhere", "nowhere is no folder of captured states"),
        ("train.steps=0", "train.steps wants at least 1, got 0"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(tmp_path, capsys, override, said):
    assert said in complaint(capsys, "run", write_settings(tmp_path), override)
    assert not (tmp_path / "out" / "run.json").exists()


def test_tensorboard_that_is_not_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    said = complaint(capsys, "run", write_settings(tmp_path), "train.tensorboard=true")
    assert said == "train.tensorboard needs tensorboardX; install it with: pip install 'eyas[train]'"


@pytest.mark.parametrize(
    ("override", "owner"),
    [
        ("train.batch_tokens=4000000000", "states"),
        ("head.intermediate_size=4000000000", "head and optimiser"),
        ("states.cache=9000GiB", "states cache"),
    ],
)
def test_too_little_memory_is_said_before_anything_is_allocated(tmp_path, capsys, monkeypatch, override, owner):
    monkeypatch.setattr(opening, "load_target", lambda *_, **__: pytest.fail("weights were read"))
    said = complaint(capsys, "run", write_settings(tmp_path), override)
    assert said.startswith("too little memory: documents of 400 tokens need ") and owner in said


def test_too_little_memory_names_the_context_that_fits(tmp_path, capsys, monkeypatch):
    """The real sizes of the machine: the demo model takes 131,072 tokens, and the scores of plain attention grow."""
    settings = write_settings(tmp_path, data={"context": 4096})
    from eyas.train.loop import parts

    needed = {}
    real = parts.device_bytes
    monkeypatch.setattr(
        parts, "device_bytes", lambda prepared, *, longest: needed.setdefault(longest, real(prepared, longest=longest))
    )
    monkeypatch.setattr(parts, "available_bytes", lambda device: 150 << 20)
    said = complaint(capsys, "run", settings, "states.cache=0")
    fits = int(re.search(r"documents of up to (\d+) tokens fit", said)[1])
    sizes = [at_once(owners, device) for length in (fits, fits + 1) for device, owners in needed[length].items()]
    assert sizes[0] <= 150 << 20 < sizes[1]
    assert available_bytes(torch.device("cpu")) > 150 << 20


# -- the folder of a run ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_folder_in_use(ended, capsys):
    handle = os.open(ended / "out" / "lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    for command in ("run", "resume"):
        assert "is in use by another run" in complaint(capsys, command, ended / "run.yaml")
    os.close(handle)


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    said = complaint(capsys, "run", write_settings(tmp_path), f"out={tmp_path / 'file' / 'out'}")
    assert said.endswith("as the folder of a run: Not a directory")


def test_resume_without_a_run(tmp_path, capsys):
    assert "holds no run; start one with `eyas train run`" in complaint(capsys, "resume", write_settings(tmp_path))


def test_a_run_over_another(ended, capsys):
    assert "holds a run already: `eyas train resume` goes on" in complaint(capsys, "run", ended / "run.yaml")


def test_resume_with_other_settings_names_the_keys(ended, capsys):
    said = complaint(capsys, "resume", ended / "run.yaml", "train.lr=1", "head.draft_vocab=300", "train.log_every=5")
    assert "was started with other settings: head.draft_vocab, train.lr; give them back" in said


def test_resume_with_other_chats_names_them(ended, capsys):
    chats = (ended / "chats.jsonl").read_text()
    write_chats(ended / "chats.jsonl", example_chats(13))
    assert "was started with another set of chats" in complaint(capsys, "resume", ended / "run.yaml")
    (ended / "chats.jsonl").write_text(chats)


def test_evaluating_with_another_vocabulary(ended, capsys):
    other = write_chats(ended / "other.jsonl", example_chats(60)[40:])
    said = complaint(capsys, "eval", ended / "run.yaml", f"data.chats={other}")
    assert "was started with another vocabulary" in said
    said = complaint(capsys, "eval", ended / "run.yaml", "head.head_dim=32")
    assert "other settings: head.head_dim" in said
    assert "has no checkpoint of step 9 (" in complaint(capsys, "eval", ended / "run.yaml", "--step", "9")
    assert "no chats are held out" in complaint(capsys, "eval", ended / "run.yaml", "data.held_out_share=0")


def test_a_damaged_checkpoint_is_named(ended, capsys):
    state = ended / "out" / "checkpoints" / "step-00000003" / "state.json"
    text = state.read_text()
    state.write_text("{")
    assert "step-00000003 is damaged" in complaint(capsys, "resume", ended / "run.yaml")
    state.write_text(text)


# -- heads and states of another target -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_target(tmp_path_factory):
    return make_target(PRESETS["tiny"], tmp_path_factory.mktemp("other") / "target", seed=1)


def test_a_head_of_another_target(tmp_path, capsys, other_target):
    from eyas.model.making.make import make_head

    head = make_head(default_head(PRESETS["tiny"]), tmp_path / "head", target=PRESETS["tiny"])
    said = complaint(capsys, "run", write_settings(tmp_path), f"head.init={head}")
    assert str(head) in said and "hidden" in said


def test_captured_states_of_another_run(tmp_path, capsys):
    settings, states = write_settings(tmp_path), tmp_path / "states"
    assert train("capture", settings, states, "--labels") == 0
    assert "holds labels only" in complaint(capsys, "run", settings, f"states.folder={states}")
    said = complaint(capsys, "run", settings, f"states.folder={states}", "train.loss=hard", "head.taps=[1,2]")
    assert "the head reads [1, 2]" in said
    index = states / "index.json"
    index.write_text(re.sub(r'"target": "\w+"', '"target": "0"', index.read_text()))
    said = complaint(capsys, "run", settings, f"states.folder={states}", "train.loss=hard")
    assert "was captured from another target" in said


def test_captured_states_of_other_chats(tmp_path, capsys):
    settings, states = write_settings(tmp_path), tmp_path / "states"
    assert train("capture", settings, states) == 0
    write_chats(tmp_path / "chats.jsonl", example_chats(40)[20:])
    said = complaint(capsys, "run", settings, f"states.folder={states}")
    assert re.search(r"chats\.jsonl:\d+, turn 1: .* does not hold the states of these tokens", said)


def test_the_bundled_head_is_no_head_for_a_missing_folder(capsys, tmp_path):
    said = complaint(capsys, "export", tmp_path, tmp_path / "head")
    assert "holds no run" in said and BUNDLED.is_dir()
