"""Records of a run: checkpoints, metrics, plots, progress for people, its folder."""
