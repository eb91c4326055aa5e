"""The harness: the whole system as real processes, under load and faults, and a checker outside it that adds the books."""
