"""The compiler of this package's kernels."""

import numba

# Division by zero gives infinity or NaN, as in NumPy. An exception would end a loop over rows or particles, and the
# results of those that follow would never be filled.
jit = numba.njit(cache=True, nogil=True, error_model="numpy")
