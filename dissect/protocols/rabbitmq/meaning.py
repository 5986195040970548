"""The meaning of messages: role and key for pairing, and changes of the connection's state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...layout import Layout
from ...quota import drop_oldest
from ..records import NONE, OPTIONAL_RESPONSE, REQUEST, REQUESTS, RESPONSE, RESPONSES, Role
from . import layouts, layouts_draft
from .credits import Credits
from .layouts import CHUNKS, CREDIT_LIMITS, PRECONDITION_FAILED, is_single_active, newer_versions

if TYPE_CHECKING:
    from .dissector import RabbitmqStreamDissector, RabbitmqStreamDraftDissector, StreamDissector

Fields = dict[str, Any]

Meant = tuple[int | None, str | None, Role, Any]
"""Id, outcome, role and key."""

Meaning = Callable[["StreamDissector", int, int, Fields], Meant]
"""What a message means, given the dissector, its side, the number of its command, and its fields, which may not all be there."""

Follow = Callable[[Any, str, int, Fields], Iterable[str]]
"""Updates state from a message, given the dissector, name, side and fields; returns notes."""

NULL_REFERENCE = "the publisher reference is null: servers answer that with Close (unknown frame); an empty string means none"

UNLIMITED = 1 << 62

_SHORT = 100
"""The number of characters kept of a client's own description."""

NOTHING: Meant = (None, None, NONE, None)


def open_key(side: int, number: int, ident: int = 0) -> int:
    """What pairs a request of `side` with its response: below zero, so that it is never the key of a published message."""
    return -1 - (side << 48 | number << 32 | ident)


