"""Plots of a report as SVG: each file one picture or the means to draw it."""
