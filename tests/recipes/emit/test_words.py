"""Words of sh: every byte arrives, references are the shell's, here-documents hold what they are given."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.recipes.emit.words import assignments, heredoc, names_of, script_line, shell
from eyas.recipes.plan import EnvVar, Home, Ref

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
NASTY = st.text(st.sampled_from("a '\"\\$`\n\t;&|*?~#!=<>(){}[]-é名")) | TEXT
HOME = "/home/o'neil $x"


def printed(script: str, *, encoding: str = "utf-8") -> str:
    environment = {"HOME": HOME, "NAME": 'va\'l "$HOME"\n`x`'}
    done = subprocess.run(["sh"], input=script.encode(encoding), env=environment, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode(encoding)


@settings(max_examples=60, deadline=None)
@given(st.lists(NASTY, min_size=1, max_size=6))
def test_words_arrive_byte_for_byte(words):
    line = script_line(["printf", "'%s\\000'", *map(shell, words)])
    assert printed(line).split("\0")[:-1] == words


@settings(max_examples=20, deadline=None)
@given(NASTY)
def test_parts_are_one_word(text):
    word = shell(text, Ref("NAME"), text, Home(text), text)
    middle = f"{HOME}/{text}" if text else HOME
    assert printed(f"set -- {word}\nprintf '%s:%s' $# \"$1\"") == f'1:{text}va\'l "$HOME"\n`x`{text}{middle}{text}'


def test_references_stay_references():
    assert shell(Ref("NAME")) == '"$NAME"'
    assert shell(Home("a b")) == "\"$HOME\"/'a b'"
    assert shell(Home("")) == '"$HOME"'
    assert shell("") == "''"


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["x=1", "PATH=", "_a=b c", "a=b=c"]))
def test_a_word_at_the_front_is_no_assignment(word):
    script = f"{shell(word)} 2>/dev/null || printf 'not found'"
    assert printed(script) == "not found"


@pytest.mark.parametrize("name", ["", "1A", "A B", "A;B", "A-B", "é", "A\n"])
def test_names_that_sh_cannot_have_are_refused(name):
    with pytest.raises(ValueError, match="environment variable"):
        shell(Ref(name))
    with pytest.raises(ValueError, match="environment variable"):
        assignments([EnvVar(name=name, value="x")])


@pytest.mark.parametrize("word", ["a\0b", Home("a\0b")])
def test_nul_is_refused(word):
    with pytest.raises(ValueError, match="NUL"):
        shell(word)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.sampled_from("EOF_ $`'\"\\é")) | st.sampled_from(["EOF", "EOF_", "EOF__"])))
def test_here_documents_hold_every_line(lines):
    content = "".join(f"{line}\n" for line in lines) or "\n"
    assert printed(heredoc("cat", content)) == content


@settings(max_examples=30, deadline=None)
@given(TEXT)
def test_here_documents_hold_any_whole_lines(text):
    assert printed(heredoc("cat", text + "\n")) == text + "\n"


@pytest.mark.parametrize("content", ["", "no end", "a\0\n"])
def test_other_contents_are_refused(content):
    with pytest.raises(ValueError, match="whole lines"):
        heredoc("cat", content)


def test_names_are_found_once():
    assert names_of([Ref("A"), "x", Ref("B"), Home("y"), Ref("A")]) == ("A", "B")


def test_long_commands_are_one_flag_a_line():
    words = ["docker", "run", "--name", "x" * 60, "--flag", "image", "cmd", "--a", "y" * 40]
    assert script_line(words).splitlines() == [
        "docker run \\",
        f"  --name {'x' * 60} \\",
        "  --flag image \\",
        "  cmd \\",
        f"  --a {'y' * 40}",
    ]
    assert script_line(["a", "b"]) == "a b"
