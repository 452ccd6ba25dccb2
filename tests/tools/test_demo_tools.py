"""Chats with a python tool: the calculator, expressions, calls as servers render them, chats of the target."""

import json
import re
from pathlib import Path
from random import Random

import pytest
import torch
from answering import OpenChat, _append, answer_chats, draw_chats, program_of, prompt_of
from calculations import draw_calculation
from calculator import CalculationError, calculate, run_program
from chats import is_held_out
from data import CONTEXT, GENERATED, held_out_tool_prompts, prompt_ids, render_chat
from evaluate import called_program, tool_answers, with_result
from facts import load_facts
from hypothesis import given
from hypothesis import strategies as st
from reload import load_trainable
from shapes import TARGET
from tool_chats import FAILED, UNSEEN_DESCRIPTIONS, ToolChatWriter, python_tool

from eyas.base.bundled import DEMO
from eyas.base.harmony.conversation import CallEntry, Conversation, ReasoningEntry, ResultEntry, TextEntry, to_harmony
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import render_conversation
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.gateway.grammar.checker import NamedTool, answer_grammar
from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.records import chat_of

torch.set_num_threads(1)
HELD_OUT = Path(__file__).parents[1] / "assets" / "demo_heldout_tools.jsonl"
EXPRESSIONS = st.recursive(
    st.integers(0, 999).map(lambda n: (str(n), n)),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda x: (f"({x[0][0]}{x[1]}{x[2][0]})", combined(x[0][1], x[1], x[2][1]))
    ),
    max_leaves=6,
)


def combined(a, sign, b):
    return a + b if sign == "+" else a - b if sign == "-" else a * b


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(DEMO)


@pytest.fixture(scope="module")
def writer():
    return ToolChatWriter(load_facts(), Random(3))


@given(EXPRESSIONS)
def test_the_calculator_computes(expression):
    text, value = expression
    assert calculate(text) == value
    assert run_program(f"print({text})") == str(value)


def test_the_calculator_follows_pythons_precedence():
    assert calculate("3424*4334+342342+943") == 15182901
    assert calculate("2+3*4**2//5%7-6/4") == 2 + 48 // 5 % 7 - 1.5
    assert calculate("2**3**2") == 512 and calculate("-2**2") == -4 and calculate("7//-2") == -4


@pytest.mark.parametrize(
    "text",
    ["", "x", "f(1)", "(1,2)", "'a'*3", "True", "1j", "1<2", "9**99", "2**-1", "2**0.5", "9**9**9", "10**31", "1e999",
     "(1e30)**64", "[1]", "1 if 1 else 2", "1;2", "(" * 500, "1\n2", "\0", "~1", "+1" * 101],
)  # fmt: skip
def test_the_calculator_refuses_everything_else(text):
    with pytest.raises(CalculationError):
        calculate(text)
    assert run_program(f"print({text})").startswith("CalculationError: ")


def test_errors_of_programs_are_lines():
    assert run_program("print(1//0)").startswith("ZeroDivisionError: ")
    assert run_program("1+1") == run_program("import os") == "CalculationError: not a calculation"


def test_the_program_of_a_calculation_has_its_result():
    rng = Random(0)
    drawn = [draw_calculation(rng) for _ in range(1000)]
    assert all(run_program(x.program) == x.result for x in drawn)
    assert all(len(x.result) <= 22 and "e" not in x.result for x in drawn)
    assert {sign for x in drawn for sign in ("+", "-", "**", "//", "%", "(") if sign in x.expression} == {
        "+", "-", "**", "//", "%", "("
    }  # fmt: skip
    several = sum(sum(char in "+-*/%" for char in x.expression.replace("**", "^")) > 1 for x in drawn)
    assert several > 300 and len({x.question for x in drawn}) > 990
    digits = [part for x in drawn for part in x.question.replace(",", "").split() if part.isdigit()]
    assert sum(len(part) > 3 for part in digits) > 300


