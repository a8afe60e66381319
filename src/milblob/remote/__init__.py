"""Models and files that are not local files: at URLs, and in zip archives. They are read range by range.

A remote file is a sparse local file of the same size, and the set of ranges that it holds (`sparse`). A remote
directory is a private local directory with a file for each remote one (`mirror`). All readers get local paths.
"""
