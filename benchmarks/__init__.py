"""Benchmarks for airspeed velocity: ``asv run`` times them for commits, ``asv compare`` shows what became slower."""
