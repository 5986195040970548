"""streamdump's library: reads captures of message-streaming protocols, message by message."""

from pkgutil import extend_path

# Other distributions ship modules below `dissect` too; without this the two hide each other.
__path__ = extend_path(__path__, __name__)
