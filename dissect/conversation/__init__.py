"""What is done with each conversation, from its bytes to its records and its end."""
