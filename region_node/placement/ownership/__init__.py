"""Who owns a bundle, by compare-and-set under a lease. It knows no load."""
