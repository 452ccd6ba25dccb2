"""The guard against answers that repeat themselves without end."""
