"""What /metrics says. It reads counters, and counts nothing itself."""
