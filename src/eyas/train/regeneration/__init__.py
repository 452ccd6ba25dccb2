"""Answers of recorded prompts, generated once more by the target through an OpenAI endpoint."""
