"""milblob extract: write tensors to another format."""

from argparse import Namespace

from ..errors import UnsupportedError
from ..formats.weights import with_notes
from ..formats.write import save
from ..model import open as opening
from .progress import shown
from .saving import check_target, report, with_hint
from .selection import describe_filter, select


def run(arguments: Namespace) -> int:
    """Run the command."""
    target = arguments.output
    check_target(arguments.model, target)
    with opening.open(
        arguments.model, constants=arguments.constants, stored=arguments.stored, max_nbytes=arguments.max_nbytes
    ) as model:
        chosen = with_notes(select(model, arguments), model)
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to extract: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        try:
            with shown(arguments) as progress:
                save(chosen, target, force=arguments.force, progress=progress)
        except UnsupportedError as error:
            raise with_hint(error, chosen, arguments) from None
        report(arguments, model.path, target, chosen)
    return 0
