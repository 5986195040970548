"""TLS read with its keys: the room between `tcp` and detection.

The chunks of a conversation go in as captured, and the chunks of what was said inside come out. After RFC 5246 (TLS 1.2), RFC 8446
(TLS 1.3), RFC 7366 (encrypt-then-MAC) and the key log format of NSS (SSLKEYLOGFILE). Nothing here takes part in a handshake: keys come
from a log.
"""
