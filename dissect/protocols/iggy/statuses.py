"""Status codes of Apache Iggy by release, read from the sources of eleven releases (see RELEASES).

Codes were given out again under other names, so a code has a name only together with the layout of its conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

from .layout_versions import RELEASES as LAYOUT_RELEASES

RELEASES = ("0.0.4", "0.0.30", "0.0.52", "0.1.5", "0.2.5", "0.2.20", "0.3.0", "0.4.300", "0.5.0", "0.6.0", "0.8.0", "0.9.0-edge.5")
"""The releases examined (0.3.0 for two codes only); a code may have changed in a release between two of them."""

NAMES: Mapping[int, str] = {
    1: "error",
    2: "invalid_configuration",
    3: "invalid_command",
    4: "invalid_format",
    5: "feature_unavailable",
    6: "invalid_identifier (from 0.2.20)",
    7: "invalid_version (from 0.4.300)",
    8: "disconnected (from 0.4.300)",
    9: "cannot_establish_connection (from 0.4.300)",
    10: "cannot_create_base_directory",
    11: "cannot_create_runtime_directory (from 0.1.5)",
    12: "cannot_remove_runtime_directory (from 0.1.5)",
    13: "cannot_create_state_directory (from 0.4.300)",
    14: "state_file_not_found (from 0.4.300)",
    15: "state_file_corrupted (from 0.4.300)",
    16: "invalid_state_entry_checksum (from 0.4.300)",
    19: "cannot_open_database (from 0.4.300)",
    20: "resource_not_found",
    21: "cannot_load_resource; - (from 0.4.300); cannot_close_web_socket_connection (from 0.6.0)",
    22: "cannot_save_resource; - (from 0.4.300)",
    23: "cannot_delete_resource; - (from 0.4.300)",
    24: "cannot_serialize_resource; - (from 0.4.300)",
    25: "cannot_deserialize_resource; - (from 0.4.300)",
    30: "stale_client (from 0.4.300)",
    31: "tcp_error (from 0.4.300)",
    32: "quic_error (from 0.4.300)",
    33: "invalid_server_address (from 0.4.300)",
    34: "invalid_client_address (from 0.4.300)",
    35: "invalid_ip_address (from 0.5.0)",
    36: "http_error (from 0.8.0)",
    37: "invalid_api_url (from 0.9.0-edge.5)",
    40: "unauthenticated",
    41: "unauthorized",
    42: "invalid_credentials",
    43: "invalid_username",
    44: "invalid_password",
    45: "invalid_user_status (from 0.0.30)",
    46: "user_already_exists (from 0.0.30)",
    47: "user_inactive (from 0.0.30)",
    48: "cannot_delete_user (from 0.0.30)",
    49: "cannot_change_permissions (from 0.0.30)",
    50: "invalid_personal_access_token_name (from 0.0.52)",
    51: "not_connected; personal_access_token_already_exists (from 0.0.52)",
    52: "request_error; personal_access_tokens_limit_reached (from 0.0.52)",
    53: "invalid_personal_access_token (from 0.0.52)",
    54: "personal_access_token_expired (from 0.0.52)",
    55: "users_limit_reached (from 0.2.20)",
    56: "invalid_personal_access_token_expiry (from 0.9.0-edge.5)",
    57: "transient_not_committed (from 0.9.0-edge.5)",
    58: "transient_not_accepted (from 0.9.0-edge.5)",
    59: "request_already_applied (from 0.9.0-edge.5)",
    60: "invalid_encryption_key; - (from 0.0.52)",
    61: "cannot_encrypt_data; not_connected (from 0.0.52)",
    62: "cannot_decrypt_data; request_error (from 0.0.52); - (from 0.4.300)",
    63: "invalid_jwt_algorithm (from 0.0.30); - (from 0.0.52); client_shutdown (from 0.4.300)",
    64: "invalid_jwt_secret (from 0.0.30); - (from 0.0.52); invalid_tls_domain (from 0.4.300)",
    65: "invalid_tls_certificate_path (from 0.4.300)",
    66: "invalid_tls_certificate (from 0.4.300)",
    67: "failed_to_add_certificate (from 0.4.300)",
    70: "invalid_encryption_key (from 0.0.52)",
    71: "cannot_encrypt_data (from 0.0.52)",
    72: "cannot_decrypt_data (from 0.0.52)",
    73: "invalid_jwt_algorithm (from 0.0.52)",
    74: "invalid_jwt_secret (from 0.0.52)",
    75: "jwt_missing (from 0.0.52)",
    76: "cannot_generate_jwt (from 0.0.52)",
    77: "refresh_token_missing (from 0.0.52); access_token_missing (from 0.4.300)",
    78: "invalid_refresh_token (from 0.0.52); invalid_access_token (from 0.4.300)",
    79: "refresh_token_expired (from 0.0.52); - (from 0.4.300); cannot_fetch_jwks (from 0.8.0)",
    80: "invalid_size_bytes (from 0.4.300)",
    81: "invalid_utf8 (from 0.4.300)",
    82: "invalid_number_encoding (from 0.4.300)",
    83: "invalid_boolean_value (from 0.4.300)",
    84: "invalid_number_value (from 0.4.300)",
    100: "client_not_found",
    101: "invalid_client_id",
    200: "io_error; - (from 0.4.300)",
    201: "write_error; - (from 0.4.300)",
    202: "cannot_parse_utf8; - (from 0.4.300)",
    203: "cannot_parse_int; - (from 0.4.300)",
    204: "cannot_parse_slice; - (from 0.4.300)",
    205: "cannot_parse_byte_unit (from 0.2.5); - (from 0.4.300)",
    206: "connection_closed (from 0.2.20)",
    207: "cannot_parse_float (from 0.2.20); - (from 0.4.300)",
    208: "cannot_parse_bool (from 0.2.20); - (from 0.4.300)",
    209: "cannot_parse_header_kind (from 0.2.20)",
    300: "http_response_error",
    301: "request_middleware_error; invalid_http_request (from 0.4.300)",
    302: "cannot_create_endpoint; invalid_json_response (from 0.4.300)",
    303: "cannot_parse_url; invalid_bytes_response (from 0.4.300)",
    304: "invalid_response; empty_response (from 0.4.300)",
    305: "empty_response; cannot_create_endpoint (from 0.4.300)",
    306: "cannot_parse_address; cannot_parse_url (from 0.4.300)",
    307: "read_error; - (from 0.4.300)",
    308: "connection_error; - (from 0.4.300)",
    309: "read_to_end_error; - (from 0.4.300)",
    400: "web_socket_error (from 0.6.0)",
    401: "web_socket_connection_error (from 0.6.0)",
    402: "web_socket_close_error (from 0.6.0)",
    403: "web_socket_receive_error (from 0.6.0)",
    404: "web_socket_send_error (from 0.6.0)",
    1000: "cannot_create_streams_directory",
    1001: "cannot_create_stream_directory",
    1002: "cannot_create_stream_info",
    1003: "cannot_update_stream_info",
    1004: "cannot_open_stream_info",
    1005: "cannot_read_stream_info",
    1006: "cannot_create_stream",
    1007: "cannot_delete_stream",
    1008: "cannot_delete_stream_directory",
    1009: "stream_id_not_found",
    1010: "stream_name_not_found",
    1011: "stream_id_already_exists; stream_directory_not_found (from 0.6.0)",
    1012: "stream_name_already_exists",
    1013: "invalid_stream_name",
    1014: "invalid_stream_id",
    1015: "cannot_read_streams",
    1019: "invalid_topic_size (from 0.4.300)",
    1020: "too_many_streams (from 0.9.0-edge.5)",
    2000: "cannot_create_topics_directory",
    2001: "cannot_create_topic_directory",
    2002: "cannot_create_topic_info",
    2003: "cannot_update_topic_info",
    2004: "cannot_open_topic_info",
    2005: "cannot_read_topic_info",
    2006: "cannot_create_topic",
    2007: "cannot_delete_topic",
    2008: "cannot_delete_topic_directory",
    2009: "cannot_poll_topic",
    2010: "topic_id_not_found",
    2011: "topic_name_not_found",
    2012: "topic_id_already_exists; - (from 0.6.0)",
    2013: "topic_name_already_exists",
    2014: "invalid_topic_name",
    2015: "too_many_partitions",
    2016: "invalid_topic_id",
    2017: "cannot_read_topics",
    2018: "invalid_replication_factor (from 0.2.5)",
    2019: "invalid_partitions_count (from 0.6.0)",
    2020: "topic_directory_not_found (from 0.6.0)",
    2021: "too_many_topics (from 0.9.0-edge.5)",
    3000: "cannot_create_partition",
    3001: "cannot_create_partitions_directory",
    3002: "cannot_create_partition_directory",
    3003: "cannot_open_partition_log_file",
    3004: "cannot_read_partitions",
    3005: "cannot_delete_partition",
    3006: "cannot_delete_partition_directory",
    3007: "partition_not_found",
    3008: "no_partitions",
    3009: "topic_full (from 0.4.300)",
    3010: "cannot_delete_consumer_offsets_directory (from 0.4.300)",
    3011: "cannot_delete_consumer_offset_file (from 0.4.300)",
    3012: "cannot_create_consumer_offsets_directory (from 0.4.300)",
    3013: "partition_id_space_exhausted (from 0.9.0-edge.5)",
    3020: "cannot_read_consumer_offsets (from 0.3.0)",
    3021: "consumer_offset_not_found (from 0.4.300)",
    3022: "not_resolved_consumer (from 0.6.0)",
    3023: "cannot_open_consumer_offsets_file (from 0.6.0)",
    4000: "segment_not_found",
    4001: "segment_closed",
    4002: "invalid_segment_size",
    4003: "cannot_create_segment_log_file",
    4004: "cannot_create_segment_index_file",
    4005: "cannot_create_segment_time_index_file",
    4006: "cannot_save_messages_to_segment",
    4007: "cannot_save_index_to_segment",
    4008: "cannot_save_time_index_to_segment",
    4009: "invalid_messages_count",
    4010: "cannot_append_message",
    4011: "cannot_read_message",
    4012: "cannot_read_message_id",
    4013: "cannot_read_message_state",
    4014: "cannot_read_message_timestamp",
    4015: "cannot_read_headers_length",
    4016: "cannot_read_headers_payload",
    4017: "too_big_headers_payload; too_big_user_headers (from 0.5.0)",
    4018: "invalid_header_key",
    4019: "invalid_header_value",
    4020: "cannot_read_message_length",
    4021: "cannot_read_message_payload",
    4022: "too_big_message_payload",
    4023: "too_many_messages",
    4024: "empty_message_payload",
    4025: "invalid_message_payload_length",
    4026: "cannot_read_message_checksum",
    4027: "invalid_message_checksum",
    4028: "invalid_key_value_length",
    4029: "command_length_error (from 0.2.20)",
    4030: "invalid_segments_count (from 0.4.300)",
    4031: "non_zero_offset (from 0.5.0)",
    4032: "non_zero_timestamp (from 0.5.0)",
    4033: "missing_index (from 0.5.0)",
    4034: "invalid_indexes_byte_size (from 0.5.0)",
    4035: "invalid_indexes_count (from 0.5.0)",
    4036: "invalid_messages_size (from 0.5.0)",
    4037: "too_small_message (from 0.5.0)",
    4038: "invalid_message_timestamp_delta (from 0.8.0)",
    4039: "invalid_batch_checksum (from 0.8.0)",
    4040: "invalid_header_kind (from 0.8.0)",
    4041: "unsupported_option_key (from 0.9.0-edge.5)",
    4042: "invalid_option_value (from 0.9.0-edge.5)",
    4043: "options_block_too_large (from 0.9.0-edge.5)",
    4050: "cannot_send_messages_due_to_client_disconnection (from 0.4.300)",
    4051: "background_send_error (from 0.5.0)",
    4052: "background_send_timeout (from 0.5.0)",
    4053: "background_send_buffer_full (from 0.5.0)",
    4054: "background_worker_disconnected (from 0.5.0)",
    4055: "background_send_buffer_overflow (from 0.5.0)",
    4056: "producer_send_failed (from 0.5.0)",
    4057: "producer_closed (from 0.5.0)",
    4100: "invalid_offset",
    4101: "cannot_read_consumer_offsets; - (from 0.3.0); invalid_reserved_field (from 0.8.0)",
    5000: "consumer_group_not_found; consumer_group_id_not_found (from 0.0.52)",
    5001: "consumer_group_already_exists; consumer_group_id_already_exists (from 0.0.52); - (from 0.6.0)",
    5002: "consumer_group_member_not_found; invalid_consumer_group_id (from 0.0.52)",
    5003: "invalid_consumer_group_id; consumer_group_name_not_found (from 0.0.52)",
    5004: "cannot_create_consumer_groups_directory; invalid_consumer_group_name (from 0.0.30); "
    "consumer_group_name_already_exists (from 0.0.52)",
    5005: "cannot_read_consumer_groups; consumer_group_name_already_exists (from 0.0.30); invalid_consumer_group_name (from 0.0.52)",
    5006: "cannot_create_consumer_group_info; consumer_group_member_not_found (from 0.0.52)",
    5007: "cannot_delete_consumer_group_info; cannot_create_consumer_group_info (from 0.0.52)",
    5008: "cannot_delete_consumer_group_info (from 0.0.52)",
    5009: "consumer_group_partition_not_owned (from 0.9.0-edge.5)",
    6000: "missing_base_offset_retained_message_batch (from 0.2.5)",
    6001: "missing_last_offset_delta_retained_message_batch (from 0.2.5)",
    6002: "missing_max_timestamp_retained_message_batch (from 0.2.5)",
    6003: "missing_length_retained_message_batch (from 0.2.5)",
    6004: "missing_payload_retained_message_batch (from 0.2.5)",
    7000: "cannot_read_batch_base_offset (from 0.2.5)",
    7001: "cannot_read_batch_length (from 0.2.5)",
    7002: "cannot_read_last_offset_delta (from 0.2.5)",
    7003: "cannot_read_max_timestamp (from 0.2.5)",
    7004: "cannot_read_batch_payload (from 0.2.5)",
    8000: "invalid_connection_string (from 0.4.300)",
    9000: "snapshot_file_completion_failed (from 0.4.300)",
    10000: "cannot_serialize_resource (from 0.4.300)",
    10001: "cannot_deserialize_resource (from 0.4.300)",
    10002: "cannot_read_file (from 0.4.300)",
    10003: "cannot_read_file_metadata (from 0.4.300)",
    10004: "cannot_seek_file (from 0.4.300)",
    10005: "cannot_append_to_file (from 0.4.300)",
    10006: "cannot_write_to_file (from 0.4.300)",
    10007: "cannot_overwrite_file (from 0.4.300)",
    10008: "cannot_delete_file (from 0.4.300)",
    10009: "cannot_sync_file (from 0.4.300)",
    10010: "cannot_read_index_offset (from 0.4.300)",
    10011: "cannot_read_index_position (from 0.4.300)",
    10012: "cannot_read_index_timestamp (from 0.4.300)",
    10013: "timestamp_out_of_range (from 0.6.0)",
    11000: "shard_not_found (from 0.6.0)",
    11001: "shard_communication_error (from 0.6.0)",
    12000: "cannot_bind_to_socket (from 0.6.0)",
    12001: "task_timeout (from 0.6.0)",
    13000: "io_error (from 0.6.0)",
    14000: "already_authenticated (from 0.9.0-edge.5)",
    14001: "invalid_session (from 0.9.0-edge.5)",
    14003: "incompatible_protocol_version (from 0.9.0-edge.5)",
}
"""Names with the release they hold from, until the next one of the line; none given: from the first on; "-": taken away."""

MAX_STATUSES = 1_024
"""Names that are remembered: a frame may have any status."""

_ENTRY = re.compile(r"(\S+)(?: \(from (\S+)\))?")


def version(release: str) -> tuple[int, ...]:
    """Return a release as a tuple that sorts by age; a pre-release sorts before later ones."""
    return tuple(int(part) for part in re.findall(r"\d+", release))


@lru_cache(MAX_STATUSES)
def possible_names(layout: str, code: int) -> Sequence[str]:
    """Return the names that a code has within the releases of a layout; none where it is not known."""
    if not code:
        return ("ok",)
    first, last = map(version, LAYOUT_RELEASES[layout])
    entries = [(version(since or RELEASES[0]), name) for name, since in _ENTRY.findall(NAMES.get(code, "").replace(";", ""))]
    before = [name for since, name in entries if since <= first]
    names = before[-1:] + [name for since, name in entries if first < since <= last]
    names = [name for name in dict.fromkeys(names) if name != "-"]
    if not names and before != ["-"]:
        # never named in a release looked at: the name it got next is the only one it can have had
        names = [name for since, name in entries if since > last and name != "-"][:1]
    return names


class Statuses(Mapping[int, str]):
    """The status names of a layout, read from `NAMES` when asked for. A code that its releases name differently has none."""

    def __init__(self, layout: str) -> None:
        self.layout = layout

    def __getitem__(self, code: int) -> str:
        names = possible_names(self.layout, code)
        if len(names) != 1:
            raise KeyError(code)
        return names[0]

    def __iter__(self) -> Iterator[int]:
        return (code for code in (0, *NAMES) if code in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


statuses = cache(Statuses)
"""The status names of a layout, the same object for each call."""
