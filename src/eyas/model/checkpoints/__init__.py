"""Reading checkpoints: files, tensor names, configurations, packing for the device."""
