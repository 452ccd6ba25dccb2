"""A plan: which engine, head and flags for a model on a box, why, and the exact things to start. Types only.

A plan is complete: `eyas up PLAN.yaml` needs nothing else. Secrets are referenced, never held.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from eyas.base.serving.engines import EngineName, Role
from eyas.recipes.records import Architecture, Hardware

__all__ = [
    "AtContext",
    "Box",
    "Choice",
    "Container",
    "Deviation",
    "Download",
    "Drafts",
    "Emission",
    "EnvVar",
    "EvidenceLevel",
    "EvidenceRow",
    "File",
    "Home",
    "Launch",
    "Measured",
    "MemoryMap",
    "MemoryRow",
    "Mount",
    "Node",
    "Note",
    "Plan",
    "Published",
    "Range",
    "Readiness",
    "Ref",
    "SpeedEstimate",
    "Wait",
    "Word",
]

Purpose = Literal["chat", "claude-code", "discord", "batch"]


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything that is written to a plan file."""


class Ref(Data, frozen=True, tag_field="expand", tag="env"):
    """The value of environment variable `name` where the plan is started. It is never written down."""

    name: str


class Home(Data, frozen=True, tag_field="expand", tag="home"):
    """`path` below the home directory of the node where it is used."""

    path: str


Word = str | Ref | Home  # one argument; a str is meant literally, byte for byte


class Box(Data, frozen=True, kw_only=True):
    """The hardware that a plan is for: `nodes` machines with `gpus` GPUs each. `name` is e.g. `2xspark` or `here`."""

    name: str
    hardware: Hardware
    architecture: Architecture
    nodes: int = 1
    gpus: int = 1
    driver: str = ""
    is_probed: bool = False  # of this machine; else from the table

    @property
    def num_gpus(self) -> int:
        return self.nodes * self.gpus


class Node(Data, frozen=True, kw_only=True):
    """A machine of a plan, the first is rank 0. `ssh` is a destination such as `user@host`; None: this machine."""

    name: str
    ssh: str | None = None
    address: str = "127.0.0.1"  # at which the other nodes reach it
    interfaces: tuple[str, ...] = ()


class Choice(Data, frozen=True, kw_only=True):
    """All decisions, made. Emitters turn it into commands and decide nothing that a person would want to know."""

    model: str  # name in models.yaml
    model_path: str | None = None  # a folder instead of the hub's repository
    engine: EngineName
    version: str
    is_version_known: bool = True  # else an image's, of which nothing tells it: options that all versions have
    image: str | None  # None: a native process
    method: Literal["none", "eagle3", "draft-model"]
    head: str | None = None  # name in heads.yaml
    head_path: str | None = None
    draft_tokens: int = 0
    are_drafts_fixed: bool = False  # asked for; an engine that adapts them by itself must not
    context: int
    concurrency: int
    role: Role = "text"
    purpose: Purpose = "chat"
    tools: bool = True
    tensor_parallel: int = 1
    expert_parallel: int = 1
    memory_fraction: float | None = None  # of the GPU, in the sense of the engine's own flag
    memory_cap: int | None = None  # bytes that it may take of one GPU, or of a box with unified memory; --memory
    kv_dtype: Literal["auto", "fp8"] = "auto"
    has_random_weights: bool = False  # made in memory, for speed without files; SIMULATED
    simulate_acceptance: str | None = None  # of random weights, as `--simulate-acceptance` says it
    nodes: tuple[Node, ...]
    listen: str = "127.0.0.1"
    port: int
    api_key_env: str | None = None
    cache: Word  # the Hugging Face cache (HF_HOME) on every node
    directory: Word  # of this deployment, on every node: files, logs
    name: str  # of the deployment
    binary: str | None = None  # of a native engine, where it is not on the path


class EnvVar(Data, frozen=True, kw_only=True):
    name: str
    value: Word


class File(Data, frozen=True, kw_only=True):
    """A file to write before anything starts, at `path` below the deployment's directory, on every node in `nodes`."""

    path: str
    content: str
    mode: int = 0o644
    nodes: tuple[int, ...] = (0,)


class Mount(Data, frozen=True, kw_only=True):
    source: Word
    target: str
    read_only: bool = False


class Container(Data, frozen=True, kw_only=True):
    """A container. `name` is unique on its node; `options` are more arguments of `docker run`, e.g. ("--gpus", "all").

    `is_built`: no registry has the image; it is made from the Dockerfile among the plan's files.
    """

    name: str
    image: str
    options: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    is_built: bool = False


class Wait(Data, frozen=True, kw_only=True):
    """Condition for a launch to count as up: a regular expression in its log, a TCP port on its node, or none."""

    log: str | None = None
    port: int | None = None
    timeout_s: float = 120.0


class Launch(Data, frozen=True, kw_only=True):
    """A process of a plan. Launches start in order, each when the one before is up, and stop in reverse.

    `container`: it runs as the main process of a new container; `inside`: in the container of that launch
    (docker exec); neither: on the node itself. `is_once`: it runs to its end and must exit 0 (a download, a check).
    """

    name: str
    node: int = 0
    argv: tuple[Word, ...]
    env: tuple[EnvVar, ...] = ()
    container: Container | None = None
    inside: str | None = None
    wait: Wait = Wait()
    is_once: bool = False


