"""Harmony, the message format of gpt-oss: rendering prompts, parsing answers, tools as TypeScript."""
