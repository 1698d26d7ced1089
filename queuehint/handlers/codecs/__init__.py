"""Codecs around another codec: payloads encrypted, or kept outside the store."""
