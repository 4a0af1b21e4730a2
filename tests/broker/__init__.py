"""Tests of ownership, settings, composition, and the admin interface."""
