"""A plan without its head is the plan that would have been made without one, and nothing else is guessed."""

import msgspec
import pytest
from tests.recipes.planning.test_golden import CASES, plan_for

from eyas.base.errors import UserError
from eyas.recipes.plan import EnvVar
from eyas.recipes.planning.plain import without_speculation

SPECULATING = [row["plan"] for row in CASES["rows"] if plan_for(row["plan"]).choice.method != "none"]
FLAGS = ("--draft", "--draft-tokens", "--spec")


def plain(command):
    """The same command line with `--spec none`."""
    words = command.split()
    kept = [
        word for before, word in zip(["", *words], words, strict=False) if word not in FLAGS and before not in FLAGS
    ]
    return " ".join([*kept, "--spec none"])


@pytest.mark.parametrize("command", SPECULATING)
def test_it_is_the_plan_that_was_made_without_a_head(command):
    made, wanted = without_speculation(plan_for(command)), plan_for(plain(command))
    assert (made.choice, made.emission, made.memory) == (wanted.choice, wanted.emission, wanted.memory)
    assert made.speed == wanted.speed
    with pytest.raises(UserError, match="without speculation already"):
        without_speculation(made)


def test_a_plan_that_was_changed_by_hand_is_refused():
    plan = plan_for(SPECULATING[0])
    launch = plan.emission.launches[0]
    changed = msgspec.structs.replace(launch, env=(*launch.env, EnvVar(name="MINE", value="1")))
    emission = msgspec.structs.replace(plan.emission, launches=(changed, *plan.emission.launches[1:]))
    with pytest.raises(UserError, match="changed by hand"):
        without_speculation(msgspec.structs.replace(plan, emission=emission))
