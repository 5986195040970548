"""TLS decryption with logged keys, between `tcp` and detection.

Reads the captured byte streams of a conversation and returns the decrypted ones. After RFC 5246 (TLS 1.2), RFC 8446
(TLS 1.3), RFC 7366 (encrypt-then-MAC) and the key log format of NSS (SSLKEYLOGFILE). Keys come from a log only.
"""
