"""Both benchmarks, one after the other: ``python -m benchmarks``."""

from benchmarks import consume, publish

consume.main([])
publish.main([])
