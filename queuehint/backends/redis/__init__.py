"""The store that many processes share: the rules of `queuehint.core` in Lua, on Redis or Valkey."""