class Readiness(Data, frozen=True, kw_only=True):
    """The server answers at `path` with 200 when it is ready, and must then answer a question to `model` sensibly."""

    path: str
    timeout_s: float
    model: str  # as requests name it


class Download(Data, frozen=True, kw_only=True):
    """Files that must be on every node's disk before the start; `exclude` are glob patterns (the `original/` twins)."""

    repo: str
    num_bytes: int
    revision: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    gated: bool = False


class Emission(Data, frozen=True, kw_only=True):
    """Output of an emitter for a choice. `features` are the tags of `Facts` that the command holds."""

    launches: tuple[Launch, ...]
    files: tuple[File, ...] = ()
    downloads: tuple[Download, ...] = ()
    readiness: Readiness
    features: tuple[str, ...] = ()

    @property
    def server(self) -> Launch:
        """The launch that answers requests: the last on the first node that keeps running."""
        return [launch for launch in self.launches if not launch.is_once and launch.node == 0][-1]


class Note(Data, frozen=True, kw_only=True):
    """A reason or a warning. `issue` is the id of a known issue or tuning rule, `source` where it is from."""

    text: str
    source: str = ""
    issue: str = ""


class Deviation(Data, frozen=True, kw_only=True):
    """A difference between a plan and a guide's command, and its reason."""

    guide: str
    theirs: str
    ours: str
    why: str


EvidenceLevel = Literal[
    "emitted only", "accepted by the engine's own parser", "ran on a stand-in", "ran on this hardware"
]


class EvidenceRow(Data, frozen=True, kw_only=True):
    part: str  # "command line", "engine YAML", "two-node start", ...
    level: EvidenceLevel
    detail: str = ""


class MemoryRow(Data, frozen=True, kw_only=True):
    owner: str
    num_bytes: int
    note: str = ""


class MemoryMap(Data, frozen=True, kw_only=True):
    """Memory of one GPU (all are alike). `rows` add up to what is needed; `capacity` is what the engine may use.

    `host` is what its processes take besides, where that is the same memory. `cap` is the limit for both together.
    """

    rows: tuple[MemoryRow, ...]
    capacity: int
    reserved: int  # what the engine takes at start, whether it needs it or not
    kv_bytes_per_token: float
    max_tokens: int  # of KV cache that fit, over all sequences
    host: int = 0
    cap: int | None = None

    @property
    def needed(self) -> int:
        return sum(row.num_bytes for row in self.rows)

    @property
    def fits(self) -> bool:
        return self.needed <= self.capacity


class Range(Data, frozen=True, kw_only=True):
    low: float
    high: float


class Published(Data, frozen=True, kw_only=True):
    text: str
    source: str
    date: str


class AtContext(Data, frozen=True, kw_only=True):
    """Speed in aggregate tokens per second when every request has `context` tokens in the cache."""

    context: int
    tokens_per_second: Range
    at_once: int | None = None  # requests that run, where the others have to wait for room; None: not known


Drafts = int | Literal["auto"]
Finding = Literal["pays", "loses", "not shown"]


class Measured(Data, frozen=True, kw_only=True):
    """Figures of one arm at one load on the machine of the plan: the mean of `windows`, with 95 % intervals.

    Of fewer than three windows or pairs there is no interval worth the name, and it is None. `draft_tokens` is "auto"
    where the engine chose them itself. `speedup` and `finding` compare with the same engine without drafts. `expected`
    is what the model of speed said of `tokens_per_second`.
    """

    engine: EngineName
    version: str
    head: str = ""
    draft_tokens: Drafts = 0
    context: int  # tokens of the prompts, about
    concurrency: int
    windows: int
    tokens_per_second: float  # over all conversations
    interval: Range | None
    expected: Range
    speedup: Range | None = None
    finding: Finding = "not shown"
    first_token_s: float | None = None
    acceptance_length: float | None = None
    date: str


class SpeedEstimate(Data, frozen=True, kw_only=True):
    """Ranges, from bytes and bandwidth. Tokens per second are aggregate over `concurrency`, with short contexts;
    `at_context` has longer ones up to a full context. `measured` was, on this machine, and stands beside them."""

    round_bytes: float
    baseline_bytes: float
    break_even_length: float  # acceptance length below which speculation loses
    acceptance: Range | None
    tokens_per_second: Range
    baseline_tokens_per_second: Range
    speedup: Range
    first_token_s: Range
    load_s: Range
    at_context: tuple[AtContext, ...] = ()
    published: tuple[Published, ...] = ()
    at_once: int | None = None  # requests that run with short contexts
    measured: Measured | None = None


class Plan(Data, frozen=True, kw_only=True):
    """A complete plan; `version` of the file format is 1."""

    format: int = 1
    box: Box
    choice: Choice
    emission: Emission
    memory: MemoryMap
    speed: SpeedEstimate
    reasons: tuple[Note, ...] = ()
    refused: tuple[Note, ...] = ()  # other engines and heads, each with what speaks against it
    warnings: tuple[Note, ...] = ()
    tuning: tuple[Note, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    deviations: tuple[Deviation, ...] = ()
