"""Small stores that several test modules use, each with its helpers."""
