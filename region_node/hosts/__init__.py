"""An instance on several hosts: one description of it, what each host is told, and the steps that a host takes when
that changes.
"""
