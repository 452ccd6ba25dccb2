"""Lists of servers, channels, roles and people; what operators may; direct messages."""

from dataclasses import replace
from itertools import product

import pytest

from eyas.discord.permissions import Asker, allows, denial, is_operator
from eyas.discord.settings.schema import Access, Lists, Operators

ASKER = Asker(person=1, server=10, channels=(100, 101), roles=frozenset({1000, 1001}))
DIRECT = Asker(person=1)
OPEN = Access()


@pytest.mark.parametrize(
    ("access", "says"),
    [
        (OPEN, None),
        (Access(servers=Lists(deny=(10,))), "server"),
        (Access(servers=Lists(allow=(11,))), "server"),
        (Access(servers=Lists(allow=(10, 11))), None),
        (Access(channels=Lists(deny=(101,))), "channel"),
        (Access(channels=Lists(allow=(102,))), "channel"),
        (Access(channels=Lists(allow=(101,))), None),
        (Access(channels=Lists(allow=(100,), deny=(101,))), "channel"),
        (Access(roles=Lists(deny=(1001,))), "role"),
        (Access(roles=Lists(allow=(1002,))), "role"),
        (Access(roles=Lists(allow=(1002,)), people=Lists(allow=(1,))), None),
        (Access(roles=Lists(allow=(1000,)), people=Lists(allow=(2,))), None),
        (Access(roles=Lists(allow=(1000,), deny=(1001,))), "role"),
        (Access(people=Lists(deny=(1,)), roles=Lists(allow=(1000,))), "person"),
        (Access(people=Lists(allow=(2,))), "person"),
        (Access(direct_messages=False), None),
    ],
)
def test_in_a_server(access, says):
    assert denial(access, Operators(), ASKER) == says
    assert allows(access, Operators(), ASKER) == (says is None)


@pytest.mark.parametrize(
    ("access", "says"),
    [
        (OPEN, None),
        (Access(direct_messages=False), "direct_messages"),
        (Access(servers=Lists(allow=(10,)), channels=Lists(allow=(100,))), None),
        (Access(roles=Lists(allow=(1000,))), "role"),
        (Access(people=Lists(allow=(1,))), None),
        (Access(people=Lists(deny=(1,))), "person"),
    ],
)
def test_in_a_direct_message(access, says):
    assert denial(access, Operators(), DIRECT) == says


@pytest.mark.parametrize(
    ("operators", "asker", "is_one"),
    [
        (Operators(people=(1,)), ASKER, True),
        (Operators(people=(1,)), DIRECT, True),
        (Operators(roles=(1001,)), ASKER, True),
        (Operators(roles=(1001,)), DIRECT, False),
        (Operators(people=(2,), roles=(3,)), ASKER, False),
    ],
)
def test_operators(operators, asker, is_one):
    assert is_operator(operators, asker) == is_one
    closed = Access(people=Lists(deny=(1,)), servers=Lists(deny=(10,)), direct_messages=False)
    assert allows(closed, operators, asker) == is_one


def test_a_denial_never_lets_in_more_and_wins_over_every_permission():
    """Over all small lists: adding what applies to a list of denials denies, and operators stay in."""
    lists = [Lists(), Lists(allow=(7,)), Lists(allow=(9,)), Lists(deny=(9,))]
    asker = Asker(person=7, server=7, channels=(7,), roles=frozenset({7}))
    for kinds in product(lists, repeat=4):
        access = Access(**dict(zip(("servers", "channels", "roles", "people"), kinds, strict=True)))
        for name in ("servers", "channels", "roles", "people"):
            denied = replace(access, **{name: replace(getattr(access, name), deny=(7,))})
            assert not allows(denied, Operators(), asker)
            assert allows(denied, Operators(people=(7,)), asker)
