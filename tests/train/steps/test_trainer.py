"""Steps: several processes do what one does, accumulated batches what a large one does, and faults are named."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.support import toy

from eyas.base.errors import UserError
from eyas.model.live_bytes import LiveBytes
from eyas.train.data.packing import Packing
from eyas.train.loop.order import Order
from eyas.train.settings.schema import TrainSettings
from eyas.train.steps.processes import Processes, joined_processes
from eyas.train.steps.trainer import Trainer

STEPS = 20


def trained(*, processes, share="rows", accumulate=1, steps=STEPS, tokens=160, **settings):
    """Train the toy head in fp64; returns it with the losses of its steps."""
    settings = TrainSettings(**{"lr": 3e-3, "depths": 3, "share": share} | settings)
    head = toy.head()
    trainer = Trainer(head, toy.TableStates(), settings, rule="loose", num_steps=steps, processes=processes)
    of_own = processes.size if share == "sequences" else 1
    order = Order(Packing(toy.documents(30), tokens=tokens, seed=3), per_step=accumulate * of_own)
    losses = []
    for step in range(steps):
        first = processes.rank if of_own > 1 else 0
        losses.append(trainer.step(step, list(order.batches(step, first=first, every=of_own))).loss)
    return head, losses


def main(folder, share, accumulate):
    """Entry of the processes that the test starts."""
    torch.set_num_threads(1)
    with joined_processes(torch.device("cpu")) as processes:
        head, losses = trained(processes=processes, share=share, accumulate=int(accumulate))
        if processes.is_first:
            torch.save({"head": head.state_dict(), "losses": losses}, Path(folder) / "out.pt")
    names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    assert not any("gloo" in name for name in names), "threads of the group outlive it"


def run_processes(size, folder, *arguments):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    running = []
    for rank in range(size):
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-m", "tests.train.steps.test_trainer", str(folder), *arguments]
        running.append(subprocess.Popen(command, env=env))
    assert [process.wait(120) for process in running] == [0] * size
    return torch.load(folder / "out.pt", weights_only=True)


def close(found, expected, losses, expected_losses):
    assert losses == pytest.approx(expected_losses, rel=1e-10)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-8, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_processes_that_share_rows_do_what_one_does(tmp_path, size):
    head, losses = trained(processes=Processes())
    found = run_processes(size, tmp_path, "rows", "1")
    close(found["head"], head.state_dict(), found["losses"], losses)


@pytest.mark.slow
def test_processes_with_sequences_of_their_own_do_what_accumulation_does(tmp_path):
    head, losses = trained(processes=Processes(), accumulate=2)
    found = run_processes(2, tmp_path, "sequences", "1")
    close(found["head"], head.state_dict(), found["losses"], losses)


def test_accumulated_batches_do_what_one_large_batch_does():
    """The mean is over the taught cells of the step, not a mean of the batches' means."""
    documents = toy.documents(8)
    heads = []
    for tokens in (1000, 100):
        head = toy.head()
        packing = Packing(documents, tokens=tokens, seed=0)
        batches = [packing.batch(0, index) for index in range(packing.num_batches(0))]
        settings = TrainSettings(lr=3e-3, depths=3)
        trainer = Trainer(head, toy.TableStates(), settings, rule="loose", num_steps=1, processes=Processes())
        trainer.step(0, batches)
        heads.append((head.state_dict(), len(batches)))
    assert heads[0][1] == 1 and heads[1][1] > 2
    for name, value in heads[0][0].items():
        torch.testing.assert_close(heads[1][0][name], value, rtol=0, atol=1e-12)


def test_training_lowers_the_loss():
    _, losses = trained(processes=Processes(), steps=40, lr=3e-2)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("loss", ["kl", "lk", "tv", "hard"])
def test_every_loss_trains(loss):
    _, losses = trained(processes=Processes(), steps=30, loss=loss)
    assert sum(losses[-5:]) < sum(losses[:5])


