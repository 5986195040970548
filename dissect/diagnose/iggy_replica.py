"""Apache Iggy between replicas: connections that are not accepted, damaged frames, changes of the view."""

from __future__ import annotations

from ..model import Message
from ..protocols.iggy.frames import HEADER
from ..units import duration_text
from .rules import (
    ANY,
    CLOSED,
    ENDED,
    ERROR,
    NOTE,
    NOTED,
    Closed,
    ConversationContext,
    Family,
    FindingDraft,
    Refusal,
    Rule,
    label_of,
    noted,
    numbers,
    packets,
)

ELSEWHERE = frozenset(("PrepareOk", "StartViewChange", "RepairPrepare"))
"""Answers whose request may have gone another way, or of which each request has many."""

HELLO_ADVICE = (
    "Compare the settings of both replicas: the name of the cluster, the shared secret of cluster.auth, their numbers, and that both run "
    "the same build."
)
FOLLOWS = "No action needed if the replica asks again, or for a state transfer."
_RETRIED = "No action needed if a later attempt succeeds; otherwise check the log of the primary."


def refusal(context: ConversationContext, message: Message, request: Message | None) -> Refusal:
    """Return what an answer means that is not what was asked for."""
    fields = message.fields
    match message.name:
        case "ReplicaChallenge":
            why = f"replica {fields.get('replica')} says: {label_of(message, 'status')}"
            return Refusal(why, advice=HELLO_ADVICE, rule="replica-refused", asked="ReplicaHello")
        case "RangeEvicted":
            why = f"replica {fields.get('replica')} has Prepares from op {fields.get('op')} on only"
            return Refusal(why, _group(message), True, FOLLOWS, "replica-refused", asked="RequestPrepares")
        case "StateTransferTarget":
            again = fields.get("unavailable_transient") is True
            why = f"replica {fields.get('replica')} has no state to transfer{' for now' if again else ''}"
            return Refusal(why, _group(message), again, FOLLOWS, "replica-refused", asked="RequestStateTransfer")
    asked = message.name.removesuffix("Result")
    expected = fields.get("outcome_label") != "client id of another user"
    return Refusal(label_of(message, "outcome"), "", expected, _RETRIED, "replica-refused", asked=asked)


def _group(message: Message) -> str:
    return f"group {message.fields.get('group_label')}"


def _hello(context: ConversationContext, closed: Closed) -> FindingDraft | None:
    """Without authentication a replica that does not accept another one closes silently."""
    hello = context.last[0]
    if closed.by is None or closed.by == closed.client or hello is None or hello.name != "ReplicaHello" or closed.lacking:
        return None
    if context.messages != [1, 0] or closed.ended_ns is None or closed.injected:
        return None
    after = duration_text(closed.ended_ns - hello.time_ns)
    cause = f"the dialled replica {closed.verb} the connection {after} after ReplicaHello of replica {hello.fields.get('replica')}"
    return FindingDraft(f"{cause}, as a replica does that rejects it", numbers(hello), packets(hello))


def _view(context: ConversationContext, message: Message) -> FindingDraft | None:
    view, group = message.fields.get("view"), message.fields.get("group_label")
    if group is None:
        return None
    done = message.name == "StartView"
    what = f"replica {message.fields.get('replica')} begins view {view}" if done else f"the replicas change to view {view}"
    return FindingDraft(f"{what} ({group})", key=(done, view))


def _reached(context: ConversationContext, closed: Closed) -> str:
    """Who is connected, and who leads."""
    parts = [f"{name} {closed.facts[name]}" for name in ("dialler", "acceptor", "view", "primary") if name in closed.facts]
    return ", ".join(parts) or "open"


RULES: tuple[Rule, ...] = (
    Rule("replica-not-accepted", ERROR, CLOSED, _hello, HELLO_ADVICE, ENDED),
    Rule(
        "replica-checksum",
        ERROR,
        ANY,
        noted("checksum.*computed", "{name} from the {who}: {note}", "{name}"),
        "Check memory, disks and network of both replicas; a replica drops a frame whose seal is wrong.",
        NOTED,
    ),
    Rule(
        "replica-unsealed",
        NOTE,
        ANY,
        noted("not sealed", "frames have no checksum; the builds known here drop such frames", "unsealed"),
        "Check which build of the server sends them.",
        NOTED,
    ),
    Rule(
        "replica-other-build",
        NOTE,
        ANY,
        noted("^the body cannot be read", "{name} from the {who}: {note}", "{name}"),
        "Check for a newer streamdump: the replicas run a build that it does not know.",
        NOTED,
    ),
    Rule(
        "replica-view-change",
        NOTE,
        ("StartViewChange", "DoViewChange", "StartView"),
        _view,
        "Check why the primary was silent for 5 s, if it was not stopped on purpose.",
    ),
)

FAMILY = Family(
    protocols=("iggy:replica",),
    longest_header=HEADER,
    rules=RULES,
    others=(("replica-refused", HELLO_ADVICE),),
    refusal=refusal,
    reuses_ids=True,
    renames_responses=True,
    elsewhere=ELSEWHERE,
    reached=_reached,
)
