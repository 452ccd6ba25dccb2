"""start.sh and stop.sh really run, with recording stand-ins for docker, curl, hf and ssh; nothing gets lost."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.recipes.support.plans import LINES, SECRET, Machine, hostile_plan, literal, plan, two_node_plan

from eyas.recipes.emit.blocks import LIBRARY
from eyas.recipes.emit.shell import render
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import Download, EnvVar, File, Launch, Node, Ref, Wait

ON_A_MAC = plan([Launch(name="server", argv=("serve",))], box=parse_box("mac"), image=None)
needs_shellcheck = pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def docker_run(launch, home: str) -> list[str]:
    """The arguments of `docker run`, from the plan, without the code under test."""
    environment = {"EYAS_TEST_TOKEN": SECRET, "EYAS_TEST_KEY": "key"}
    box = launch.container
    argv = ["run", "--detach", "--name", box.name, *box.options]
    for one in launch.env:
        secret = isinstance(one.value, Ref)
        argv += ["--env", one.name if secret else f"{one.name}={literal(one.value, home, environment)}"]
    for mount in box.mounts:
        argv += ["--mount", {"source": literal(mount.source, home, {}), "target": mount.target, "ro": mount.read_only}]
    return [*argv, box.image, *(literal(word, home, environment) for word in launch.argv)]


def with_mounts_read(argv: list[str]) -> list:
    """Values of `--mount` as docker reads them: one record of CSV."""
    return [mount(word) if before == "--mount" else word for before, word in zip(["", *argv], argv, strict=False)]


def mount(text: str) -> dict:
    fields = next(csv.reader([text]) if "\n" not in text else csv.reader(text.splitlines(keepends=True)))
    values = dict(field.split("=", 1) for field in fields if "=" in field)
    assert values.pop("type") == "bind"
    return {**values, "ro": "readonly" in fields}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The hostile plan, started once: the machine, the plan and how start.sh ended."""
    machine = Machine(tmp_path_factory.mktemp("started"))
    made = hostile_plan(machine.folder)
    done = machine.run(render(made), "start.sh", SLOW="yes")
    assert done.returncode == 0, done.stderr
    return machine, made, done


def test_a_hostile_plan_arrives_word_for_word(started):
    machine, made, _ = started
    server = made.emission.launches[1]
    ran = [(argv, env) for argv, env, _ in machine.calls("docker") if argv[0] == "run"]
    assert [with_mounts_read(argv) for argv, _ in ran] == [docker_run(server, str(machine.home))]
    assert ran[0][1] == {"EYAS_TEST_TOKEN": SECRET, "OTHER": SECRET}
    assert (machine.home / "prepared").read_text() == LINES
    for file in made.emission.files:
        path = Path(made.choice.directory, file.path)
        assert path.read_bytes() == file.content.encode()
        assert path.stat().st_mode & 0o777 == file.mode
    assert not list(machine.folder.rglob("pwned"))


def test_downloads_leave_the_twins_out_and_go_to_the_cache(started):
    machine, _, _ = started
    calls = [(argv, env["HF_HOME"]) for argv, env, _ in machine.calls("hf")]
    cache = f"{machine.folder}/hub cache"
    assert calls == [
        (["download", "openai/gpt-oss-120b", "--exclude", "*/*"], cache),
        (["download", "org/draft", "--revision", "abc"], cache),
    ]


def test_hf_is_given_one_pattern_of_a_kind(machine):
    """Before 1.0 the second of two flags took the first one's place, since then one flag takes one pattern."""
    with pytest.raises(ValueError, match="one pattern for --exclude"):
        render(plan([], downloads=(Download(repo="org/x", num_bytes=1, exclude=("a/*", "b/*")),)))


def test_it_asks_until_the_server_is_ready(started):
    machine, _, _ = started
    asked = [argv[-1] for argv, _, _ in machine.calls("curl")]
    base = "http://127.0.0.1:8000"
    assert asked == [f"{base}/", f"{base}/health", f"{base}/health", f"{base}/v1/chat/completions"]


def test_the_sample_carries_the_key_through_a_pipe(started):
    machine, _, done = started
    assert "Paris" in done.stdout
    argv = machine.calls("curl")[-1][0]
    assert json.loads(argv[argv.index("--data-binary") + 1])["model"] == "openai/gpt-oss-120b"
    assert (machine.folder / "headers").read_text() == "Authorization: Bearer key\n"
    assert not [argv for argv, _, _ in machine.calls("curl") if any("Bearer" in word for word in argv)]


def test_a_variable_that_is_not_set_ends_it_before_anything_happens(machine):
    files = render(hostile_plan(machine.folder))
    for name in ("EYAS_TEST_TOKEN", "EYAS_TEST_KEY", "HF_TOKEN"):
        done = machine.run(files, "start.sh", **{name: ""})
        assert done.returncode != 0
        assert f"{name}: is not set; export {name} first" in done.stderr
    assert not (machine.folder / "calls").exists()


