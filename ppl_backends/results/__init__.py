"""Results as InferenceData."""

from ppl_backends.results.inference_data import build_inference_data, dims_of

__all__ = ["build_inference_data", "dims_of"]
