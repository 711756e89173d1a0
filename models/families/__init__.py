"""One short file a model family: config keys and tensor names to blocks."""
