"""Memory of a box that several backends share: what is loaded, what must go, and what each is known to take."""