def _asks(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    ident = fields.get("correlation_id")
    return NOTHING if ident is None else (ident, None, REQUEST, open_key(side, number, ident))


def _answers(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    ident = fields.get("correlation_id")
    if ident is None:
        return NOTHING
    # The response to Metadata has no code of its own
    code = fields.get("response_code")
    refused = code is not None and code not in self.language.accepted
    return ident, "refused" if refused else "answered", RESPONSE, open_key(1 - side, number, ident)


def _publishes(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    high = self.publisher_key(fields.get("publisher_id", 0), True)
    ids = [high | one["publishing_id"] for one in fields.get("published_messages", ()) if "publishing_id" in one]
    return None, None, REQUESTS, ids


def _confirms(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    high = self.publisher_key(fields.get("publisher_id", 0), False)
    ids = fields.get("publishing_ids", ())
    return None, "answered", RESPONSES, [high | one for one in ids] if high else ids


def _refuses(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    high = self.publisher_key(fields.get("publisher_id", 0), False)
    ids = [high | one["publishing_id"] for one in fields.get("publishing_errors", ()) if "publishing_id" in one]
    return None, "refused", RESPONSES, ids


def _tunes(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    return None, None, REQUEST, open_key(side, number)


def _is_tuned(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    return None, "answered", RESPONSE, open_key(1 - side, number)


def _credits(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    """Mostly answered only if there is an error, and then without a correlation id."""
    if "subscription_id" not in fields:
        return _answers(self, side, number, fields)
    ident, credit, credits = fields["subscription_id"], fields.get("credit", 0), self.credits
    if credits is not None and side == self.client and (credits.tracked or credit > CREDIT_LIMITS[CHUNKS] or fields["version"] > 1):
        ident |= credits.grant(ident, fields["version"], credit, self.completed) << 8
    return None, None, OPTIONAL_RESPONSE, open_key(side, number, ident)


def _refuses_credit(self: StreamDissector, side: int, number: int, fields: Fields) -> Meant:
    if "subscription_id" not in fields:
        return _answers(self, side, number, fields)
    ident, outcome, credits = fields["subscription_id"], "refused", self.credits
    precondition = fields.get("response_code") == PRECONDITION_FAILED
    refused = 0 if credits is None or side == self.client else credits.refuse(ident, precondition)
    if precondition and not refused and (credits is None or credits.is_alone(ident, self.completed) is not False):
        # The consumer is, or may be, just not active
        outcome = "answered"
    return None, outcome, RESPONSE, open_key(1 - side, number, ident | refused << 8)


_OWN: dict[tuple[str, str], Meaning] = {
    ("Publish", "request"): _publishes,
    ("PublishConfirm", "response"): _confirms,
    ("PublishError", "response"): _refuses,
    ("Tune", "request"): _tunes,
    ("Tune", "response"): _is_tuned,
    ("Credit", "one_way"): _credits,
    ("Credit", "response"): _refuses_credit,
}


def meaning_of_unknown(side: int, number: int, ident: int, answers: bool) -> Meant:
    """Return the meaning of a command or version that is not known: in all that are known, and answered, the number after the version is
    the correlation id."""
    if answers:
        return None, "answered", RESPONSE, open_key(1 - side, number, ident)
    return None, None, OPTIONAL_RESPONSE, open_key(side, number, ident)


def meaning_of(layout: Layout) -> Meaning:
    """Return the meaning of messages of this layout: for most, a correlation id pairs them."""
    return _OWN.get((layout.name, layout.kind), _asks if layout.kind == "request" else _answers)


# State


def _fits(self: StreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if side != self.client or fields.get("size", 0) <= self.frame_max:
        return ()
    return [f"frame of {fields['size']} bytes is over the negotiated maximum of {self.frame_max} bytes"]


def _greets(self: StreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    said = {one.get("key"): str(one.get("value"))[:_SHORT] for one in fields.get("peer_properties") or ()}
    self.facts.update({f"client_{key}": said[key] for key in ("product", "version") if key in said})
    return ()


def _agrees(self: StreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "heartbeat" in fields:
        # The values that hold are those of the client.
        self.frame_max = fields["frame_max"] or UNLIMITED
        self.facts["frame_max"] = fields["frame_max"]
        self.facts["heartbeat"] = fields["heartbeat"]
    return ()


def _states(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    who = "client" if side == self.client else "server"
    found = {name: f"the {who} says {what}" for name, what in newer_versions(fields).items()}
    if found:
        self.newer = {**found, **self.newer} if who == "client" else {**self.newer, **found}
    return ()


def _changes_publisher(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "publisher_id" in fields:
        self.publishers.ask(name, fields["correlation_id"], fields["publisher_id"])
    return [NULL_REFERENCE] if fields.get("publisher_reference", "") is None else ()


def _publisher_changed(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "correlation_id" in fields:
        self.publishers.answer(name, fields["correlation_id"], fields.get("response_code") == 1)
    return ()


_BEFORE_PROPERTIES = 29
"""Bytes of a Subscribe at most, as its size counts them, without its stream and its properties."""


def _is_alone(fields: Fields) -> bool:
    """Return whether a Subscribe is, or may be, that of a single active consumer: the capture may lack its last properties."""
    properties = fields.get("properties") or ()
    texts = [fields.get("stream"), *[text for one in properties for text in one.values()]]
    known = _BEFORE_PROPERTIES + 4 * len(properties) + len("".join(filter(None, texts)).encode(errors="replace"))
    return fields["size"] >= known + len("single-active-consumer") or is_single_active(properties)


def _counts_credit(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "subscription_id" in fields:
        self.credits = self.credits or Credits(self.complete)
        alone = name == "Subscribe" and _is_alone(fields)
        self.credits.ask(name, fields["correlation_id"], fields["subscription_id"], fields["version"], alone, self.completed)
    return ()


def _credit_counted(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "correlation_id" in fields and self.credits is not None:
        self.credits.answer(name, fields["correlation_id"], fields.get("response_code") == 1, self.completed)
    return ()


def _credited(self: RabbitmqStreamDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if self.credits is None or not self.credits.mixed or "subscription_id" not in fields:
        return ()
    note = self.credits.note(fields["subscription_id"], fields["version"], self.completed)
    return () if note is None else (note,)


def _subscribes(self: RabbitmqStreamDraftDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    if "correlation_id" in fields:
        waiting = self.subscribing if name == "Subscribe" else self.unsubscribing
        _remember(waiting, fields["correlation_id"], self.options.open_limit)
    return ()


def _has_unsubscribed(self: RabbitmqStreamDraftDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    _forget(self.unsubscribing, fields.get("correlation_id"))
    return ()


def _has_subscribed(self: RabbitmqStreamDraftDissector, name: str, side: int, fields: Fields) -> Iterable[str]:
    ident = fields.get("correlation_id")
    if ident is None or _forget(self.subscribing, ident) or fields.get("response_code"):
        return ()
    return ["this may as well answer Unsubscribe, whose success has the same key"]


def _remember(waiting: OrderedDict[int, int], ident: int, limit: int) -> None:
    waiting[ident] = waiting.get(ident, 0) + 1
    drop_oldest(waiting, limit)


def _forget(waiting: dict[int, int], ident: int | None) -> bool:
    """Whether a request with this id was waiting."""
    if ident not in waiting:
        return False
    waiting[ident] -= 1
    if not waiting[ident]:
        del waiting[ident]
    return True


FOLLOWS: dict[Layout, Follow] = {
    **dict.fromkeys((layouts.PUBLISH, layouts.PUBLISH_2, layouts_draft.PUBLISH), _fits),
    layouts.PEER_PROPERTIES: _greets,
    **dict.fromkeys((layouts.TUNE_RESPONSE, layouts.TUNE_RESPONSE_MARKED, layouts_draft.TUNE_RESPONSE), _agrees),
    **dict.fromkeys((layouts.EXCHANGE_COMMAND_VERSIONS, layouts.EXCHANGE_COMMAND_VERSIONS_RESPONSE), _states),
    **dict.fromkeys((layouts.DECLARE_PUBLISHER, layouts.DELETE_PUBLISHER), _changes_publisher),
    **dict.fromkeys((layouts.DECLARE_PUBLISHER_RESPONSE, layouts.DELETE_PUBLISHER_RESPONSE), _publisher_changed),
    **dict.fromkeys((layouts.SUBSCRIBE, layouts.SUBSCRIBE_2, layouts.UNSUBSCRIBE), _counts_credit),
    **dict.fromkeys((layouts.SUBSCRIBE_RESPONSE, layouts.UNSUBSCRIBE_RESPONSE), _credit_counted),
    **dict.fromkeys((layouts.CREDIT, layouts.CREDIT_2), _credited),
    **dict.fromkeys((layouts_draft.SUBSCRIBE, layouts_draft.UNSUBSCRIBE), _subscribes),
    layouts_draft.SUBSCRIBE_RESPONSE: _has_subscribed,
    **dict.fromkeys((layouts_draft.UNSUBSCRIBE_RESPONSE, layouts_draft.UNSUBSCRIBE_SUCCESS), _has_unsubscribed),
}
"""Messages that change the state of a connection, or are judged by it."""
