"""Layers between reassembly and detection: each is given the bytes of both sides in order, and returns the bytes inside.

PROXY headers come first, then TLS (`tls/`), then WebSocket.

A layer has `feed(items, last)`: `SideData` and `StreamGap` in, the same out, with positions that count the bytes inside; `last`: nothing
follows. It is plain data, which goes on in another process. Once it is certain that a conversation has no such layer, it is dropped.
"""
