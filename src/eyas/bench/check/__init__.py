"""`eyas check`: a smoke test of any OpenAI-compatible endpoint, a small function for each thing that may be wrong."""
