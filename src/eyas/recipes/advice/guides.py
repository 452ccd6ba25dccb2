"""Compares a plan with the commands of published guides, element by element, and gives the reason for each deviation.

A guide's command is data (`data/guides.yaml`): its elements are flags (`flag:--x`), variables (`env:X`), the image,
what `docker run` and `mpirun` are given (`docker:--x`, `mount:TARGET`, `mpirun:-x X`), YAML values (`yaml:a.b`) and
the positional `model`. The same elements are read from the plan's own command. Reasons are looked up in the guide,
then in `data/elements.yaml`; where none is written, one is derived from the difference itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from msgspec import Struct, field

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.recipes.advice.facts import FLAG, flags_of, settings, text_of
from eyas.recipes.knowledge.tables import DATA, read
from eyas.recipes.plan import Box, Choice, Deviation, Emission, Launch
from eyas.recipes.records import Record
from eyas.recipes.versions import compare

__all__ = ["Elements", "Guide", "Step", "deviations", "elements_of", "guides"]

# The word of a command after which the server's own arguments begin.
PROGRAMS = {"sglang": "sglang.launch_server", "tensorrt-llm": "trtllm-serve", "vllm": "serve"}
SPECULATION = re.compile(r"specul|draft", re.IGNORECASE)
NAMED_OPTIONS = ("--ulimit", "--device")  # of docker run: they come several times and differ in their value


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of a guide besides the command. It counts as left out where no word or file holds `marker`."""

    theirs: str
    marker: str
    ours: str = ""
    why: str


class Guide(Record, frozen=True, kw_only=True):
    """A command of a guide and the plans that it can be compared with: engine, model, hardware, machines.

    `instead` names the element that takes the place of another; `why` has the reasons by element.
    """

    title: str
    engine: EngineName
    models: tuple[str, ...]
    hardware: tuple[str, ...]
    nodes: int = 1
    elements: dict[str, str]
    instead: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


class Elements(Record, frozen=True, kw_only=True):
    """Reasons why eyas's command for one engine (or "all") lacks or changes an element of any guide.

    `added` names those that are worth mentioning where a guide has nothing in their place.
    """

    why: dict[str, str]
    added: tuple[str, ...] = ()


@cache
def guides() -> tuple[Guide, ...]:
    """Return all commands of all guides."""
    return tuple(read(DATA / "guides.yaml", Guide).values())


@cache
def _elements() -> dict[str, Elements]:
    return read(DATA / "elements.yaml", Elements)


def deviations(choice: Choice, box: Box, emission: Emission) -> tuple[Deviation, ...]:
    """List what the plan changes or leaves out of the guides for this engine, model and box, each with its reason.

    It also lists what the plan adds, where that is worth a sentence; () where there is no guide.
    """
    ours = elements_of(choice, emission)
    text = "\n".join(_texts(emission))
    return tuple(
        deviation
        for guide in guides()
        if guide.engine == choice.engine
        and choice.model in guide.models
        and box.hardware.name in guide.hardware
        and len(choice.nodes) == guide.nodes
        for deviation in (*_differences(guide, ours, choice), *_steps(guide, text))
    )


def elements_of(choice: Choice, emission: Emission) -> dict[str, str]:
    """The elements of the command that starts the server: the last one on the first machine that keeps running."""
    server = emission.server
    around = next((launch for launch in emission.launches if launch.name == server.inside), server)
    found = dict(_around(around))
    found |= {f"env:{variable.name}": text_of(variable.value) for variable in server.env}
    found |= _command(choice, [text_of(word) for word in server.argv])
    for file in emission.files:
        found |= {f"yaml:{path}": value for path, value in settings(file).items()}
    return found


def _around(launch: Launch) -> Iterator[tuple[str, str]]:
    for variable in launch.env:
        yield f"env:{variable.name}", text_of(variable.value)
    if launch.container is None:
        return
    yield "image", launch.container.image
    for flag, value in flags_of(launch.container.options):
        name, _, setting = value.partition("=")
        yield (f"docker:{flag} {name}", setting) if flag in NAMED_OPTIONS else (f"docker:{flag}", value)
    for mount in launch.container.mounts:
        yield f"mount:{mount.target}", text_of(mount.source) + (":ro" if mount.read_only else "")


