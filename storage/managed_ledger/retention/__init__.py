"""What of a topic may be freed, and when. What frees it is the log."""
