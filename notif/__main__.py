"""`python -m notif`."""

from notif.cli import main

main()
