"""What the supervisor of an instance does to its nodes. It never imports the supervisor."""
