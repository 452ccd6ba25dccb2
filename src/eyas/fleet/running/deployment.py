"""Carries out what the policy decides for one deployment: prepares machines, starts, observes and stops launches.

For one thread; machines are asked at the same time, servers in threads of their own, so that a machine that hangs
does not delay another machine's observation, and a server that hangs delays none.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx

from eyas.base.errors import EyasError, UserError
from eyas.client.endpoint import canary
from eyas.fleet.machines.node import NodeError, NodeRunner
from eyas.fleet.running import page_cache, scripts
from eyas.fleet.running.policy import Found, Limits, Observe, Seen
from eyas.fleet.running.scripts import Mark, Owner
from eyas.fleet.running.state import LaunchRow, Row, StateError, Store
from eyas.recipes.emit import blocks
from eyas.recipes.engines.common import base_url
from eyas.recipes.plan import Container, Plan

__all__ = ["Deployment", "client", "secrets_of", "stop_launches"]

NO_NEWS = "it was not asked yet"
START_S = 600.0  # docker may still have to unpack
PREPARE_S = 60.0
MAX_LOG = 256 << 10  # bytes of a log that are searched for the line that says "up"


def secrets_of(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values that `plan` refers to. Raises UserError that names those that are not set."""
    names = blocks.secrets(plan)
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise UserError(f"the plan needs {' and '.join(missing)}; set it first: export {missing[0]}=...")
    return {name: environ[name] for name in names}


def client(plan: Plan, node: NodeRunner, key: str | None = None) -> httpx.Client:
    """Return an HTTP client of the plan's server, by way of `node`, its first machine. Raises NodeError."""
    url = httpx.URL(base_url(plan.choice))
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(
        base_url=url, headers=headers, transport=node.transport(url.host, plan.choice.port), trust_env=False
    )


def stop_launches(
    store: Store, name: str, started: Iterable[LaunchRow], node_of: Callable[[LaunchRow], NodeRunner], limits: Limits
) -> dict[int, str]:
    """Stop what was started, the last first. Returns in words what could not be stopped; that stays recorded."""
    left: dict[int, str] = {}
    silent: dict[str, str] = {}
    for row in sorted(started, key=lambda row: -row.position):
        if row.node not in silent:
            try:
                _run(node_of(row), row.stop, limits.grace_s + limits.stop_s)
            except NodeError as error:
                silent[row.node] = str(error)
            except UserError as error:
                left[row.position] = f"{row.name} ({error})"
                continue
            else:
                with suppress(StateError):  # to stop it once more does no harm
                    store.stopped(name, row.position)
                continue
        left[row.position] = f"{row.name} ({silent[row.node]})"
    return left


