"""What the global configuration holds, as values: records, policies, leadership, routes. Who changes them, and HTTP,
are elsewhere.
"""
