"""The families there are, one file each. A protocol without a family has what every protocol has."""

from __future__ import annotations

from .iggy import FAMILY as IGGY
from .iggy_replica import FAMILY as IGGY_REPLICA
from .mewbase import FAMILY as MEWBASE
from .rabbitmq import FAMILY as RABBITMQ
from .rules import Family
from .seastar import FAMILY as SEASTAR

FAMILIES: tuple[Family, ...] = (RABBITMQ, IGGY, IGGY_REPLICA, SEASTAR, MEWBASE)
