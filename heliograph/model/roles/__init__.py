"""What the certificates of a region's processes are for: what calls and keys are whose. It knows no key and no call."""
