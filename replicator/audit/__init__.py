"""The comparison of a region's copies with their origins, and their repair. It knows links only by a port."""