def _command(choice: Choice, words: list[str]) -> dict[str, str]:
    program = PROGRAMS.get(choice.engine)
    start = words.index(program) + 1 if program in words else 1
    exported = [value.partition("=") for flag, value in flags_of(words[:start]) if flag == "-x"]
    found = {f"mpirun:-x {name}": value for name, _, value in exported}
    arguments = words[start:]
    if arguments and not FLAG.fullmatch(arguments[0].partition("=")[0]):
        found["model"] = arguments[0]
    return found | {f"flag:{flag}": value for flag, value in flags_of(arguments)}


def _differences(guide: Guide, ours: Mapping[str, str], choice: Choice) -> Iterator[Deviation]:
    for key, theirs in guide.elements.items():
        mine = key if key in ours else guide.instead.get(key, key)
        if mine == key and key in ours and _same(theirs, ours[key]):
            continue
        yield Deviation(
            guide=guide.title,
            theirs=_shown(key, theirs),
            ours=_shown(mine, ours[mine]) if mine in ours else "",
            why=_why(guide, key, mine, theirs, ours.get(mine), choice),
        )
    mentioned = {*guide.elements, *(guide.instead[key] for key in guide.elements if key in guide.instead)}
    for elements in _elements_for(choice):
        for key in elements.added:
            if key in ours and key not in mentioned:
                why = guide.why.get(key, elements.why[key])
                yield Deviation(guide=guide.title, theirs="", ours=_shown(key, ours[key]), why=why)


def _steps(guide: Guide, text: str) -> Iterator[Deviation]:
    for step in guide.steps:
        if step.marker not in text:
            yield Deviation(guide=guide.title, theirs=step.theirs, ours=step.ours, why=step.why)


def _texts(emission: Emission) -> Iterator[str]:
    for launch in emission.launches:
        yield " ".join(text_of(word) for word in launch.argv)
    for file in emission.files:
        yield file.content


def _elements_for(choice: Choice) -> list[Elements]:
    """Return the entries for the engine, then those for all."""
    return [_elements()[name] for name in (choice.engine, "all") if name in _elements()]


def _why(guide: Guide, key: str, mine: str, theirs: str, ours: str | None, choice: Choice) -> str:
    if choice.method == "none" and ours is None and SPECULATION.search(key):
        return "this plan drafts nothing; its reasons say why"
    for reasons in (guide.why, *(elements.why for elements in _elements_for(choice))):
        for name in (key, mine, _family(key), _family(mine)):
            if name in reasons:
                return reasons[name]
    if key == "image" and ours is not None:
        return _about_images(theirs, ours)
    if ours is None:
        return f"this plan does not set it: {choice.engine} {choice.version} keeps its own default"
    return "this plan's value for your box, --context and --concurrency"


def _family(key: str) -> str:
    """Return `mount:*` for `mount:/models`: reasons that hold for all of a kind."""
    return key.partition(":")[0] + ":*"


def _about_images(theirs: str, ours: str) -> str:
    repository, _, tag = ours.rpartition(":")
    their_repository, _, their_tag = theirs.rpartition(":")
    if repository != their_repository:
        return "another image: the one known for this version, box and processor"
    try:
        order = compare(tag, their_tag)
    except UserError:
        return "another tag of the same image: the one known for this version, box and processor"
    return f"{'a newer' if order > 0 else 'an older'} image ({tag} instead of {their_tag})"


def _same(theirs: str, ours: str) -> bool:
    try:
        return float(theirs) == float(ours)
    except ValueError:
        return theirs.rstrip("/") == ours.rstrip("/")


def _shown(key: str, value: str) -> str:
    kind, _, name = key.partition(":")
    if not name:
        return value
    if kind == "mount":
        return f"-v {value.removesuffix(':ro')}:{name}" + (":ro" if value.endswith(":ro") else "")
    if kind == "yaml":
        return f"{name}: {value}"
    if kind == "env":
        return f"{name}={value}"
    named = kind == "docker" and name.startswith(NAMED_OPTIONS)
    return f"{name}={value}" if named and value else f"{name} {value}".rstrip()
