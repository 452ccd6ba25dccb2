"""Record types of the knowledge base: hardware, models, heads, engines, measurements. The values are in `data/*.yaml`.

Every record carries where it is from and when that was read. Sizes are bytes, bandwidths bytes per second, versions
strings as the engine prints them. `knowledge.py` reads the files.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Literal

from msgspec import Struct

from eyas.base.serving.engines import Role

__all__ = [
    "CPU",
    "METAL",
    "Acceptance",
    "Engine",
    "Hardware",
    "Head",
    "Image",
    "KnownImage",
    "Measurement",
    "Model",
    "Record",
]

METAL = "metal"  # in place of a compute capability: Apple's GPUs
CPU = "cpu"  # in place of a compute capability, where there is no GPU
Architecture = Literal["aarch64", "x86_64"]
HeadKind = Literal["eagle3", "draft-model"]


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record. `name` is its key in the file; `sources` and `date` (YYYY, YYYY-MM, YYYY-MM-DD) say where from."""

    name: str
    sources: tuple[str, ...]
    date: str


class Hardware(Record, frozen=True, kw_only=True):
    """A kind of GPU and the machine around it. Several are written `NxNAME`, e.g. `2xspark`, `8xb200`.

    More than `gpus_per_node` of them are several machines. `usable_bytes` is what engines can address of one GPU's
    `memory_bytes`; on unified memory `os_reserve_bytes` of it stay with the system.
    """

    title: str
    compute_capability: str
    architectures: tuple[Architecture, ...]
    memory_bytes: int
    usable_bytes: int
    bandwidth: float  # of the datasheet
    measured_bandwidth: float | None = None  # of a streaming read
    unified: bool = False
    os_reserve_bytes: int = 0
    counts: tuple[int, ...] = (1,)  # the N that exist
    gpus_per_node: int = 8
    disk_bandwidth: float = 0.0  # reading a checkpoint, where it is known
    aliases: tuple[str, ...] = ()
    unplanned: str = ""  # why nothing is planned for it, and what to do: known, so that the question has an answer
    device_names: tuple[str, ...] = ()  # as the driver prints them, for the probe
    advice: tuple[str, ...] = ()

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU of NVIDIA's: others' architectures have names instead of numbers."""
        return self.compute_capability[:1].isdigit()


class Model(Record, frozen=True, kw_only=True):
    """A target model and the bytes of its shapes. `name` is how people call it, `repo` its hub id.

    One pass over n rows reads `dense_bytes` + `head_bytes` + the distinct experts of n rows; see `speed.py`.
    """

    title: str
    repo: str
    architecture: str  # of its config.json
    num_layers: int
    num_sliding_layers: int = 0
    window: int = 0  # tokens, of the sliding layers
    num_kv_heads: int
    head_dim: int
    num_attention_heads: int
    hidden_size: int
    vocab_size: int
    num_experts: int = 0
    experts_per_token: int = 0
    num_expert_layers: int = 0
    expert_bytes: int = 0  # of one expert of one layer
    dense_bytes: int  # attention, routers, norms, dense MLPs: read by every pass
    head_bytes: int  # lm_head: read by every pass
    total_bytes: int  # all tensors of the checkpoint
    active_params: float  # that one token reads: without the embedding and the experts that it does not choose
    native_context: int
    weight_format: str  # "mxfp4", "nvfp4", "bf16", "fp32"
    repos: dict[str, str] = {}  # what other engines load instead: {"llama.cpp": "ORG/NAME-GGUF", "ollama": "tag"}
    repo_bytes: dict[str, int] = {}  # how much of it they download and keep, where that is known
    gated: bool = False  # the hub wants a token
    projector_bytes: dict[str, int] = {}  # vision encoder, where an engine keeps it in a file of its own
    files: dict[str, tuple[str, ...]] = {}  # of such a repository, the model first, then the projector; empty: all
    roles: tuple[Role, ...] = ("text",)  # what it can be served as, the usual one first
    pooling: Literal["mean", "cls", "last"] | None = None  # how vectors are made of hidden states
    is_encoder: bool = False  # reads a text at once and keeps no KV cache
    harmony: bool = False
    aliases: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


class Acceptance(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured acceptance length: tokens committed per round, bonus token included, with `draft_tokens` drafts."""

    draft_tokens: int
    length: float
    workload: str
    source: str
    engine: str = ""
    hardware: str = ""


