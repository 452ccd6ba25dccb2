"""Implementations of `EnginePort`: a thread, a process, and no model at all. Imports no torch at the top."""