def test_chats_are_what_servers_make_of_requests(tokenizer, writer):
    """Prompts as the API's conversion renders them, calls as the grammar makes them be written."""
    num_calls = num_answers = 0
    for _ in range(150):
        chat = writer.chat()
        ids, codes = render_chat(tokenizer, chat)
        prompt = render_conversation(tokenizer, chat.given(), purpose="completion")
        assert ids[: len(prompt)] == prompt and set(codes[len(prompt) :]) == {GENERATED}
        assert codes[len(prompt) - 1] == CONTEXT
        own = tokenizer.decode(ids[len(prompt) :])
        turn = chat.turns[-1]
        if turn.arguments is None:
            assert own.endswith(f"<|channel|>final<|message|>{turn.answer}<|return|>")
            assert "<|call|>" not in own
        elif chat.stage == "call":
            num_calls += 1
            head, _, rest = own.partition("<|end|><|start|>assistant")
            assert head.startswith("<|channel|>analysis<|message|>")
            assert rest == (
                "<|channel|>commentary to=functions.python <|constrain|>json<|message|>" + turn.arguments + "<|call|>"
            )
            parser = StreamParser(tokenizer)
            parser.feed(ids[len(prompt) :])
            assert run_program(program_of(parser.messages[-1])) == turn.result
        else:
            num_answers += 1
            assert own == f"<|channel|>final<|message|>{turn.answer}<|return|>"
            shown = tokenizer.decode(prompt)
            call = "<|start|>assistant to=functions.python<|channel|>commentary <|constrain|>json<|message|>"
            call += turn.arguments
            result = f"<|start|>functions.python to=assistant<|channel|>commentary<|message|>{turn.result}<|end|>"
            assert shown.endswith(f"{call}<|call|>{result}<|start|>assistant")
            program = json.loads(turn.arguments)["code"]
            assert turn.answer == (f"The result is {run_program(program)}.") or turn.answer == FAILED
            assert (turn.answer == FAILED) == (run_program(program) not in turn.result)
    assert num_calls > 20 and num_answers > 10


def test_a_prompt_with_tools_is_that_of_the_api(tokenizer):
    """The same conversation through `to_harmony`, system message included."""
    rng = Random(1)
    writer = ToolChatWriter(load_facts(), rng)
    num_same = 0
    for _ in range(60):
        chat, tools = writer.drawn()
        system = chat.preamble[0].content
        if not system.startswith("You are ChatGPT"):
            continue
        date = system.partition("Current date: ")[2][:10] or None
        developer = chat.preamble[1].content.removeprefix("# Instructions\n\n")
        instructions = None if developer.startswith("# Tools") else developer.partition("\n\n# Tools")[0]
        entries = []
        for turn in chat.turns[:-1]:
            entries += [TextEntry(role="user", text=turn.question), ReasoningEntry(text=turn.analysis)]
            if turn.arguments is not None:
                entries += [CallEntry(name="python", arguments=turn.arguments)]
                entries += [ResultEntry(name="python", output=turn.result)]
            entries.append(TextEntry(role="assistant", text=turn.answer))
        last = chat.turns[-1]
        entries.append(TextEntry(role="user", text=last.question))
        if chat.stage == "answer" and last.arguments is not None:
            entries += [ReasoningEntry(text=last.analysis)] if chat.keeps_analysis else []
            entries += [CallEntry(name="python", arguments=last.arguments)]
            entries += [ResultEntry(name="python", output=last.result)]
        conversation = Conversation(
            entries=entries, instructions=instructions, tools=tools, effort=chat.effort, date=date
        )
        head, rest = to_harmony(conversation)
        given = render_conversation(tokenizer, [*head, *rest], purpose="completion")
        assert given == render_conversation(tokenizer, chat.given(), purpose="completion")
        num_same += 1
    assert num_same > 25


def test_openai_harmony_reads_the_chats(tokenizer, writer, harmony):
    """Its own tokenizer and parser, over the text: authors, recipients, channels and contents are those of the chat."""
    for _ in range(40):
        chat = writer.chat()
        text = tokenizer.decode(render_chat(tokenizer, chat)[0])
        read = harmony.parse_messages_from_completion_tokens(harmony.encode(text, allowed_special="all"))
        wanted = chat.messages()
        assert len(read) == len(wanted)
        for one, message in zip(read, wanted, strict=True):
            assert (one.content[0].text, one.channel) == (message.content, message.channel)
            assert (one.author.role.value, one.recipient) == (message.role, message.recipient)
            assert one.author.name == message.name


def test_calls_fit_the_grammar_of_a_forced_call(tokenizer, writer):
    import llguidance

    codec = llguidance.LLTokenizer(str(DEMO / "tokenizer.json"))
    tool = python_tool(Random(0))
    grammar = answer_grammar(tools=[tool], tool_choice=NamedTool("python"))
    for _ in range(20):
        chat = writer.chat(has_python=True, is_calculation=True)
        if chat.stage == "call":
            matcher = llguidance.LLMatcher(codec, grammar)
            prompt = len(render_conversation(tokenizer, chat.given(), purpose="completion"))
            own = render_chat(tokenizer, chat)[0][prompt:]
            assert matcher.consume_tokens(own) and not matcher.is_error() and matcher.is_stopped()


