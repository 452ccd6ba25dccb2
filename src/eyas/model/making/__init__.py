"""Random weights: as checkpoints on disk, or drawn on the device."""
