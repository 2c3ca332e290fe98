"""The decoder, its sizes, and the readers and writers of its weights."""
