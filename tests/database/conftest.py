"""The hands that move a relay and a worker, as in tests/spine."""

from tests.spine.conftest import hands

__all__ = ["hands"]
