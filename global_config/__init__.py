"""The instance's truth: regions, tenants, namespaces, and their edits, agreed between regions; and the copy that
each process reads.
"""
