"""Times of connections to servers of OpenAI's API: the client's, and the router's to its backends."""

__all__ = ["DRAIN_S", "KEEP_ALIVE_S"]

KEEP_ALIVE_S = 3.0  # less than servers keep an idle connection (uvicorn and llama-server: 5), so that we close it first
DRAIN_S = 0.25  # for the end of a stream after its last event: then the connection can be used again
