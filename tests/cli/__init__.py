"""The command line without a service."""
