-- @PROTOCOLS@ in Wireshark: written by streamdump @VERSION@ from its tables.
--
-- To install it: `streamdump wireshark --install`, or copy this file into the folder that Wireshark names "Personal Lua Plugins" (Help, About
-- Wireshark, Folders; `tshark -G folders`), and start Wireshark again. Without installing: tshark -X lua_script:FILE -r CAPTURE.
-- To remove it: `streamdump wireshark --remove`, or delete the file.
--
-- It was tested with Wireshark and tshark @TESTED@.
--
-- The ports are those of the servers; on other ones "Decode As" and heuristics find the protocols, within TLS too where Wireshark has keys.
-- Filters have the names that `streamdump protocols --fields` lists, behind the name of the protocol: rabbitmq_stream.stream == "orders",
-- iggy.status_label == "stream_id_not_found". Besides, each protocol has response_in, response_to and response_time, and as expert
-- information fault, refused and note.
--
-- Passwords and tokens are not shown in the tree and in columns, unless a preference of the protocol says so. The pane with the bytes shows
-- them all the same, and so do exports of bytes.
--
-- What it cannot do, and streamdump does:
-- - unpack compressed sub-batches, read AMQP 1.0 in bodies: both stay bytes, and so do numbers of 128 bits;
-- - verify checksums;
-- - find frames again within a segment, behind a loss: it goes on where a segment begins with a frame;
-- - wait for what tells the layout of a conversation of Apache Iggy: what came before that is read as the newest layout that is left, until
--   the packet is looked at again (tshark -2). A preference sets the layout;
-- - show more than the header of a frame of Apache Iggy that cannot be read to its end: it may hold a password;
-- - tell who answers whom in the classic framing of Apache Iggy once packets are lost: responses are paired by their order. Nor does it tell
--   two conversations of the same addresses and ports.
--
-- SPDX-License-Identifier: GPL-2.0-or-later. This program is free software; you can redistribute it and/or modify it under the terms of the GNU
-- General Public License as published by the Free Software Foundation; either version 2 of the License, or (at your option) any later version.

set_plugin_info({
  version = "@VERSION@",
  author = "streamdump",
  description = "@PROTOCOLS@",
  license = "GPL-2.0-or-later",
})
