"""Checks of a fit: its sensitivity to the prior, its predictions, and the calibration of the method."""
