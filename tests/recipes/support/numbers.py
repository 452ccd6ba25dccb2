"""Choices for the tests of memory and speed, by the names that people use."""

from msgspec.structs import replace

from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Home, Node

__all__ = ["GIB", "setup"]

GIB = 1 << 30


def setup(on, engine, *, model="gpt-oss-120b", head=None, drafts=0, bandwidth=1.0, **changes):
    """(choice, box, model, head). The engine is the default version's, on all GPUs of the box."""
    known, box = knowledge(), parse_box(on)
    box = replace(box, hardware=replace(box.hardware, bandwidth=box.hardware.bandwidth * bandwidth))
    record = known.heads[head] if head else None
    choice = Choice(
        model=model,
        engine=engine,
        version=known.engines[engine].version,
        image=None,
        method=record.kind if record else "none",
        head=head,
        draft_tokens=drafts,
        context=8192,
        concurrency=1,
        tensor_parallel=box.num_gpus,
        nodes=(Node(name="a"),) * box.nodes,
        port=8000,
        cache=Home(path=".cache/huggingface"),
        directory=Home(path="plan"),
        name="plan",
    )
    return replace(choice, **changes), box, known.models[model], record