class Head(Record, frozen=True, kw_only=True):
    """A draft head or a draft model of one target.

    Each drafting pass reads `step_bytes`, each round `fusion_bytes` on top (the `fc` over the taps); gathers from the
    embedding are not counted. `taps` are the layers whose output the head reads, -1 the output of the final norm.
    """

    title: str
    repo: str
    kind: HeadKind
    target: str  # name of a Model
    total_bytes: int
    step_bytes: int
    fusion_bytes: int = 0
    kv_bytes_per_token: int
    taps: tuple[int, ...] = ()
    max_positions: int | None = None
    max_draft_tokens: int | None = None  # more than this is known to hurt
    intended_context: tuple[int, int] = (0, 1 << 30)  # tokens, from..to
    intended_concurrency: tuple[int, int] = (1, 1 << 20)
    acceptance: tuple[Acceptance, ...] = ()
    engines: dict[str, str] = {}  # engine -> version range that can load it, e.g. {"sglang": ">=0.5.23"}
    repos: dict[str, str] = {}  # what other engines load instead: {"llama.cpp": "ORG/NAME-GGUF"}
    aliases: tuple[str, ...] = ()
    gated: bool = False
    rank: int = 0  # higher: recommended over others where both suit
    advice: tuple[str, ...] = ()


class Image(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A container image of an engine. `version` is the engine's inside; None where the tag moves."""

    tag: str
    architectures: tuple[Architecture, ...]
    version: str | None = None
    compute_capabilities: tuple[str, ...] = ()  # empty: all that the engine runs on; "12.*" allowed
    nodes: Literal["one", "many", "any"] = "any"
    source: str
    date: str


class KnownImage(Record, frozen=True, kw_only=True):
    """Images that people name with `--image`. `name` is for people, `repositories` are paths without a registry.

    `versions` maps patterns of tags to versions of the engine. Other tags are versions themselves where `is_numbered`;
    else they are months, builds or days, and say nothing. `cuda_13` are patterns of tags that bring CUDA 13, beside
    those that say so themselves (cu130).
    """

    engine: str
    repositories: tuple[str, ...]
    versions: dict[str, str] = {}
    cuda_13: tuple[str, ...] = ()
    is_numbered: bool = True


class Engine(Record, frozen=True, kw_only=True):
    """An engine that eyas can plan for. `versions` is the range that its emitter knows, `version` the default.

    The fields say what it can do, as far as plans depend on it; how much memory and time it takes are formulas
    (`memory.py`, `kv.py`, `speed.py`), its command line is its emitter's.
    """

    title: str
    versions: str
    version: str
    port: int
    images: tuple[Image, ...] = ()  # empty: it runs as a process
    program: str = ""  # that a person installs for it, where there are no images
    unknown_version: str = ""  # that is planned for where nothing tells an image's: the oldest whose options serve all
    image_variables: tuple[str, ...] = ()  # that its images may hold its version in
    distribution: str = ""  # Python package whose metadata give its version; empty: its program does
    runtime: Literal["own", "llama.cpp"] = "own"
    compute_capabilities: tuple[str, ...] = ()  # "9.0", "12.*"; empty: all, and the CPU
    max_nodes: int = 1
    max_gpu_concurrency: int | None = None  # requests that it computes at once on a GPU; None: no limit of its own
    joined_by: Literal["mpi", "ray", "torch"] | None = None  # how its processes on several nodes meet
    tensor_parallel: bool = False  # spreads a model over all GPUs of a box
    expert_parallel: dict[int, int] = {}  # GPUs: over how many parts whole experts are spread; else over one
    claims_share: bool = False  # does not start where the share of memory that it is given is not free
    models: tuple[str, ...] = ()  # names of models it can run; empty: all
    roles: tuple[Role, ...] = ("text",)  # that plans know its options for
    spec_methods: tuple[str, ...] = ()  # "eagle3", "draft-model"
    api_keys: bool = False  # its server can ask clients for one
    folders: bool = True  # loads a checkpoint from a folder
    aliases: tuple[str, ...] = ()
    ready_seconds: tuple[float, float] = (30.0, 600.0)  # from start to ready besides reading the weights
    advice: tuple[str, ...] = ()

    @property
    def is_native(self) -> bool:
        """Whether it runs as a process, not in a container, unless an image is named."""
        return not self.images

    @property
    def is_paged(self) -> bool:
        """Whether requests share the KV cache and wait for room in it; with llama.cpp each has a slot of its own."""
        return self.runtime != "llama.cpp"

    def runs_on(self, compute_capability: str) -> bool:
        known = self.compute_capabilities
        return not known or any(fnmatch(compute_capability, one) for one in known)


class Measurement(Record, frozen=True, kw_only=True):
    """A published figure. It is shown with estimates, and moves those of its engine and box (`published.py`).

    `set_apart` says why it is only shown: a build, hardware or unit that is not the plan's, or not stated. Where
    `is_acceptance_set` the acceptance length was not the head's but set for the measurement (synthetic).
    """

    model: str
    hardware: str  # with count: "spark", "8xb200"
    engine: str
    head: str = ""
    draft_tokens: int = 0
    concurrency: int = 1
    context: int | None = None
    tokens_per_second: float  # aggregate
    baseline_tokens_per_second: float | None = None  # the same without speculation
    acceptance_length: float | None = None
    note: str = ""
    set_apart: str = ""
    is_acceptance_set: bool = False
    grade: Literal["project", "third party", "one user"] = "third party"
