"""Emitters, one file a format: a plan as a shell script, a compose file, systemd units, an sbatch script."""
