"""From tables of measured times to a card: reading, predicting, fitting, and saying how sure the result is."""
