"""Apache Iggy: fourteen layouts in two framings."""
