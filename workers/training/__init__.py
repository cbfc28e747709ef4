"""Training: data, loop, optimizers and variants. Knows neither the database nor the queue."""
