"""Nothing is kept between programs, and none outlives the task or the process that waits for it."""

import asyncio
import signal
import subprocess
import sys

import pytest
from tests.sandbox.support.outside import left_behind, marked

from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.ways import BUBBLEWRAP, NAMESPACES

BOTH = pytest.mark.parametrize("way", [NAMESPACES, pytest.param(BUBBLEWRAP, marks=pytest.mark.slow)])
STARTER = """
import asyncio, sys
from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.ways import find_bubblewrap, with_bubblewrap, with_namespaces
way = with_namespaces if sys.argv[1] == "user namespaces" else with_bubblewrap(find_bubblewrap())
asyncio.run(Sandbox(way, "").run(sys.argv[2]))
"""


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


@BOTH
def test_nothing_is_kept(ways, way):
    sandbox = Sandbox(ways(way), way)

    async def both():
        first = await sandbox.run("x = 5\nopen('kept', 'w').write('5')\nprint(x)")
        return first, await sandbox.run("import os\nprint(os.listdir('.'), 'x' in globals())")

    first, second = asyncio.run(both())
    assert first.text == "5\n" and first.is_good and second.text == "['main.py'] False\n"


@BOTH
def test_programs_run_side_by_side(ways, way):
    sandbox = Sandbox(ways(way), way)

    async def several():
        return await asyncio.gather(*(sandbox.run(f"print({number} ** 2)") for number in range(4)))

    assert [outcome.text for outcome in asyncio.run(several())] == ["0\n", "1\n", "4\n", "9\n"]


@BOTH
def test_a_program_ends_with_the_task_that_waits_for_it(ways, way):
    sandbox = Sandbox(ways(way), way)

    async def cancelled():
        task = asyncio.create_task(sandbox.run(marked("import time\ntime.sleep(60)")))
        await until(left_behind)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not left_behind()


@BOTH
def test_a_program_ends_with_the_process_that_started_it(ways, way):
    """Even by kill -9."""
    ways(way)

    async def killed():
        process = subprocess.Popen([sys.executable, "-c", STARTER, way, marked("import time\ntime.sleep(60)")])
        await until(left_behind)
        process.send_signal(signal.SIGKILL)
        process.wait()
        await until(lambda: not left_behind())

    asyncio.run(killed())


@BOTH
def test_limits_that_are_lower_already_stay(ways, way):
    """Those of the process that starts it, as a container or a shell sets them."""
    ways(way)
    starter = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n" + STARTER.replace(
        "asyncio.run(Sandbox", "print(asyncio.run(Sandbox"
    ).replace(".run(sys.argv[2]))", ".run(sys.argv[2])).text)")
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))"
    done = subprocess.run([sys.executable, "-c", starter, way, code], capture_output=True, text=True, check=True)
    assert done.stdout == "(40, 40)\n\n"
