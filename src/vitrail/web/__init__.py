"""The web page and its HTTP API: explain an image or a text with several methods side by side."""
