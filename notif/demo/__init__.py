"""`./run demo`: everything on this machine, real jobs through the sandbox, told in words. Every part of notif adds its scene."""

from notif.demo.scenes import SCENES
from notif.demo.stage import Stage, opened

__all__ = ["SCENES", "Stage", "opened"]
