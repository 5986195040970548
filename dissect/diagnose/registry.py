"""The families there are, one file each. A protocol without a family has what every protocol has."""

from __future__ import annotations

from streamdump.diagnose.iggy import FAMILY as IGGY
from streamdump.diagnose.mewbase import FAMILY as MEWBASE
from streamdump.diagnose.rabbitmq import FAMILY as RABBITMQ
from streamdump.diagnose.rules import Family
from streamdump.diagnose.seastar import FAMILY as SEASTAR

FAMILIES: tuple[Family, ...] = (RABBITMQ, IGGY, SEASTAR, MEWBASE)
