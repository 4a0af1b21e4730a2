"""What a client is to the broker, and what all of them share: who it is, its producers, consumers, watchers."""
