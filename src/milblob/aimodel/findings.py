"""The findings that `milblob.check` can report about a bundle."""

CODES = {
    "lfs-pointer": "a Git LFS pointer in place of the file",
    "pending-change": "a change of the bundle was interrupted: `milblob recover` completes it",
    "missing-file": "main.mlirb, main.hash or metadata.json is missing",
    "extra-file": "a file that bundles do not have",
    "hash": "main.hash is not the SHA-256 of main.mlirb: devices would run a model that was compiled before",
    "metadata": "a key of metadata.json that is missing, not known, or has the wrong type",
    "bytecode": "MLIR bytecode that breaks its format",
    "container-version": "a version of the bytecode other than 6",
    "dialect": "a dialect other than aicode",
    "dialect-version": "a version of aicode other than 2: no tensor is read",
    "producer": "bytecode of another compiler than that of every bundle known",
    "function": "functions that cannot be followed: properties, types or names",
    "constant-size": "a constant with more or fewer bytes than its type needs; Apple's library crashes on it",
    "element-type": "a code of an element type that is not known",
    "attribute-code": "a code of a value that is not known",
    "compressed": "parts of a compressed weight that do not fit each other",
    "operation": "an operation that computes a weight in a way that is not known",
    "resource-key": "a key that two resources have",
    "resource-alignment": "an alignment below that of an element, or above what Apple's reader takes in small files",
    "resource-unused": "a resource that no constant refers to",
    "shared-value": "constants that are one stored value, so that a change in place changes all of them",
    "debug-info": "paths and hashes of source files, which the conversion for debugging leaves in the bundle",
}
"""Every code that a finding can have, and what it means."""
