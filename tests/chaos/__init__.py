"""Counted messages through every fault: ``python -m tests.chaos`` at length, ``pytest tests/chaos`` in short."""
