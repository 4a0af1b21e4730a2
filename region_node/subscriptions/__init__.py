"""Delivery and acknowledgement: dispatchers, consumers, filters, delays. A topic is seen only through ports."""
