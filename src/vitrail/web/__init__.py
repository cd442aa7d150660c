"""The page: a picture or a text and a model in, maps of several methods side by side out, over HTTP."""
