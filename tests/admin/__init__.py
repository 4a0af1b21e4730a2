"""The admin interface, its policies, and the command line."""