def test_training_never_sees_held_out_calculations_and_descriptions():
    facts = load_facts()
    train, held = (ToolChatWriter(facts, Random(2), held_out=held) for held in (False, True))
    seen = [train.chat() for _ in range(400)]
    assert not any(is_held_out(turn) for chat in seen for turn in chat.turns)
    assert not any(
        text in message.content for chat in seen for message in chat.preamble for text in UNSEEN_DESCRIPTIONS
    )
    assert all(is_held_out(turn) for _ in range(50) for turn in held.chat().turns)


def test_committed_held_out_prompts_are_those_of_the_seed(tokenizer):
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    assert rows == held_out_tool_prompts(len(rows), seed=0) and len(rows) == 200
    due = [row for row in rows if row["program"] is not None]
    assert len(due) == 100
    for row in due:
        assert row["answer"] == f"The result is {run_program(row['program'])}."
        assert tokenizer.decode(prompt_ids(tokenizer, with_result(row))).endswith("<|end|><|start|>assistant")
    assert all(any(text in m["content"] for m in row["messages"][:2] for text in UNSEEN_DESCRIPTIONS) for row in due)


def test_rows_of_calls_are_judged(tokenizer):
    call = "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.python "
    special = tokenizer.special

    def ids(arguments, end="<|call|>"):
        text = f"{call}<|constrain|>json<|message|>{arguments}{end}"
        found = []
        for part in re.split(r"(<\|\w+\|>)", text):
            found += [special[part]] if part in special else tokenizer.encode(part)
        return found

    assert called_program(tokenizer, ids('{"code":"print(1+1)"}')) == "print(1+1)"
    assert called_program(tokenizer, ids('{"code": "print(1+1)"}')) == "print(1+1)"
    assert called_program(tokenizer, ids('{"code":"print(1+1)"}', "<|return|>")) is None
    assert called_program(tokenizer, ids('{"code":1}')) is None
    assert called_program(tokenizer, ids('{"code":"print(1+1)')) is None

    row = {"messages": [], "tools": [{"type": "function", "function": {"name": "python"}}]}
    chat = OpenChat(row, [], 1.0)
    assert _append(chat, tokenizer, ids('{"code":"print(6*7)"}'))
    assert [m["role"] for m in row["messages"]] == ["assistant", "tool"]
    assert row["messages"][1]["content"] == "42"
    assert not _append(OpenChat({"messages": []}, [], 1.0), tokenizer, ids('{"code":"print(6*7)"}'))  # not offered


@pytest.mark.slow
def test_the_bundled_target_answers_chats_that_training_reads_as_they_were_sampled(tokenizer):
    model = load_trainable(DEMO, TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=True)
    chats = list(draw_chats(6, seed="test"))
    num_turns = sum(len(chat.questions) for chat in chats)
    rows = answer_chats(
        model, weights, tokenizer, chats, max_tokens=96, longest=600, generator=torch.Generator().manual_seed(0)
    )
    assert len(rows) >= 4
    num_documents = 0
    for row in rows:
        read = chat_of(json.loads(json.dumps(row)), source="row")
        documents = list(documents_of(tokenizer, read, DocumentOptions(call_headers="written"), Tally()))
        asked = [i for i, message in enumerate(row["messages"]) if message["role"] == "user"]
        assert len(documents) == len(asked)
        num_documents += len(documents)
        for document, at in zip(documents, asked, strict=True):
            prompt = prompt_of(tokenizer, row | {"messages": row["messages"][: at + 1]})
            assert document.ids_T[: len(prompt)].tolist() == prompt
            assert (document.runs_T[: len(prompt)] == -1).all() and document.runs_T[len(prompt)] == 0
    assert num_documents <= num_turns


def test_right_calls_are_counted(tokenizer, monkeypatch):
    """Counts of answers given by hand in place of the target's."""
    rows = held_out_tool_prompts(4, seed=5)
    special = tokenizer.special

    def written(*parts):
        return [token for part in parts for token in ([special[part]] if part in special else tokenizer.encode(part))]

    def call(program):
        arguments = json.dumps({"code": program})
        header = ("<|channel|>", "commentary", " to=functions.python", " ", "<|constrain|>", "json", "<|message|>")
        return written(*header, arguments, "<|call|>")

    def final(text):
        return written("<|channel|>", "final", "<|message|>", text, "<|return|>")

    said = iter(
        [
            [call(rows[0]["program"]), final(rows[1]["answer"]), call("print(1+2)"), call("print(1)")],
            [final(rows[0]["answer"]), final("The result is 1.")],
        ]
    )
    monkeypatch.setattr("evaluate._greedy", lambda model, weights, codec, prompts: next(said))
    counts, wrong = tool_answers(None, None, tokenizer, rows)
    assert counts == {"calls": (1, 2), "finals": (1, 2), "not called": (1, 2), "answers": (1, 2)}
    assert len(wrong) == 4
