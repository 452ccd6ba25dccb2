"""What of a YAML file is refused, and that no error quotes the file."""

import pytest

from eyas.base.errors import UserError
from eyas.base.settings.strict_yaml import MAX_FILE_BYTES, read_yaml


def test_a_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: [1, off]}\n")
    assert read_yaml(path) == {"a": {"b": [1, False]}}


def test_an_anchor_may_stand_in_several_places(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "a: &a [1]\nb: [*a, *a]\n"
        + "".join(f"c{n}: &c{n} [*c{n - 1}, *c{n - 1}]\n" for n in range(1, 40)).replace("*c0", "*a")
    )
    assert read_yaml(path)["b"] == [[1], [1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2\n", "the key 'a' stands twice in one mapping in line 1, column 1"),
        ("key: secret: word\n", "line 1"),
        ('key: "secret\n', "line 2"),
        ("key: !!python/object:os.system secret\n", "line 1"),
        ("[" * 100_000, "not YAML"),
        ("key: \x00secret", "not YAML"),
        ("&a [secret, *a]", "not YAML: an anchor stands for something that it is in itself"),
        ("key: &a {secret: [*a]}", "not YAML: an anchor stands for something that it is in itself"),
        ("# " + "x" * MAX_FILE_BYTES, "larger than 1 MiB"),
    ],
)
def test_what_is_refused(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as info:
        read_yaml(path)
    assert said in str(info.value) and "secret" not in str(info.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="No such file or directory; make one"):
        read_yaml(tmp_path / "none", hint="; make one")