def test_states_that_are_not_finite_stop_the_run_before_its_update():
    head, source = toy.head(), toy.TableStates()
    trainer = Trainer(head, source, TrainSettings(depths=3), rule="loose", num_steps=5, processes=Processes())
    packing = Packing(toy.documents(4), tokens=1000, seed=0)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    source.poisoned = "d2"
    with pytest.raises(UserError, match=r"step 1 was not taken: the target's last hidden state of d2 is not finite"):
        trainer.step(0, [packing.batch(0, 0)])
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_a_parameter_that_is_not_finite_is_named():
    head = toy.head()
    trainer = Trainer(
        head, toy.TableStates(), TrainSettings(depths=3), rule="loose", num_steps=5, processes=Processes()
    )
    with torch.no_grad():
        head.midlayer["mlp"]["up_proj"].weight[0, 0] = torch.inf
    with pytest.raises(UserError, match=r"the parameter midlayer\.mlp\.up_proj\.weight is not finite"):
        trainer.step(0, [Packing(toy.documents(4), tokens=1000, seed=0).batch(0, 0)])


def test_the_order_goes_on_over_epochs():
    packing = Packing(toy.documents(9), tokens=60, seed=1)
    order = Order(packing, per_step=2)
    whole = [packing.batch(epoch, i) for epoch in range(3) for i in range(packing.num_batches(epoch))]
    found = [batch for step in range(len(whole) // 2) for batch in order.batches(step, first=0, every=1)]
    assert [batch.sources for batch in found] == [batch.sources for batch in whole[: len(found)]]
    alternate = [batch for step in range(3) for batch in order.batches(step, first=1, every=2)]
    assert [batch.sources for batch in alternate] == [batch.sources for batch in whole[1:6:2]]
    assert order.num_steps(1) == -(-packing.num_batches(0) // 2)


class Limited(LiveBytes):
    """A device with limited bytes for what a step makes: the operation beyond them raises, as an allocator does."""

    limit = 1 << 60

    def _see(self, storage):
        super()._see(storage)
        if self.live > self.limit:
            raise torch.OutOfMemoryError("a full GPU")


def limited(limit, *, rows=32, longest_below=None):
    """Take two steps where memory has a limit; returns the trainer with the peak of both."""
    head, source = toy.head(), toy.TableStates()
    settings = TrainSettings(lr=3e-3, depths=3, chunk=rows, tile=rows)
    trainer = Trainer(
        head, source, settings, rule="loose", num_steps=2, processes=Processes(), longest_below=longest_below
    )
    head.rows_of_pass = rows
    batches = [[Packing(toy.documents(8), tokens=tokens, seed=3).batch(0, 0)] for tokens in (60, 300)]
    given = [*head.parameters(), *head.buffers(), *source.teacher, *source._tables]
    with Limited(*given) as memory:
        memory.limit = limit
        for number, batch in enumerate(batches):
            trainer.step(number, batch)
    return trainer, memory.peak


def test_a_step_that_runs_out_of_memory_is_taken_once_more_in_smaller_passes(caplog):
    wide, peak = limited(1 << 60)
    assert wide.head.rows_of_pass == 32 and not caplog.text
    _, narrow = limited(1 << 60, rows=16)
    found, _ = limited((peak + narrow) // 2)
    assert "taken again in passes of 16 rows and tiles of 16 positions" in caplog.text
    assert found.head.rows_of_pass == 16
    close(found.head.state_dict(), wide.head.state_dict(), [], [])  # no gradient counts twice


def test_a_length_that_fits_is_named_where_smaller_passes_do_not_either():
    _, short = limited(1 << 60, rows=8)
    with pytest.raises(UserError, match=r"a batch of (\d+) tokens does not fit, in passes of 8 rows") as raised:
        limited(short // 2)
    assert re.search(r"batches of up to (3|4|5)\d tokens did fit in this run", str(raised.value))
    asked = []

    def estimate(tokens, settings):
        asked.append((tokens, settings.chunk, settings.tile))
        return 23

    with pytest.raises(UserError, match=r"by estimate 23 tokens fit: give data\.context=23, train\.chunk=16"):
        limited(1000, longest_below=estimate)
    assert asked[0][1:] == (16, 16) and asked[0][0] > 23


def test_an_update_that_runs_out_of_memory_is_not_taken_twice(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no room for moments")

    monkeypatch.setattr(torch.optim.AdamW, "step", full)
    with pytest.raises(UserError, match="checkpoints are from before it"):
        trained(processes=Processes(), steps=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
