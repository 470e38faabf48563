"""Evidences of models, one file each."""
