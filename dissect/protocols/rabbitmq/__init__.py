"""RabbitMQ Streams: the protocol in use and its first draft."""
