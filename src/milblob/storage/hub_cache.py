"""The cache of the Hugging Face Hub: a model's files are links into the `blobs` folder of its repository.

    models--NAME/snapshots/REVISION/Model.mlpackage/Manifest.json -> ../../../blobs/HASH

A link of a model in there may lead to a file in that folder, of the same repository, and nowhere else outside of the
model.
"""

import os
import re

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"


def blob_of(path: str, model: str) -> tuple[str, str] | None:
    """Return where a link in a cached model leads, if it is one of the cache's own.

    The link is read once, and the caller opens what is returned, without following links: a link that is exchanged
    afterwards leads nowhere else.

    `path`: of a file in the model, which may be a link; the folders above it are none that lead out. `model`: path of
    the model.
    Returns: Real path of the repository's folder, and the path in it; None for all else.
    """
    try:
        root, folder = os.path.realpath(model), os.path.realpath(os.path.dirname(path))
        link = os.readlink(path)
    except (OSError, ValueError):
        return None
    parts = root.split(os.sep)
    inside = folder == root or folder.startswith(root + os.sep) or os.path.dirname(root) == folder
    if not inside or os.path.isabs(link):
        return None
    for number in range(1, len(parts) - 2):
        if _REPOSITORY.fullmatch(parts[number]) and parts[number + 1] == _SNAPSHOTS:
            repository = os.sep.join(parts[: number + 1])
            target = os.path.normpath(os.path.join(folder, link))
            blobs, name = os.path.split(target)
            if blobs == os.path.join(repository, _BLOBS) and name not in ("", os.curdir, os.pardir):
                return repository, f"{_BLOBS}/{name}"
    return None
