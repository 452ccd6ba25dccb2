"""A pool that is a GPU: its driver says what is used, and by whom."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.fleet.support.lab import engine
from tests.router.support.pooled import MIB, Ballast, pooled, write_file

from eyas.router.backends.orchestrator import Times

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


@contextmanager
def foreign(mib: int) -> Iterator[None]:
    """A process that this router does not know, and what it holds."""
    argv = engine("--gpu-mib", mib, "--say", "up", name="foreign")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "up\n"
            yield
        finally:
            process.kill()


@pytest.mark.gpu
def test_a_foreign_process_grows(lab):
    """At 70 % the GPU is watched, at 80 % what is idle goes, at 90 % all that is not pinned."""
    engines = [
        Ballast("kept", 1, gpu_mib=4 << 10, more={"pinned": True}),
        Ballast("idle", 1, gpu_mib=9 << 10, more={"priority": "critical"}),
        Ballast("busy", 1, gpu_mib=9 << 10, answer_s=30.0, more={"priority": "low"}),
        Ballast("next", 1, gpu_mib=2 << 10),
    ]
    path = write_file(lab.tmp, engines, None, lab.journal)

    async def main():
        async with pooled(path, Times(calm_s=1.0, watched_s=0.5, returning_s=0.1)) as box:
            assert (await box.ask("idle"))[0] == 200
            asked = asyncio.create_task(box.ask("busy"))
            await box.until(lambda: box.loaded() == {"kept", "idle", "busy"})
            policy = box.router.orchestrator.pools[0].policy
            with foreign(33 << 10):
                await box.until(lambda: policy.level == "warning")
                await asyncio.sleep(2)
                assert not box.notes("unload") and policy.is_watched
                with foreign(7 << 10):
                    await box.until(lambda: box.notes("unloaded") == ["idle"])
                    assert box.notes("unload") == ["idle"] and policy.level != "critical"
                    with foreign(12 << 10):
                        await box.until(lambda: policy.level == "critical")
                        await asyncio.sleep(3)
                        assert box.loaded() == {"kept", "busy"} and box.notes("unload") == ["idle"]
                        with foreign(6 << 10):
                            await box.until(lambda: box.notes("unload") == ["idle", "busy"])
                            status, _ = await asked
                            assert status >= 500  # its client hears of it
                            await box.until(lambda: box.loaded() == {"kept"})
            assert (await box.ask("next"))[0] == 200
            print("\n", *box.told(), sep="\n")

    asyncio.run(main())


@pytest.mark.gpu
def test_a_gpu_that_is_not_there():
    from eyas.router.memory.meters import Gpu, MeterError

    reading = Gpu(0).read({})
    assert 0 <= reading.used < reading.total and reading.total % MIB == 0
    with pytest.raises(MeterError, match="nvidia-smi says"):
        Gpu(63).read({})
