"""From a graph and a layout to blocks and Programs."""
