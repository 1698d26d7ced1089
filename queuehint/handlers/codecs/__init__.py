"""Codecs around other codecs: payloads encrypted, or kept outside the store."""
