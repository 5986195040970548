"""Golden captures: what the messages of a capture say, without what is chance, kept in a file and compared with a later capture."""
