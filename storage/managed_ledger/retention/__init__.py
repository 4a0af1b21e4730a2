"""What of a topic may be freed, when, and how it goes: from the rule to the deletion on bookies."""
