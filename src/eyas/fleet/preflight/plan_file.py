"""Reads a plan from a file and refuses what could not be started as it says, before anything is touched."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import msgspec
import yaml

from eyas.base.errors import UserError
from eyas.recipes.emit.words import is_name
from eyas.recipes.plan import File, Home, Launch, Plan, Ref, Word

__all__ = ["check_plan", "read_plan"]

MAX_BYTES = 8 << 20
MAX_ENTRIES = 100  # nodes, launches or files of a plan
MAX_S = 7 * 24 * 3600.0  # of any wait
MAX_PORT = 65535
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)  # what docker takes
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OWN_FOLDERS = ("run", "logs")


def read_plan(path: Path) -> Plan:
    """Read a plan as `eyas plan --emit plan` writes it, YAML or JSON. Raises UserError that says where it is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} is too large for a plan; write one with: eyas plan MODEL --emit plan")
    try:
        plan = msgspec.convert(yaml.safe_load(data), Plan)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is no plan: {error}; write one with: eyas plan MODEL --emit plan") from None
    try:
        check_plan(plan)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return plan


def check_plan(plan: Plan) -> None:
    """Raise UserError for what the types allow and a machine would not."""
    choice, emission = plan.choice, plan.emission
    if not _can_be_kept(plan):
        raise UserError("the plan holds what no JSON does: nan, inf or half a character")
    if plan.format != 1:
        raise UserError(f"the plan has format {plan.format}, this eyas reads format 1; write it again with eyas plan")
    _check_name(choice.name, "choice.name")
    _check_directory(choice.directory)
    _check_word(choice.cache, "choice.cache")
    if not 1 <= choice.port <= MAX_PORT:
        raise UserError(f"choice.port wants 1 to {MAX_PORT}, got {choice.port}")
    if choice.listen not in LOOPBACK and choice.api_key_env is None:
        raise UserError(f"choice.listen {choice.listen} opens the server to the network; that wants choice.api_key_env")
    if choice.api_key_env is not None:
        _check_word(Ref(name=choice.api_key_env), "choice.api_key_env")
    if not emission.readiness.path.startswith("/") or not emission.readiness.path.isprintable():
        raise UserError("emission.readiness.path wants a path such as /health")
    _check_seconds(emission.readiness.timeout_s, "emission.readiness.timeout_s")
    if not choice.nodes or not emission.launches:
        raise UserError("the plan starts nothing: it wants at least one node and one launch")
    if max(len(choice.nodes), len(emission.launches), len(emission.files)) > MAX_ENTRIES:
        raise UserError(f"the plan has more than {MAX_ENTRIES} nodes, launches or files")
    for file in emission.files:
        _check_file(file, len(choice.nodes))
    earlier: dict[str, Launch] = {}
    for launch in emission.launches:
        _check_launch(launch, earlier, len(choice.nodes))
        earlier[launch.name] = launch


def _can_be_kept(plan: Plan) -> bool:
    try:
        return msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return False


def _check_launch(launch: Launch, earlier: dict[str, Launch], num_nodes: int) -> None:
    _check_name(launch.name, "the name of a launch")
    where = f"launch {launch.name}"
    if launch.name in earlier:
        raise UserError(f"{where} is there twice")
    if not 0 <= launch.node < num_nodes:
        raise UserError(f"{where} is on node {launch.node}, there are {num_nodes}")
    if not launch.argv and launch.container is None:
        raise UserError(f"{where} runs no command")
    if launch.container is not None:
        if launch.inside is not None:
            raise UserError(f"{where} is in a container of its own or inside that of another launch, not both")
        _check_name(launch.container.name, f"the container of {where}")
        for mount in launch.container.mounts:
            _check_word(mount.source, where)
            _check_word(mount.target, where)
        for option in launch.container.options:
            _check_word(option, where)
    if launch.inside is not None:
        outer = earlier.get(launch.inside)
        if outer is None or outer.container is None or outer.node != launch.node:
            raise UserError(f"{where} is inside {launch.inside}, which is no earlier container on its node")
    for word in launch.argv:
        _check_word(word, where)
        if isinstance(word, Ref):
            raise UserError(f"{where} has ${word.name} among its arguments, which every list of processes shows")
    for variable in launch.env:
        _check_word(Ref(name=variable.name), where)
        _check_word(variable.value, where)
    _check_seconds(launch.wait.timeout_s, f"{where} has a wait.timeout_s that")
    if launch.wait.port is not None and not 1 <= launch.wait.port <= MAX_PORT:
        raise UserError(f"{where} waits for port {launch.wait.port}; it wants 1 to {MAX_PORT}")
    if launch.wait.log is not None:
        try:
            re.compile(launch.wait.log)
        except re.error as error:
            raise UserError(f"{where} waits for a line that is no regular expression: {error}") from None


def _check_directory(word: Word) -> None:
    """Check that the folder that a deployment writes to is its own: below home, and no other folder's parent."""
    _check_word(word, "choice.directory")
    path = PurePosixPath(word.path if isinstance(word, Home) else "" if isinstance(word, Ref) else word)
    is_below = bool(path.parts) and not path.is_absolute() if isinstance(word, Home) else len(path.parts) > 1
    if not is_below or ".." in path.parts or (isinstance(word, str) and not path.is_absolute()):
        raise UserError("choice.directory wants an absolute path or a path below home, without ..")


def _check_seconds(seconds: float, what: str) -> None:
    if not 0 < seconds <= MAX_S:
        raise UserError(f"{what} wants 0 to {MAX_S:.0f} seconds, got {seconds:g}")


def _check_file(file: File, num_nodes: int) -> None:
    path = PurePosixPath(file.path)
    is_inside = not path.is_absolute() and ".." not in path.parts and path.parts and path.parts[0] not in OWN_FOLDERS
    if not is_inside or "\0" in file.path:
        raise UserError(f"file {file.path!r} is not inside the deployment's folder (or in its run or logs)")
    if "\0" in file.content:
        raise UserError(f"file {file.path!r} holds a NUL byte")
    if not 0 <= file.mode <= 0o777:
        raise UserError(f"file {file.path!r} has mode {file.mode:o}; it wants 0 to 777")
    if any(not 0 <= node < num_nodes for node in file.nodes):
        raise UserError(f"file {file.path!r} is for a node that is not there")


def _check_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(f"{what} wants letters, digits and _ . - (63 at most, first no sign), got {name[:80]!r}")


def _check_word(word: Word, where: str) -> None:
    if isinstance(word, Ref):
        if not is_name(word.name):
            raise UserError(f"{where}: {word.name!r} cannot name an environment variable")
    elif "\0" in (word.path if isinstance(word, Home) else word):
        raise UserError(f"{where}: a word holds a NUL byte")
