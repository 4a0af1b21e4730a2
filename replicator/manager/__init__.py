"""All links of one broker together. It may know every package here; none imports it at run time."""
