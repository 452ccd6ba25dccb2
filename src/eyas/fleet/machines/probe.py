"""Looks at a machine with one sh script, here or over ssh, and says which box of the table it is.

An unknown GPU becomes hardware of its own, its bandwidth measured or estimated, and is said to be so.
"""

from __future__ import annotations

from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.fleet.machines.bandwidth import measure
from eyas.fleet.machines.machine import GPU_FIELDS, Gpu, Machine, read_machine
from eyas.fleet.machines.node import LocalNode, NodeError, NodeRunner
from eyas.fleet.machines.sections import ask
from eyas.recipes.emit.words import shell
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Box, Word
from eyas.recipes.records import CPU, Hardware

__all__ = ["box_of", "cpu_box", "look", "probe"]

PROBE_S = 60
UNIFIED_RESERVE = 9 << 30  # for the system, where GPU and CPU share the memory
SCRIPT = """
section user; id -un
section architecture; uname -m
section meminfo; cat /proc/meminfo
section gpus; asked nvidia-smi --query-gpu=@FIELDS@ --format=csv,noheader,nounits
section topology; timeout 20 nvidia-smi topo -m 2>/dev/null
section pci
for device in /sys/bus/pci/devices/*; do
  case $(cat "$device/class" 2>/dev/null) in 0x03*) cat "$device/vendor" ;; esac
done
section disk
folder=@FOLDER@
while [ ! -d "$folder" ]; do folder=$(dirname -- "$folder"); done
printf '%s %s\\n' "$(df -Pk -- "$folder" | awk 'NR == 2 { print $4 }')" "$folder"
section docker; asked docker version --format '{{.Server.Version}}'
section runtimes
timeout 20 docker info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>/dev/null
command -v nvidia-container-cli nvidia-ctk
section interfaces
for link in /sys/class/net/*; do
  name=${link##*/}
  [ "$name" = lo ] && continue
  speed=$(cat "$link/speed" 2>/dev/null)
  rdma=$(ls "$link/device/infiniband" 2>/dev/null | head -n 1)
  printf '%s %s %s %s\\n' "$name" "$(cat "$link/operstate")" "${speed:--}" "${rdma:--}"
done
section addresses; ip -json address 2>/dev/null
section firmware
cat /sys/class/dmi/id/product_name /sys/class/dmi/id/bios_version 2>/dev/null
sed -n 's/^DGX_SWBUILD_VERSION=//p' /etc/dgx-release 2>/dev/null
"""


def look(node: NodeRunner, *, cache: Word | None = None) -> Machine:
    """Probe what `node` is and has at the moment; changes nothing. `cache` is where models go (default: HF_HOME).

    Raises NodeError: it cannot be reached, or is no Linux machine.
    """
    folder = '"${HF_HOME:-$HOME/.cache/huggingface}"' if cache is None else shell(cache)
    script = SCRIPT.replace("@FIELDS@", ",".join(GPU_FIELDS)).replace("@FOLDER@", folder)
    sections = ask(node, script, timeout_s=PROBE_S)
    try:
        return read_machine(sections)
    except (KeyError, ValueError) as error:
        raise NodeError(f"{node.name} cannot be probed ({error}); eyas knows Linux machines only") from error


def probe(node: NodeRunner | None = None, *, is_measured: bool = False) -> Box:
    """Probe this machine as a box named "here". `is_measured`: read GPU memory for a second, if torch can do it.

    Raises UserError where there is no GPU that can be used, with the next step.
    """
    node = LocalNode() if node is None else node
    machine = look(node)
    measured = measure(node) if is_measured and machine.gpus else None
    return box_of(machine, bandwidth=measured)


def box_of(machine: Machine, *, bandwidth: float | None = None) -> Box:
    """Return the box that `machine` is; of several kinds of GPU, that with the most memory. UserError without a GPU."""
    whole = [gpu for gpu in machine.gpus if not gpu.is_split]
    if not whole:
        if machine.gpus:
            raise UserError("its GPUs are split by MIG; end that with: sudo nvidia-smi -mig 0")
        why = machine.problems[0] if machine.problems else "this machine has no NVIDIA GPU; plan for one: --on spark"
        raise UserError(why)
    kinds: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in whole:
        kinds.setdefault((gpu.name, gpu.compute_capability), []).append(gpu)
    gpus = max(kinds.values(), key=lambda alike: sum(gpu.memory_bytes or machine.memory_bytes for gpu in alike))
    hardware = _as_found(_known(gpus[0]) or _unknown(gpus[0], machine), gpus[0], machine, bandwidth)
    if machine.architecture not in ("aarch64", "x86_64"):
        raise UserError(f"no engine of ours runs on {machine.architecture}; plan for another machine: --on spark")
    return Box(
        name="here",
        hardware=hardware,
        architecture="aarch64" if machine.architecture == "aarch64" else "x86_64",
        gpus=len(gpus),
        driver=machine.driver,
        is_probed=True,
    )


def cpu_box(machine: Machine) -> Box:
    """Return the box of a machine without a GPU, which can serve small models on its CPU."""
    hardware = knowledge().hardware[CPU]
    memory = machine.memory_bytes
    return Box(
        name="here",
        hardware=replace(hardware, memory_bytes=memory, usable_bytes=memory),
        architecture="aarch64" if machine.architecture == "aarch64" else "x86_64",
        is_probed=True,
    )


def _known(gpu: Gpu) -> Hardware | None:
    """Find the record whose device name and compute capability are those of `gpu`."""
    for hardware in knowledge().hardware.values():
        names = {name.casefold() for name in hardware.device_names}
        if gpu.name.casefold() in names and gpu.compute_capability == hardware.compute_capability:
            return hardware
    return None


def _as_found(hardware: Hardware, gpu: Gpu, machine: Machine, bandwidth: float | None) -> Hardware:
    """Return `hardware` with the sizes of this machine, and its bandwidth where that was measured."""
    return replace(
        hardware,
        memory_bytes=gpu.memory_bytes or machine.memory_bytes,
        usable_bytes=gpu.usable_bytes or machine.memory_bytes,
        measured_bandwidth=bandwidth or hardware.measured_bandwidth,
    )


def _unknown(gpu: Gpu, machine: Machine) -> Hardware:
    """Make hardware from the probe alone. No tool reports bandwidth: it is that of the slowest known relative."""
    major = gpu.compute_capability.partition(".")[0]
    all_known = [item for item in knowledge().hardware.values() if item.is_cuda]
    relatives = [item for item in all_known if item.compute_capability.partition(".")[0] == major] or all_known
    slowest = min(relatives, key=lambda item: item.bandwidth)
    memory = gpu.memory_bytes or machine.memory_bytes
    said = (
        f"{gpu.name} (compute capability {gpu.compute_capability}) is not in the table: nothing about it has been tried"
    )
    guess = f"its bandwidth is taken to be that of {slowest.title} until `eyas doctor --measure` has measured it"
    return Hardware(
        name="-".join(gpu.name.lower().removeprefix("nvidia ").split()),
        sources=("the driver of this machine",),
        date="",
        title=gpu.name,
        compute_capability=gpu.compute_capability,
        architectures=("aarch64",) if machine.architecture == "aarch64" else ("x86_64",),
        memory_bytes=memory,
        usable_bytes=gpu.usable_bytes or memory,
        bandwidth=slowest.bandwidth,
        unified=gpu.memory_bytes is None,
        os_reserve_bytes=UNIFIED_RESERVE if gpu.memory_bytes is None else 0,
        device_names=(gpu.name,),
        advice=(said, guess),
    )
