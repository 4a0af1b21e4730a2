"""A partition as Kafka sees it: offsets, times, sequences. No requests."""
