"""Data structures of the rules: trie, queues, heaps, indexes."""
