"""`EnginePort` in a thread, in a process of its own, and without a model. Imports no torch at the top."""
