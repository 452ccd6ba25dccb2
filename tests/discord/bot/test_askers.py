"""Who asks where: a thread counts as its channel and the category of that, also where the channel is not known."""

import pytest

import discord
from eyas.discord.bot.askers import asker_of


class User:
    id = 5


class Thread:
    """A thread as the library has it in a server that the bot is not in: its channel is not known."""

    id, parent_id = 7, 8

    @property
    def category_id(self):
        raise discord.ClientException("Parent channel not found")


class Known(Thread):
    category_id = 9


@pytest.mark.parametrize(("channel", "ids"), [(Thread(), (7, 8)), (Known(), (7, 8, 9)), (None, ())])
def test_the_channels_that_count(channel, ids):
    assert asker_of(User(), channel, 1).channels == ids
