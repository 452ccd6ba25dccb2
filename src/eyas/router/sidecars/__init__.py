"""Models beside the text model: which requests are theirs, and what they say of images in the others."""
