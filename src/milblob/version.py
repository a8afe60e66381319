"""The version of milblob. It has a module of its own, so that `milblob --version` imports nothing else."""

VERSION = "0.1.0"
