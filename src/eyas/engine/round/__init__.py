"""What the stages of a round share: types, device state, graph capture."""
