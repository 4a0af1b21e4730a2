"""What an instance keeps of its promises while it is broken on purpose: numbered messages, what is read of them, what
links say of themselves, and a judge. It speaks to an instance as its users do; no server imports it.
"""
