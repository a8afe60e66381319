"""The commands, one module each: the options, and the function that runs the command."""
