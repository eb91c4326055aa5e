"""Benchmarks: `./run bench [--json] [--quick] [NAME ...]`. What they measure and how to read them: docs/reference/benchmarks.md."""
