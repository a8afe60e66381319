"""milblob tvm: the commands for archives in Model Library Format."""

from ..parser import CommandParser, add_commands

COMMANDS = {
    "ls": "list modules, memory, parameters and files of an archive",
    "check": "report every problem of archives and .params files",
    "params": "write the parameters of an archive to a file, or give them new values",
}


def add_arguments(parser: CommandParser) -> None:
    """Add the commands."""
    add_commands(parser, COMMANDS, "tvm_")
