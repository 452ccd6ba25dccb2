"""`eyas generate` and `eyas chat` on the stub engine, and how answers and drafts are shown."""

import fcntl
import io
import os
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tests.gateway.support.gateway import build_tokenizer, reply_ids

from eyas import chat, cli, generate
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import stop_ids
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import ModelInfo, RoundTrace, TokenEvent
from eyas.engine.ports.stub import StubEngine
from eyas.local import Meter
from eyas.terminal import AnswerPrinter, DraftPrinter


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder)
    return Tokenizer.load(folder)


def stub(codec, reply, **options):
    """An engine that needs no model, with what the commands ask of one."""
    info = ModelInfo(name="stub", context=900, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="eagle3")
    engine = StubEngine(info, reply, drafts_per_round=4, **options)
    engine.tokenizer = codec
    return engine


@pytest.fixture
def asked(codec, monkeypatch):
    """Puts the stub in the engine's place; yields the requests that it gets."""
    requests = []

    def reply(request, choice):
        requests.append(request)
        return reply_ids(codec, "Think.", f"Answer {len(requests)}.")

    for module in (generate, chat):
        monkeypatch.setattr(module, "load_engine", lambda config: stub(codec, reply))
    for name in ("EYAS_CONFIG", "EYAS_SEED"):
        monkeypatch.delenv(name, raising=False)
    return requests


@pytest.fixture
def typing(monkeypatch):
    """`typing("a", "b")` types these lines, then Ctrl-D."""
    return lambda *lines: monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_generate(asked, codec, capsys):
    argv = ["generate", "Hi", "--temperature", "0.5", "--top-k", "3", "--seed", "9", "--system", "Be brief."]
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert out == "(thinking) Think.\nAnswer 1.\n"
    num = len(reply_ids(codec, "Think.", "Answer 1."))
    assert err.startswith(f"{num} tokens, ") and "target steps per token" in err
    params = asked[0].params
    assert (params.temperature, params.top_k, params.seed, params.max_tokens) == (0.5, 3, 9, None)
    prompt = codec.decode(asked[0].prompt_ids)
    assert "Reasoning: medium" in prompt
    assert "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>" in prompt
    assert prompt.endswith("<|start|>user<|message|>Hi<|end|><|start|>assistant")


def test_generate_shows_drafts(asked, codec, capsys):
    assert cli.main(["generate", "Hi", "--show-draft"]) == 0
    legend, _, text = capsys.readouterr().out.partition("\n\n")
    assert legend == "[drafted and accepted]  {-drafted and rejected-}  the target's own"
    plain = text
    while "{-" in plain:
        before, _, rest = plain.partition("{-")
        plain = before + rest.partition("-}")[2]
    whole = codec.decode(reply_ids(codec, "Think.", "Answer 1."))
    assert plain.replace("[", "").replace("]", "") == whole + "\n"


def test_chat_remembers_final_answers_and_forgets_in_a_new_chat(asked, codec, capsys, typing):
    typing("one", "", "two", "/new", "three")
    assert cli.main(["chat"]) == 0
    out = capsys.readouterr().out
    assert out.count("Answer") == 3 and out.count("target steps per token") == 3
    ends = [codec.decode(request.prompt_ids).split("<|start|>user", 1)[1] for request in asked]
    one, two, three = (f"<|message|>{word}<|end|><|start|>assistant" for word in ("one", "two", "three"))
    assert ends == [one, f"{one}<|channel|>final<|message|>Answer 1.<|end|><|start|>user{two}", three]


def test_chat_says_when_the_context_is_full_and_goes_on(asked, capsys, typing):
    typing("x" * 2000, "short")
    assert cli.main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "the context holds 900 and needs room for an answer; /new begins a new chat" in out and "Answer 1." in out


def test_chat_commands(asked, codec, capsys, typing):
    """Help, the effort of the chat that goes on, one line for what is no command, and an end that asks no more."""
    typing(
        "/help", "/effort", "/effort much", "one", "/effort HIGH", "two", "/halp me", "/etc/hosts?", "/quit", "three"
    )
    assert cli.main(["chat"]) == 0
    prompts = [codec.decode(request.prompt_ids) for request in asked]
    assert ["Reasoning: high" in prompt for prompt in prompts] == [False, True, True]
    assert "Reasoning: medium" in prompts[0] and "<|message|>one<|end|>" in prompts[1] and "/etc/hosts?" in prompts[2]
    head, *said = [part.strip("\n") for part in capsys.readouterr().out.split("> ")]
    assert head.endswith(chat.HINT) and "/help" in chat.HINT
    for usage, meaning in chat.COMMANDS.items():
        assert f"{usage:13}  {meaning}" in said[0].splitlines()
    assert said[1] == "the effort can be low, medium, high; now it is medium"
    assert said[2] == "the effort can be low, medium, high, not 'much'"
    assert said[4] == "effort high, from the next answer on"
    assert said[6] == "unknown command '/halp': there are /new, /effort LEVEL, /help, /quit"
    assert len(said) == 9 and len(asked) == 3