def test_a_port_in_use_ends_it_before_anything_is_written(machine):
    made = hostile_plan(machine.folder)
    done = machine.run(render(made), "start.sh", PORT_TAKEN=":8000")
    assert done.returncode == 1
    assert "port 8000 is in use" in done.stderr
    assert not Path(made.choice.directory).exists()
    assert all(argv[argv.index("--noproxy") + 1] == "*" for argv, _, _ in machine.calls("curl"))


def test_a_mac_needs_nothing_that_only_linux_has(machine):
    for name, body in {
        "setsid": "exit 127",
        "sysctl": "case $2 in hw.memsize) echo 137438953472 ;; *) exit 1 ;; esac",
        "serve": "exec sleep 600",
    }.items():
        (machine.tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (machine.tools / name).chmod(0o755)
    done = machine.run(render(ON_A_MAC), "start.sh")
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr
    pid = int((machine.home / "deployments/one/server.pid").read_text().split()[0])
    assert os.getpgid(pid) == pid, "a group of its own, which stop.sh ends"
    assert machine.run(render(ON_A_MAC), "stop.sh").returncode == 0
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    assert not state.strip() or state.startswith("Z")


def test_a_boot_has_a_name_on_a_mac_too():
    script = LIBRARY + 'cat() { return 1; }\nsysctl() { [ "$2" = kern.bootsessionuuid ] && echo 7E1F; }\nboot\n'
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == "7E1F\n"


def test_it_does_not_start_twice_and_stops_once(machine):
    files = render(hostile_plan(machine.folder))
    assert machine.run(files, "start.sh").returncode == 0
    again = machine.run(files, "start.sh")
    assert again.returncode == 1
    assert "server is there already; stop it first" in again.stderr
    assert not [argv for argv, _, _ in machine.calls("docker") if argv[0] == "stop"], "the first is left alone"
    assert machine.run(files, "stop.sh").returncode == 0
    assert machine.run(files, "stop.sh").returncode == 0
    stops = [argv for argv, _, _ in machine.calls("docker") if argv[0] in ("stop", "rm")]
    assert stops == [["stop", "--time", "30", "one-server"], ["rm", "--force", "one-server"]]


def processes(folder: Path, *, dies: bool = False):
    """Two processes: one that is up when it says so, and one beside it that may end at once."""
    code = "import sys, time; print('up', flush=True); open(sys.argv[1], 'w').write(sys.argv[2]); time.sleep(600)"
    first = Launch(
        name="first one",
        argv=(sys.executable, "-S", "-c", code, f"{folder}/wrote", LINES),
        env=(EnvVar(name="GREETING", value=LINES),),
        wait=Wait(log="^up$"),
    )
    second = Launch(name="second", argv=("sh", "-c", "exit 3" if dies else "sleep 600"))
    return plan([first, second], image=None)


def alive(marker: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", "--", marker], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split() if int(line) != os.getpid()]


def test_processes_start_and_stop_with_their_children(machine):
    files = render(processes(machine.folder))
    done = machine.run(files, "start.sh")
    assert done.returncode == 0, done.stderr
    assert (machine.folder / "wrote").read_text() == LINES
    folder = machine.home / "deployments/one"
    pids = [int(path.read_text().split()[0]) for path in sorted(folder.glob("*.pid"))]
    assert len(pids) == 2
    assert all(os.getpgid(pid) == pid for pid in pids)
    assert (folder / "logs/first one.log").read_text() == "up\n"
    assert machine.run(files, "stop.sh").returncode == 0
    assert alive(f"{machine.folder}/wrote") == []
    assert not list(folder.glob("*.pid"))


def test_a_process_that_ends_takes_the_others_with_it(machine):
    done = machine.run(render(processes(machine.folder, dies=True)), "start.sh", NEVER="yes")
    assert done.returncode == 1
    assert "second ended; see " in done.stderr
    assert "stopping what was started" in done.stderr
    assert alive(f"{machine.folder}/wrote") == []


def test_a_number_used_again_is_nobodys(machine):
    files = render(processes(machine.folder))
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    folder = machine.home / "deployments/one"
    folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    (folder / "second.pid").write_text(f"{other.pid} _Thu_Jan_1_00:00:00_1970 {boot}")
    assert machine.run(files, "stop.sh").returncode == 0
    assert other.poll() is None
    other.kill()
    other.wait()


def test_children_of_a_process_that_ended_are_stopped_too(machine):
    made = plan(
        [Launch(name="x", argv=("sh", "-c", f"sleep 600 & echo up; exec sleep 600 # {machine.folder}"))], image=None
    )
    assert machine.run(render(made), "start.sh").returncode == 0
    pid = int((machine.home / "deployments/one/x.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    group = subprocess.run(["ps", "-o", "stat=", "-g", str(pid)], capture_output=True, text=True).stdout.split()
    assert [state for state in group if state[0] != "Z"], "the child goes on"
    assert machine.run(render(made), "stop.sh").returncode == 0
    group = subprocess.run(["ps", "-o", "stat=", "-g", str(pid)], capture_output=True, text=True).stdout.split()
    assert not [state for state in group if state[0] != "Z"]


def test_a_failed_container_leaves_nothing_half_started(machine):
    done = machine.run(render(hostile_plan(machine.folder)), "start.sh", FAIL_RUN="yes")
    assert done.returncode == 125
    assert "stopping what was started" in done.stderr


@pytest.fixture
def far_processes():
    """Ends what the two-node stand-in of `docker exec` left sleeping, whatever the test did."""
    before = set(alive("tools/docker exec"))
    yield
    for pid in set(alive("tools/docker exec")) - before:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("far_processes")
def test_two_machines_start_in_order_and_stop_in_reverse(machine):
    files = render(two_node_plan())
    done = machine.run(files, "start.sh")
    assert done.returncode == 0, done.stderr
    runs = [call for call in machine.calls("docker") if call[0][0] == "run"]
    started = [(argv[argv.index("--name") + 1], env, home) for argv, env, home in runs]
    secret = {"EYAS_TEST_TOKEN": SECRET}
    assert started == [("one-box-0", secret, "near"), ("one-box-1", secret, "far")]
    inside = []
    deadline = time.monotonic() + 60
    while len(inside) < 2 and time.monotonic() < deadline:  # the second runs on in the background
        inside = [argv for argv, _, _ in machine.calls("docker") if argv[0] == "exec"]
        time.sleep(0.02)
    assert inside[0][:3] == ["exec", "one-box-0", "hostname"]
    assert inside[1] == ["exec", "--env", "A=b c", "one-box-0", "serve", LINES]
    for home in (machine.home, machine.far):
        assert (home / "deployments/one/hosts").read_text() == "192.168.200.12\n"
    assert {home for _, _, home in machine.calls("hf")} == {"near", "far"}
    for argv, _, _ in machine.calls("ssh"):
        assert argv[:4] == ["-o", "BatchMode=yes", "me@spark b", "sh"]
        assert not any(SECRET in word for word in argv)

    done = machine.run(files, "stop.sh")
    assert done.returncode == 0, done.stderr
    stops = [(argv[-1], home) for argv, _, home in machine.calls("docker") if argv[0] == "stop"]
    assert stops == [("one-box-1", "far"), ("one-box-0", "near")]
    assert alive(f"{machine.tools}/docker exec") == []


def test_what_several_machines_need_first_comes_along():
    files = render(two_node_plan())
    assert set(files) == {
        *("start.sh", "stop.sh", "node-0.sh", "node-1.sh"),
        *("two-nodes.sh", "netplan-0.yaml", "netplan-1.yaml"),
    }


@needs_shellcheck
@pytest.mark.parametrize("made", [hostile_plan(Path("/x")), two_node_plan(), processes(Path("/x")), ON_A_MAC])
def test_shellcheck_has_nothing_to_say(made, tmp_path):
    scripts = []
    for name, content in render(made).items():
        if name.endswith(".sh"):
            (tmp_path / name).write_text(content)
            scripts.append(tmp_path / name)
    guesses = "SC1078,SC1079"  # at quotes that seem to have been forgotten, because a word spans two lines
    done = subprocess.run(["shellcheck", f"--exclude={guesses}", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_remote_machine_alone_is_reached_over_ssh(machine):
    made = plan([Launch(name="x", argv=("serve",))], nodes=(Node(name="far", ssh="far"),))
    files = render(made)
    assert set(files) == {"start.sh", "stop.sh", "node-0.sh"}
    assert "ssh -o BatchMode=yes far sh -s" in files["start.sh"]


def test_tokens_are_never_written():
    for made in (hostile_plan(Path("/x")), two_node_plan()):
        text = "".join(render(made).values())
        assert SECRET not in text
        assert '"$EYAS_TEST_TOKEN"' in text or "carry EYAS_TEST_TOKEN" in text


def test_an_empty_file_is_written(machine):
    made = plan([Launch(name="x", argv=("sleep", "600"))], files=(File(path="empty", content=""),), image=None)
    files = render(made)
    assert machine.run(files, "start.sh").returncode == 0
    assert (machine.home / "deployments/one/empty").read_bytes() == b""
    assert machine.run(files, "stop.sh").returncode == 0
