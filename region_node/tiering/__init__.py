"""Tiered storage as a broker has it: policies joined to `storage.tiered`. No step of an offload."""
