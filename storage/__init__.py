"""Entries on disks: bookies, ledgers, topics' logs, object stores, sealing. It knows no client's protocol and no
other region.
"""
