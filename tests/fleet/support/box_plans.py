"""A small plan of one launch, for tests of what looks at plans; fields can be changed."""

from typing import Any

from msgspec.structs import replace
from tests.recipes.support.estimate import SPEED

from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.plan import (
    Choice,
    Container,
    Download,
    Emission,
    Launch,
    MemoryMap,
    MemoryRow,
    Node,
    Plan,
    Readiness,
)

GIB = 1 << 30
LAUNCH = Launch(name="server", argv=("python3", "-m", "sglang.launch_server"))
MODEL = Download(repo="openai/gpt-oss-120b", num_bytes=65 * 10**9, exclude=("original/*", "metal/*"))


def small_plan(
    *,
    box: str = "spark",
    launches: tuple[Launch, ...] = (LAUNCH,),
    downloads: tuple[Download, ...] = (),
    image: str | None = None,
    needed: int = 0,
    reserved: int = 0,
    features: tuple[str, ...] = (),
    **choice: Any,
) -> Plan:
    """A plan for `box` as an emitter would make it; with an `image`, its launches run in containers."""
    if image is not None:
        container = Container(name="small-server", image=image, options=("--gpus", "all"))
        launches = tuple(replace(launch, container=container) for launch in launches)
    fields: dict[str, Any] = {
        "model": "gpt-oss-120b",
        "engine": "sglang",
        "version": "0.5.23",
        "image": image,
        "method": "none",
        "context": 4096,
        "concurrency": 1,
        "nodes": (Node(name="here"),),
        "port": 30000,
        "cache": "/nonexistent",
        "directory": "/nonexistent",
        "name": "small",
    }
    return Plan(
        box=parse_box(box),
        choice=Choice(**(fields | choice)),
        emission=Emission(
            launches=launches,
            downloads=downloads,
            readiness=Readiness(path="/health", timeout_s=60, model="m"),
            features=features,
        ),
        memory=MemoryMap(
            rows=(MemoryRow(owner="weights", num_bytes=needed),),
            capacity=100 * GIB,
            reserved=reserved,
            kv_bytes_per_token=1.0,
            max_tokens=1,
        ),
        speed=SPEED,
    )
