"""Types, device state and graph capture, which the stages of a round share."""
