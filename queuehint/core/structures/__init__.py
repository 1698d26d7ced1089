"""What the rules stand on: trie, queues, heaps, indexes."""
