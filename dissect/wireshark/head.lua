-- RabbitMQ Streams and Apache Iggy for Wireshark and tshark @TESTED@: @PROTOCOLS@.
set_plugin_info({ version = "@VERSION@", author = "streamdump" })
