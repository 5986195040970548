"""The first draft of RabbitMQ Streams (protocol document of May 2020): version 0 in every frame, the same key both ways.

Where that document and the server of its time differ, the server is followed and the field's note says so. The drafts
between this one and the first release cannot be distinguished by their frames.
"""

from __future__ import annotations

from ...layout.types import Array, Blob, Field, Layout, Optional, i16, i32, u16, u32, u64
from .chunk import DRAFT_CHUNK, DRAFT_PUBLISHED
from .layouts import CORRELATION_ID, PROPERTIES, SASL_USERNAME, STREAM, STRING, STRINGS, Layouts

COMMANDS = {
    0: "Publish",
    1: "PublishConfirm",
    2: "Subscribe",
    3: "Deliver",
    4: "Credit",
    5: "Unsubscribe",
    6: "PublishError",
    7: "MetadataUpdate",
    8: "Metadata",
    9: "SaslHandshake",
    10: "SaslAuthenticate",
    11: "Tune",
    12: "Open",
    13: "Close",
    14: "Heartbeat",
    998: "Create",
    999: "Delete",
}

RESPONSE_CODES = {
    0: "OK",
    1: "stream does not exist",
    2: "subscription id already exists",
    3: "subscription id does not exist",
    4: "stream already exists",
    5: "stream deleted",
    6: "SASL mechanism not supported",
    7: "authentication failure",
    8: "SASL error",
    9: "SASL challenge",
    10: "SASL authentication failure loopback",
    11: "virtual host access failure",
    12: "unknown frame",
    13: "frame too large",
    14: "internal error",
}

CODE = Field("response_code", u16, labels=RESPONSE_CODES, closed=True)
SUBSCRIPTION_ID = Field("subscription_id", u32, "chosen by the client")


_DRAFT = Layouts(COMMANDS, 0, "the same for request and response", CODE, 0)
request, reply, message = _DRAFT.request, _DRAFT.reply, _DRAFT.message

PUBLISH = message(0, "request", STREAM, Field("published_messages", DRAFT_PUBLISHED), note="answered by PublishConfirm or PublishError")
PUBLISH_CONFIRM = message(1, "response", Field("publishing_ids", Array(u64, i32)))
SUBSCRIBE = request(
    2, SUBSCRIPTION_ID, STREAM, Field("offset", u64), Field("credit", i16, "sent by clients and read by the server, not in the document")
)
SUBSCRIBE_RESPONSE = reply(2)
DELIVER = message(3, "one_way", SUBSCRIPTION_ID, Field("chunk", DRAFT_CHUNK), note="the version has 16 bits, the document says int32")
CREDIT = message(4, "one_way", SUBSCRIPTION_ID, Field("credit", i16))
UNSUBSCRIBE = request(5, SUBSCRIPTION_ID)
UNSUBSCRIBE_RESPONSE = reply(5, note="an error")
UNSUBSCRIBE_SUCCESS = Layout(
    "Unsubscribe", *SUBSCRIBE_RESPONSE.fields, kind="response", key=2, note="a success, answered with the key of Subscribe"
)
PUBLISH_ERROR = message(
    6,
    "response",
    Field("publishing_errors", Array((Field("publishing_id", u64), Field("code", u16, labels=RESPONSE_CODES, closed=True)), i32)),
)
METADATA_UPDATE = message(7, "one_way", Field("code", u16, labels=RESPONSE_CODES, closed=True), STREAM)
METADATA = request(8, Field("streams", STRINGS), note="the document says that no response is expected; there is one")
METADATA_RESPONSE = message(
    8,
    "response",
    CORRELATION_ID,
    Field("brokers", Array((Field("reference", u16), Field("host", STRING), Field("port", u32)), i32)),
    Field(
        "stream_metadata",
        Array(
            (Field("stream_name", STRING), CODE, Field("leader_reference", u16), Field("replicas_references", Array(u16, i32))),
            i32,
        ),
    ),
    note="without a response code of its own",
)
SASL_HANDSHAKE = request(9)
SASL_HANDSHAKE_RESPONSE = reply(9, Field("mechanisms", STRINGS))
SASL_AUTHENTICATE = request(
    10,
    Field("mechanism", STRING),
    Field("sasl_opaque_data", Blob(i32, null=-1), "PLAIN: user name and password", secret=True),
    SASL_USERNAME,
)
SASL_AUTHENTICATE_RESPONSE = reply(
    10, Optional(Field("sasl_opaque_data", Blob(i32, null=-1), "only with SASL challenge; a 32-bit length", secret=True))
)
_TUNE = (Field("frame_max", u32, "bytes; 0: no limit"), Field("heartbeat", u32, "seconds; 0: none"))
TUNE = message(11, "request", *_TUNE, note="what the server offers")
TUNE_RESPONSE = message(11, "response", *_TUNE, note="the client's answer: its values hold")
OPEN = request(12, Field("virtual_host", STRING), note="sent by the client; the document says server")
OPEN_RESPONSE = reply(12)
CLOSE = request(
    13,
    Field("closing_code", u16, labels=RESPONSE_CODES),
    Field("closing_reason", STRING),
    note="at least 12 bytes after the size",
)
CLOSE_RESPONSE = reply(13, note="exactly 10 bytes after the size")
HEARTBEAT = message(14, "one_way")
CREATE = request(998, STREAM, Field("arguments", PROPERTIES))
CREATE_RESPONSE = reply(998)
DELETE = request(999, STREAM)
DELETE_RESPONSE = reply(999)

CLIENT_LAYOUTS = (
    PUBLISH,
    SUBSCRIBE,
    CREDIT,
    UNSUBSCRIBE,
    METADATA,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
    TUNE_RESPONSE,
    OPEN,
    CREATE,
    DELETE,
)
"""What clients send."""

SERVER_LAYOUTS = (
    PUBLISH_CONFIRM,
    SUBSCRIBE_RESPONSE,
    DELIVER,
    UNSUBSCRIBE_RESPONSE,
    PUBLISH_ERROR,
    METADATA_UPDATE,
    METADATA_RESPONSE,
    SASL_HANDSHAKE_RESPONSE,
    SASL_AUTHENTICATE_RESPONSE,
    TUNE,
    OPEN_RESPONSE,
    CREATE_RESPONSE,
    DELETE_RESPONSE,
)
"""What servers send."""

BOTH_LAYOUTS = (CLOSE, CLOSE_RESPONSE, HEARTBEAT)
"""What either side sends."""

LAYOUTS = (*CLIENT_LAYOUTS, *SERVER_LAYOUTS, UNSUBSCRIBE_SUCCESS, *BOTH_LAYOUTS)
