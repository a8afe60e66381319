"""milblob in place of parts of other libraries, one module per library; nothing here is imported by default."""
