"""The families there are, one file each. A protocol without a family has what every protocol has."""

from __future__ import annotations

from dissect.diagnose.iggy import FAMILY as IGGY
from dissect.diagnose.mewbase import FAMILY as MEWBASE
from dissect.diagnose.rabbitmq import FAMILY as RABBITMQ
from dissect.diagnose.rules import Family
from dissect.diagnose.seastar import FAMILY as SEASTAR

FAMILIES: tuple[Family, ...] = (RABBITMQ, IGGY, SEASTAR, MEWBASE)
