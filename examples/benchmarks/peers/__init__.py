"""Other samplers on the problems of the comparison, each behind one function."""
