"""A Discord bot in front of an OpenAI endpoint: deciding is apart from doing, and one file talks to discord.py."""
