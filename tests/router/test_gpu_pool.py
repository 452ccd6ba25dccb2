"""A pool that is a GPU: its driver says what is used, and by whom."""

import asyncio
import subprocess

import pytest
from tests.router.support.pooled import MIB, Ballast, pooled, write_file

GIB = 1 << 30


def used_mib() -> int:
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.mark.gpu
def test_two_models_take_turns_on_a_gpu(lab):
    """The second one is 30 % larger than it declares; the first one's memory must be back before it loads."""
    engines = [
        Ballast("large", 1, gpu_mib=36 << 10, load_s=0.1),
        Ballast("other", 1, gpu_mib=30 << 10, load_s=0.1, declared=0.77),
        Ballast("side", 1, gpu_mib=4 << 10, load_s=0.1, more={"pinned": True}),
    ]
    path = write_file(lab.tmp, engines, None, lab.journal)
    before = used_mib()

    async def main():
        async with pooled(path) as box:
            await box.until(lambda: box.state("side") == "ready")
            for name in ("large", "other", "large"):
                assert (await box.ask(name))[0] == 200
            assert box.loaded() == {"large", "side"}
            assert box.notes("unload") == ["large", "other"] and not box.notes("late"), box.told()
            (pool,) = box.router.orchestrator.status()
            assert pool.total == 79 * GIB and pool.used >= 40 * GIB
            await box.until(lambda: box.router.orchestrator.pools[0].policy.members["large"].footprint.is_learnt)
            (pool,) = box.router.orchestrator.status()
            large = next(one for one in pool.members if one.backend == "large")
            assert 36 * GIB <= large.steady <= 37.5 * GIB, large
            print("\n", *box.told(), f"before {before} MiB, now {used_mib()} MiB", large, sep="\n")

    asyncio.run(main())
    assert used_mib() >= before + (40 << 10)  # engines go on


@pytest.mark.gpu
def test_a_gpu_that_is_not_there():
    from eyas.router.memory.meters import Gpu, MeterError

    reading = Gpu(0).read({})
    assert 0 <= reading.used < reading.total and reading.total % MIB == 0
    with pytest.raises(MeterError, match="nvidia-smi says"):
        Gpu(63).read({})
