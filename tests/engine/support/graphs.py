"""Which graphs a GPU would capture, seen on a CPU."""

from eyas.engine.round.stages import FixedShapes
from eyas.engine.step.scheduler import max_tiles


class Keys(FixedShapes):
    """Runs stages as they are, as if it captured them; keeps what graphs there would be."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.keys = set()

    def run(self, key, stage, *inputs):
        self.keys.add(key)
        return stage(*inputs)


def keep_keys(core):
    """Have an engine use such stages, which are returned."""
    config = core.scheduler.config
    stages = Keys(max_sequences=config.num_slots, max_tiles=max_tiles(config.chunk_tokens))
    core.runner.stages = core.runner.drafter.stages = stages
    if core.runner.ngram_drafter is not None:
        core.runner.ngram_drafter.stages = stages
    return stages
