"""Golden captures: the messages of a capture, without what varies from run to run, kept in a file and compared with a later capture."""
