"""Plans from files: the same plan comes back, and everything that could not be started is refused in one line."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.fleet.support.lab import engine, make_plan, write_plan

from eyas.base.errors import UserError
from eyas.fleet.preflight.plan_file import check_plan, read_plan
from eyas.recipes.plan import Container, EnvVar, File, Home, Launch, Mount, Ref, Wait

SERVER = Launch(name="server", argv=engine())
BOX = Launch(name="box", argv=("x",), container=Container(name="lab-box", image="i"))


def plan(*launches, files=(), **choice):
    plan = make_plan("/srv/lab", 8000, launches or (SERVER,), files=files)
    return msgspec.structs.replace(plan, choice=msgspec.structs.replace(plan.choice, **choice))


def ready(**fields):
    made = plan()
    readiness = msgspec.structs.replace(made.emission.readiness, **fields)
    return msgspec.structs.replace(made, emission=msgspec.structs.replace(made.emission, readiness=readiness))


def test_the_same_plan_comes_back(tmp_path):
    mount = Mount(source=Home(path="c"), target="/c")
    box = Launch(name="box", argv=("a", Home(path="b")), container=Container(name="n", image="i", mounts=(mount,)))
    inner = Launch(
        name="in", argv=("x",), env=(EnvVar(name="E", value=Ref(name="R")),), inside="box", wait=Wait(log="^a$")
    )
    made = plan(box, inner, files=(File(path="a/b", content="\u00e9\n'\"\\ $x\n"),), directory=Home(path="eyas/lab"))
    assert read_plan(write_plan(tmp_path / "plan.yaml", made)) == made
    as_json = tmp_path / "plan.json"
    as_json.write_bytes(msgspec.json.encode(made))
    assert read_plan(as_json) == made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (plan(name="../x"), "choice.name wants letters"),
        (plan(name="-rf"), "choice.name"),
        (plan(name="a b"), "choice.name"),
        (plan(name=""), "choice.name"),
        (plan(directory="relative"), "absolute path"),
        (plan(directory=Ref(name="HERE")), "absolute path"),
        (plan(directory="/a\0b"), "NUL"),
        (plan(directory=Home(path="../../etc/evil")), "without .."),
        (plan(directory=Home(path="/etc")), "below home"),
        (plan(directory=Home(path="")), "below home"),
        (plan(directory="/srv/../etc"), "without .."),
        (plan(directory="/"), "absolute path"),
        (plan(cache="/a\0b"), "NUL"),
        (plan(port=0), "choice.port"),
        (plan(listen="0.0.0.0"), "api_key_env"),
        (plan(listen="0.0.0.0", api_key_env="a b"), "cannot name"),
        (plan(nodes=()), "starts nothing"),
        (plan(SERVER, SERVER), "is there twice"),
        (plan(Launch(name="a/b", argv=("x",))), "the name of a launch"),
        (plan(Launch(name="a;b", argv=("x",))), "the name of a launch"),
        (plan(Launch(name="a", argv=("x",), node=1)), "is on node 1, there are 1"),
        (plan(Launch(name="a", argv=())), "runs no command"),
        (plan(Launch(name="a", argv=("x\0",))), "NUL"),
        (plan(Launch(name="a", argv=(Ref(name="A$(id)"),))), "cannot name"),
        (plan(Launch(name="a", argv=("x",), env=(EnvVar(name="A=1;", value="x"),))), "cannot name"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(log="("))), "no regular expression"),
        (plan(Launch(name="a", argv=("x", Ref(name="KEY")))), "$KEY among its arguments"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(port=-1))), "waits for port -1"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(port=99999999))), "waits for port 99999999"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(timeout_s=-1.0))), "0 to 604800 seconds, got -1"),
        (plan(*(Launch(name=f"a{n}", argv=("x",)) for n in range(101))), "more than 100"),
        (ready(timeout_s=0.0), "readiness.timeout_s wants"),
        (ready(timeout_s=1e9), "readiness.timeout_s wants"),
        (ready(path="/a\n"), "readiness.path"),
        (plan(Launch(name="a", argv=("x",), inside="box")), "no earlier container"),
        (plan(Launch(name="a", argv=("x",), inside="server"), SERVER), "no earlier container"),
        (plan(BOX, msgspec.structs.replace(BOX, name="in", inside="box")), "not both"),
        (plan(msgspec.structs.replace(BOX, container=Container(name="a b", image="i"))), "the container of launch box"),
        (plan(files=(File(path="/etc/passwd", content=""),)), "not inside"),
        (plan(files=(File(path="a/../../b", content=""),)), "not inside"),
        (plan(files=(File(path="run/server", content=""),)), "not inside"),
        (plan(files=(File(path="", content=""),)), "not inside"),
        (plan(files=(File(path="a", content="\0"),)), "NUL"),
        (plan(files=(File(path="a", content="", mode=0o4755),)), "mode 4755"),
        (plan(files=(File(path="a", content="", nodes=(1,)),)), "not there"),
        (msgspec.structs.replace(plan(), format=2), "format 2"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(timeout_s=float("nan")))), "nan, inf"),
        (plan(Launch(name="a", argv=("x",), wait=Wait(timeout_s=float("inf")))), "nan, inf"),
        (plan(Launch(name="a", argv=("\ud800",))), "half a character"),
    ],
)
def test_what_cannot_be_started_is_refused(made, says):
    with pytest.raises(UserError) as caught:
        check_plan(made)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no plan: Expected `object`"),
        ("a: [", "is no YAML"),
        ("- 1", "is no plan"),
        ("format: 1", "missing required field"),
        ("\x00", "is no YAML"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
    ],
)
def test_what_is_no_plan(tmp_path, text, says):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_plan(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_field_is_named(tmp_path):
    plain = json.loads(msgspec.json.encode(plan()))
    plain["choice"]["contxt"] = 1
    path = tmp_path / "plan.yaml"
    path.write_text(json.dumps(plain))
    with pytest.raises(UserError, match=r"unknown field `contxt` - at `\$.choice`"):
        read_plan(path)


def test_no_file_and_too_large(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_plan(tmp_path / "plan.yaml")
    with pytest.raises(UserError, match="too large"):
        read_plan(Path("/dev/zero"))
