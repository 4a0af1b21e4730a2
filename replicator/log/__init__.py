"""The replicated log of a topic and the state that it keeps. It knows no link."""
