"""Small closed models of the article, in NumPy, that the playground shows."""
