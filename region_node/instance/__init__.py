"""One instance on one machine: its data folder, its certificates, its wide-area links, and the supervisor that owns its
processes.
"""
