"""milblob in the place of parts of other libraries, one module for each; nothing here is imported unless asked for."""
