"""Behaviour and chance in mewbase: events come when they come, and are acknowledged one by one."""

from __future__ import annotations

from typing import Any

from ..compare_rules import CompareRules, Fields, TotalRule


def _body(fields: Fields) -> Fields:
    body = fields.get("frame")
    return body if isinstance(body, dict) else {}


def _subscription(fields: Fields, asked: Fields) -> str:
    body = _body(fields)
    return f"subscription {body.get('subID', body.get('SubID'))}"


def _received(fields: Fields, asked: Fields) -> list[Any]:
    return [{name: value for name, value in _body(fields).items() if name in ("event", "pos", "seqNo")}]


def _acknowledged(fields: Fields, asked: Fields) -> list[Any]:
    return [{name: value for name, value in _body(fields).items() if name == "pos"}]


COMPARE_RULES = CompareRules(
    dropped=("size", "type", "frame.timestamp", "frame.bytes"),
    paired=("frame.rID", "frame.queryID"),
    heartbeats=("PING",),
    handshake=("CONNECT",),
    apart=("QUERYACK",),
    flows={
        "RECEV": (TotalRule("one_way", _subscription, _received, ("frame", "frame.event", "frame.pos", "frame.seqNo")),),
        "ACKEV": (TotalRule("one_way", _subscription, _acknowledged, ("frame", "frame.pos")),),
    },
)
