"""Who owns which bundle of topics in this region, and how anybody finds that out."""
