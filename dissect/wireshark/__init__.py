"""The tables as a plugin for Wireshark."""

from .generate import plugin, plugin_protocols, prefix

__all__ = ["plugin", "plugin_protocols", "prefix"]