def test_an_answer_that_ends_in_a_header_shows_nothing_of_it(asked, codec, capsys, typing):
    """Neither on the terminal nor in the prompt of the next question."""
    typing("one", "two")
    assert cli.main(["chat", "--max-tokens", "1"]) == 0
    out = capsys.readouterr().out
    assert "<|" not in out and "Think" not in out
    assert codec.decode(asked[1].prompt_ids).endswith(
        "<|start|>user<|message|>one<|end|><|start|>user<|message|>two<|end|><|start|>assistant"
    )


STUB_CHAT = """
import sys, tests.test_terminal as t
from pathlib import Path
from eyas import chat, cli
from eyas.base.tokens.tokenizer import Tokenizer
codec = Tokenizer.load(Path(sys.argv[1]))
words = t.reply_ids(codec, "", "word " * 400)
chat.load_engine = lambda config: t.stub(codec, lambda request, choice: words, round_s=0.02)
sys.exit(cli.main(["chat"]))
"""


def own_terminal():
    """In a new process: standard input is its terminal, and Ctrl-C reaches it even if this process ignores it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_keys_in_a_terminal(tmp_path):
    """The arrow key brings the line before back, Ctrl-C gives a line up and stops an answer, Ctrl-D ends the chat."""
    build_tokenizer(tmp_path)
    main, other = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", STUB_CHAT, str(tmp_path)],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"TERM": "xterm"},
        start_new_session=True,
        preexec_fn=own_terminal,
    ) as process:
        os.close(other)
        screen = ""

        def until(*texts):
            nonlocal screen
            for text in texts:
                while text not in screen:
                    assert select.select([main], [], [], 60)[0], screen
                    screen += os.read(main, 4096).decode(errors="replace")
                screen = screen.partition(text)[2]

        try:
            until("/help lists what else there is.", "> ")
            for typed in (b"/effort low\r", b"\x1b[A\r"):
                os.write(main, typed)
                until("effort low, from", "> ")
            os.write(main, b"half a line")
            until("half a line")
            os.write(main, b"\x03")
            while not select.select([main], [], [], 2)[0]:  # CPython sleeps over a Ctrl-C right before its select()
                os.write(main, b"\x03")
            until("Ctrl-D or /quit", "> ")
            os.write(main, b"Hi\r")
            until("word word")
            os.write(main, b"\x03")
            until("tok/s", "> ")
            os.write(main, b"\x04")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(main)


def test_colours_only_on_a_terminal(codec, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    event = TokenEvent(
        request_id="r",
        choice=0,
        token_ids=(*codec.encode("a"), *codec.encode("b")),
        round=RoundTrace(draft_ids=(*codec.encode("a"), *codec.encode("c")), num_accepted=1),
    )
    texts = {}
    for name, out in (("file", io.StringIO()), ("terminal", Terminal())):
        DraftPrinter(out, codec).show(event)
        texts[name] = out.getvalue()
    assert texts["file"] == "[a]{-c-}b"
    assert texts["terminal"] == "\033[32ma\033[0m\033[31;9mc\033[0m\033[1mb\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    DraftPrinter(out, codec).show(event)
    assert out.getvalue() == texts["file"]


def test_reasoning_is_dimmed_on_a_terminal(codec, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    printer, parser = AnswerPrinter(out), StreamParser(codec)
    printer.show(parser.feed(reply_ids(codec, "Think.", "Say.")))
    printer.end()
    assert out.getvalue() == "\033[2mThink.\033[0m\nSay.\n"


def test_meter_leaves_the_first_token_out_of_rounds():
    meter = Meter()
    meter.add(TokenEvent(request_id="r", choice=0, token_ids=(1,)))
    for ids, trace in (
        ((2, 3, 4), RoundTrace(draft_ids=(2, 3, 9), num_accepted=2)),
        ((5,), RoundTrace(draft_ids=(), num_accepted=0)),
    ):
        meter.add(TokenEvent(request_id="r", choice=0, token_ids=ids, round=trace))
    assert meter.line().startswith("5 tokens, ")
    assert meter.line().endswith("acceptance length 2.00, 0.50 target steps per token, 2 of 3 drafts accepted")
