"""What the library says to whoever calls it with options that cannot be."""

from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.errors import UsageError

CAPTURE = Path(__file__).parents[1] / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_405.pcap"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bytes_as": "nonsense"}, "bytes_as is one of hex, base64, text, omit or raw, not 'nonsense'"),
        ({"decode_as": ((5552, "nonsense", None),)}, "decode_as: there is no protocol nonsense; there are iggy, "),
        ({"open_limit": -1}, "open_limit is a number, 0 or more, not -1"),
        ({"separate": "no"}, "separate is True or False, not 'no'"),
        ({"keylog": "keys.log"}, "keylog is a tuple of files: ('keys.log',)"),
        ({"show_secret": True}, "there is no option show_secret; "),
    ],
)
def test_options_that_cannot_be_are_told_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as told:
        streamdump.read(CAPTURE, **options)
    assert said in str(told.value)


def test_all_others_are_taken() -> None:
    (first, *_) = streamdump.read(CAPTURE, bytes_as="raw", decode_as=((5552, "rabbitmq-stream", None),), open_limit=1, separate=True)
    assert first.name == "PeerProperties"  # type: ignore[union-attr]
