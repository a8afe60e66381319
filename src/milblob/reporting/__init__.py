"""Reports that people look at: one model, or two beside each other, as one HTML file."""