class Deployment:
    """The launches of one plan on its machines. `nodes` are in the plan's order.

    What runs is kept in memory, too: without a database (a full disk) it is looked at and stopped all the same.
    `news` is set when the server has given a good answer.
    """

    def __init__(
        self,
        row: Row,
        nodes: Sequence[NodeRunner],
        store: Store,
        limits: Limits,
        secrets: Mapping[str, str],
        *,
        news: threading.Event | None = None,
    ) -> None:
        self.news = news or threading.Event()
        self._name = row.name
        self._plan = row.plan
        self._owner = Owner(token=row.token, directory=row.plan.choice.directory)
        self._nodes = tuple(nodes)
        self._store = store
        self._limits = limits
        self._secrets = dict(secrets)
        self._launches = row.plan.emission.launches
        self._containers: dict[str, Container] = {
            launch.name: launch.container for launch in self._launches if launch.container is not None
        }
        self._pool = ThreadPoolExecutor(max(1, len(nodes)), thread_name_prefix="eyas-node")
        self._log = ("0", "")  # cursor and text of the launch that is watched
        self._started: dict[int, LaunchRow] = {}
        self._cache_script = page_cache.give_back(row.plan)
        self._giving_back: _Question | None = None
        self._next_giving = 0.0
        self._forget_server()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- before and after ----------------------------------------------------------------------------------------------

    def look(self) -> Found:
        """Return what was started and lives. On a machine that does not answer, everything is taken to live."""
        self._started = {row.position: row for row in self._store.launches(self._name)}
        marks = self._marks()
        seen = self._poll(marks, None)
        dead = [i for i, code in seen.ended if not (self._launches[i].is_once and code == 0)]
        return Found(len(self._started), len(marks) - len(dead), seen.silent)

    def prepare(self) -> None:
        """Write the files of every machine and check that the server's port is free. Raises UserError."""
        for rank, node in enumerate(self._nodes):
            files = [file for file in self._plan.emission.files if rank in file.nodes]
            port = self._plan.choice.port if rank == 0 else None
            script = scripts.prepare(self._owner, files, port, self._plan.choice.listen)
            _run(node, script, PREPARE_S)

    def launch(self, index: int) -> None:
        """Start one launch. Raises UserError."""
        launch = self._launches[index]
        self._log = ("0", "")
        self._remember(index, "")  # from here on it has to be stopped in any case
        script = scripts.start(self._owner, launch, self._containers, self._secrets)
        out = _run(self._nodes[launch.node], script, START_S)
        self._remember(index, out.strip().splitlines()[-1])

    def _remember(self, index: int, mark: Mark) -> None:
        launch = self._launches[index]
        node = self._plan.choice.nodes[launch.node]
        stop = scripts.stop(self._owner, launch, self._containers, mark or None, self._limits.grace_s)
        self._started[index] = LaunchRow(index, mark, launch.name, node.name, node.ssh, stop)
        self._store.launched(self._name, self._started[index])

    def stop(self) -> tuple[str, ...]:
        """Stop what was started, the last first. Returns in words what could not be stopped; that stays recorded."""
        self._forget_server()
        left = stop_launches(self._store, self._name, self._started.values(), self._node_of, self._limits)
        self._started = {index: row for index, row in self._started.items() if index in left}
        return tuple(left.values())

    def _node_of(self, row: LaunchRow) -> NodeRunner:
        return self._nodes[self._launches[row.position].node]

    # -- looking -------------------------------------------------------------------------------------------------------

    def observe(self, what: Observe) -> Seen:
        """Observe all machines once and, where wanted, what the server answers."""
        if what.is_loading:
            self._give_back()
        seen = self._poll(self._marks(), what.index)
        if what.probe:
            self._probe()
        canary_says: str | None = ""
        if what.canary:
            canary_says = self._canary()
        return Seen(ended=seen.ended, silent=seen.silent, is_up=seen.is_up, answers=self._answers, canary=canary_says)

    def _poll(self, marks: Mapping[int, Mark], watched: int | None) -> Seen:
        ranks = sorted({self._launches[index].node for index in marks})
        asked = [self._pool.submit(self._poll_node, rank, marks, watched) for rank in ranks]
        answers = [future.result() for future in asked]
        return Seen(
            ended=tuple(sorted(item for answer in answers for item in answer.ended)),
            silent=tuple(text for answer in answers for text in answer.silent),
            is_up=any(answer.is_up for answer in answers),
        )

    def _poll_node(self, rank: int, marks: Mapping[int, Mark], watched: int | None) -> Seen:
        node = self._nodes[rank]
        here = [(i, self._launches[i], mark) for i, mark in marks.items() if self._launches[i].node == rank]
        launch = self._launches[watched] if watched is not None and self._launches[watched].node == rank else None
        port = launch.wait.port if launch is not None else None
        try:
            script = scripts.poll(self._owner, here, self._limits.log_bytes, port)
            lines = _run(node, script, self._limits.answer_s).splitlines()
            states = {int(words[0]): words[1:] for line in lines if (words := line.split(" ", 2))[0].isdigit()}
            unknown = [words[1] for words in states.values() if words[0] == "unknown"]
            if unknown:
                return Seen(silent=(f"{node.name}: {unknown[0]}",))
            ended = tuple((i, _code(words[1:])) for i, words in states.items() if words[0] == "ended")
            if launch is None:
                is_up = False
            elif launch.wait.log is not None:
                is_up = self._log_says(node, launch.wait.log, watched)
            else:
                is_up = port is None or "port open" in lines
            return Seen(ended=ended, is_up=is_up)
        except EyasError as error:
            return Seen(silent=(str(error),))

    def _log_says(self, node: NodeRunner, pattern: str, watched: int | None) -> bool:
        assert watched is not None
        cursor, text = self._log
        script = scripts.log(self._owner, self._launches[watched], cursor, MAX_LOG)
        cursor, _, more = _run(node, script, self._limits.answer_s).partition("\n")
        self._log = (cursor, (text + more)[-MAX_LOG:])
        return re.search(pattern, self._log[1]) is not None

    def _give_back(self) -> None:
        """Give back the checkpoint's page cache on all machines, in a thread, where it is time."""
        is_busy = self._giving_back is not None and not self._giving_back.is_answered
        if self._cache_script is not None and not is_busy and time.monotonic() >= self._next_giving:
            self._next_giving = time.monotonic() + self._limits.cache_s
            self._giving_back = _Question(self._give_back_everywhere, threading.Event())

    def _give_back_everywhere(self) -> None:
        for node in self._nodes:
            with suppress(EyasError):  # the next look says whether the machine answers
                node.run(self._cache_script or "", timeout_s=PREPARE_S)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _forget_server(self) -> None:
        self._probing: _Question | None = None
        self._answers: str | None = NO_NEWS
        self._next_probe = 0.0
        self._chatting: _Question | None = None

    def _probe(self) -> None:
        """Collect answers, and ask again where it is time."""
        if self._probing is not None and self._probing.is_answered:
            self._answers = self._probing.answer
            self._probing = None
            pause = self._limits.health_s if self._answers is None else self._limits.start_poll_s
            self._next_probe = time.monotonic() + pause
        if self._probing is None and time.monotonic() >= self._next_probe:
            self._probing = _Question(self._health, self.news)

    def _health(self) -> str | None:
        path = self._plan.emission.readiness.path
        with client(self._plan, self._nodes[0], self._key()) as http:
            try:
                status = http.get(path, timeout=self._limits.probe_s).status_code
            except httpx.HTTPError as error:
                return f"{path} does not answer ({error or type(error).__name__})"
        return None if status == 200 else f"{path} answers with HTTP status {status}"

    def _canary(self) -> str | None:
        if self._chatting is None:
            self._chatting = _Question(self._chat, self.news)
        return self._chatting.answer if self._chatting.is_answered else ""

    def _chat(self) -> str | None:
        with client(self._plan, self._nodes[0], self._key()) as http:
            model, role = self._plan.emission.readiness.model, self._plan.choice.role
            return canary.ask(http, model, self._limits.canary_s, role=role)

    def _key(self) -> str | None:
        name = self._plan.choice.api_key_env
        return None if name is None else self._secrets[name]

    # ------------------------------------------------------------------------------------------------------------------

    def _marks(self) -> dict[int, Mark]:
        return {index: row.mark for index, row in self._started.items() if row.mark}


class _Question:
    """A question to a server, asked in a thread that is never joined. A good answer, None, sets `news`."""

    def __init__(self, ask: Callable[[], str | None], news: threading.Event) -> None:
        self._ask = ask
        self._news = news
        self._done = threading.Event()
        self.answer: str | None = None
        threading.Thread(target=self._run, name="eyas-question", daemon=True).start()

    @property
    def is_answered(self) -> bool:
        return self._done.is_set()

    def _run(self) -> None:
        try:
            self.answer = self._ask()
        except Exception as error:  # any failure of a server or of the way to it is an answer
            self.answer = str(error) or type(error).__name__
        self._done.set()
        if self.answer is None:
            self._news.set()


def _run(node: NodeRunner, script: str, timeout_s: float) -> str:
    result = node.run(script, timeout_s=timeout_s)
    if result.code != 0:
        lines = (result.err.strip() or result.out.strip() or f"exit code {result.code}").splitlines()
        raise UserError(f"{node.name}: {next((line for line in lines if 'rror' in line), lines[-1])}")
    return result.out


def _code(words: Sequence[str]) -> int | None:
    return int(words[0]) if words and words[0].strip().isdigit() else None
