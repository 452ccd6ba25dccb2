"""Lines of sh that check a node before anything is written, downloaded or started: programs, port, GPU, room.

What costs nothing comes first, pulling an image last. Preflight (`fleet/preflight/`) does the same for `eyas up`, and
reports everything at once; a script ends at the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eyas.base.units import readable
from eyas.recipes.emit import blocks
from eyas.recipes.emit.words import shell
from eyas.recipes.engines import front
from eyas.recipes.engines.common import base_url, below
from eyas.recipes.engines.install import how_to_install
from eyas.recipes.knowledge.drivers import least_driver
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Container, Launch, Plan, Word
from eyas.recipes.records import METAL

__all__ = ["check", "for_downloads", "in_job"]

PROBES = """\
asked_gpus() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits; }
driver_from() { # NUMBER WHY
    driver=$(asked_gpus driver_version | head -n 1) || :
    case $driver in [0-9]*) ;; *) fail "nvidia-smi shows no GPU: $driver" ;; esac
    [ "${driver%%.*}" -ge "$1" ] || fail "driver $driver is older than $1: $2; install driver $1 or later"
}
gpus_with() { # NUMBER MIB WORDS
    found=$(asked_gpus memory.free | awk -v least="$2" '$1 + 0 >= least { n++ } END { print n + 0 }')
    [ "$found" -ge "$1" ] || fail "$3 must be free on $1 of the GPUs, and are on $found; end what uses them: nvidia-smi"
}
memory_of() { # KIB WORDS: reclaimable cache counts as free
    free=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
    [ "${free:-0}" -ge "$1" ] ||
        fail "$2 of memory are needed, $((${free:-0} / 1048576)) GiB are free; end what uses it: ps aux --sort=-rss"
}"""
PROBES_ON_MAC = """\
mac_gpu_may_have() { # MIB WORDS: by default macOS leaves the GPU three quarters of the memory
    most=$(sysctl -n iogpu.wired_limit_mb 2>/dev/null) || :
    [ "${most:-0}" -gt 0 ] || most=$(($(sysctl -n hw.memsize) * 3 / 4194304))
    [ "$most" -ge "$1" ] ||
        fail "$2 are needed, macOS lets the GPU have $((most / 1024)) GiB; for more: sudo sysctl iogpu.wired_limit_mb=N"
}"""
ROOM = """\
lacking=0
lacks() { # KIB FOLDER: what is still to be downloaded into it
    have=$(du -sk -- "$2" 2>/dev/null | awk '{ print $1 }') || :
    [ "${have:-0}" -ge "$1" ] || lacking=$((lacking + $1 - ${have:-0}))
}
room_in() { # FOLDER
    place=$1
    while [ ! -d "$place" ]; do place=$(dirname -- "$place"); done
    free=$(df -Pk -- "$place" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$lacking" ] ||
        fail "$((lacking / 1048576 + 1)) GiB are still to download, $place has $((free / 1048576)) GiB free"
}"""
INSTALL = {
    "docker": "see https://docs.docker.com/engine/install/",
    "curl": "install it with the package manager",
    "eyas": "it is the router in front of the engine; install its wheel: pip install eyas-*.whl",
    "hf": "install it with: pip install -U huggingface_hub",
    "nvidia-smi": "install the NVIDIA driver",
}
OF_ALL = ("sh", "bash")  # programs that every system has
WHEEL = "dist/eyas-*.whl"  # what the Dockerfile copies
NO_WHEEL = f"the image is built from {WHEEL} next to this script; put the wheel there (in a checkout: make wheel)"
BUILD = "build it as its Dockerfile says: in a checkout, or with the files of --emit compose"
DOCKER_ANSWERS = """\
docker info >/dev/null 2>&1 ||
    fail 'docker does not answer; is it running, and are you in the docker group?'"""
SLACK = 0.95  # of a download that is there: file systems and tables count a little differently


def check(plan: Plan, node: int, *, builds: bool = False) -> list[str]:
    """Write lines that check what must hold before anything is touched; what will be started must not run already.

    `builds`: the format builds the images that no registry has, next to the script; else they must be there.
    """
    launches = [launch for launch in plan.emission.launches if launch.node == node]
    containers = [launch.container for launch in launches if launch.container is not None]
    lines = [*_programs(plan, node, launches)]
    for launch in launches:
        if not launch.is_once:
            test = f"runs {shell(blocks.pid_file(plan, launch))}"
            if launch.container is not None:
                test = f"is_there {shell(launch.container.name)}"
            lines.append(f"if {test}; then fail {shell(f'{launch.name} is there already; stop it first')}; fi")
    if node == 0:
        for port in front.ports(plan):
            url = shell(base_url(plan.choice, port) + "/")
            lines += [
                "code=0",
                f"curl {blocks.CURL} --output /dev/null --max-time 2 {url} || code=$?",
                f"[ \"$code\" -eq 7 ] || fail 'port {port} is in use'",
            ]
    lines += [*_memory(plan, containers), *_room(plan)]
    if plan.box.hardware.unified and plan.box.hardware.compute_capability != METAL:
        lines.append("say 'hint: the page cache counts as used memory here; to drop it:'")
        lines.append("say \"    sudo sh -c 'sync; echo 3 >/proc/sys/vm/drop_caches'\"")
    return [*lines, *_images(containers, builds)]


def in_job(plan: Plan, node: int) -> list[str]:
    """Write lines that check, on a node that Slurm gave, the programs, the GPUs and the memory.

    One launch may have tasks on all nodes, so its image counts on each.
    """
    launches = [launch for launch in plan.emission.launches if launch.node == node]
    containers = [launch.container for launch in plan.emission.launches if launch.container is not None]
    router = [f"need eyas {shell(INSTALL['eyas'])}"] if node == 0 and front.has_router(plan.emission) else []
    return [*router, *_native(plan, launches), *_memory(plan, containers)]


def for_downloads(plan: Plan) -> list[str]:
    """Write lines that check what the downloads alone need: `hf`, and room on the disk."""
    return [f"need hf {shell(INSTALL['hf'])}", *_room(plan)] if plan.emission.downloads else []


def _programs(plan: Plan, node: int, launches: Sequence[Launch]) -> Iterator[str]:
    """Write lines for the tools of the script, and for the engine's own program where it runs as a process."""
    has_docker = any(launch.container or launch.inside for launch in launches)
    tools = {"docker": has_docker, "eyas": node == 0 and front.has_router(plan.emission), "curl": node == 0}
    tools |= {"hf": bool(plan.emission.downloads), "nvidia-smi": plan.box.hardware.is_cuda}
    yield from (f"need {tool} {shell(INSTALL[tool])}" for tool, is_needed in tools.items() if is_needed)
    yield from _native(plan, launches)
    if has_docker:
        yield DOCKER_ANSWERS


def _native(plan: Plan, launches: Sequence[Launch]) -> Iterator[str]:
    choice = plan.choice
    native = [launch for launch in launches if not (launch.container or launch.inside or launch.name == front.LAUNCH)]
    for program in dict.fromkeys(launch.argv[0] for launch in native):
        if program not in OF_ALL:
            how = how_to_install(choice, knowledge().engines[choice.engine], plan.box)
            yield f"need {shell(program)} {shell(how)}"


def _memory(plan: Plan, containers: Sequence[Container]) -> list[str]:
    box, memory = plan.box, plan.memory
    takes_share = knowledge().engines[plan.choice.engine].claims_share
    wanted = max(memory.needed, memory.reserved if takes_share else 0)
    lines = []
    if box.hardware.compute_capability == METAL:
        return [PROBES_ON_MAC, f"mac_gpu_may_have {memory.needed >> 20} {shell(readable(memory.needed))}"]
    if plan.box.hardware.is_cuda:
        images = [container.image for container in containers]
        least, why = least_driver(box.hardware.compute_capability, box.hardware.title, images)
        lines.append(f"driver_from {least} {shell(why)}")
        if not box.hardware.unified:
            lines.append(f"gpus_with {box.gpus} {memory.needed >> 20} {shell(readable(memory.needed))}")
    if box.hardware.unified:
        lines.append(f"memory_of {(wanted + memory.host) >> 10} {shell(readable(wanted + memory.host))}")
    return [PROBES, *lines] if lines else []


def _room(plan: Plan) -> list[str]:
    """Write lines that compare what is still to be downloaded with what the disk has free."""
    cache, lines = plan.choice.cache, []
    for download in plan.emission.downloads:
        folder: Word = below(cache, f"hub/models--{download.repo.replace('/', '--')}")
        lines.append(f"lacks {int(download.num_bytes * SLACK) >> 10} {shell(folder)}")
    return [ROOM, *lines, f"room_in {shell(cache)}"] if lines else []


def _images(containers: Sequence[Container], builds: bool) -> list[str]:
    lines = []
    for name, is_built in {one.image: one.is_built for one in containers}.items():
        registry = name.partition("/")[0]
        login = f"docker login {registry}" if "." in registry else "docker login"
        quoted = shell(name)
        here = f"docker image inspect {quoted} >/dev/null 2>&1"
        if is_built and builds:
            lines += [f'ls "$(dirname "$0")"/{WHEEL} >/dev/null 2>&1 ||', f"    fail {shell(NO_WHEEL)}"]
        elif is_built:
            lines += [f"{here} ||", f"    fail {shell(f'{name} is in no registry and not here; {BUILD}')}"]
        else:
            lines.append(f"{here} || docker pull {quoted} ||")
            lines.append(f"    fail {shell(f'cannot pull {name}; if the registry wants to know who you are: {login}')}")
    return lines
