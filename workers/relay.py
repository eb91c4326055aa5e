"""`python -m workers.relay`: the only process that puts references on queues."""

import sys

from notif.bootstrap import App
from notif.bootstrap.log import quiet_libraries
from notif.bootstrap.relay import run_relay
from notif.errors import NotifError
from workers.carrier import leave, stop_on_signals


def main() -> None:
    quiet_libraries()
    try:
        run_relay(App.from_settings(), stop_on_signals())
    except NotifError as error:
        sys.exit(f"notif: {error}")
    leave()


if __name__ == "__main__":
    main()
