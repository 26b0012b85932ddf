"""Real programs as benchmark cases: the inputs they work on, made on the spot, and the drivers of the servers."""
