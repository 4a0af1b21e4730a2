"""Disaster recovery: which region may confirm, switching it over, failing over and back, and looking whether that would
work.
"""
