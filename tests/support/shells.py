"""What zsh and fish complete, asked as people ask them: by the Tab key of a terminal, and by `complete -C`."""

import contextlib
import os
import select
import subprocess
import time

SECONDS = 60

_ZSHRC = """
PROMPT='READY> '
fpath=({functions} $fpath)
autoload -Uz compinit && compinit -u -D
compadd() {{  # writes down what it is given and the word begins with
  if [[ " $* " != *" -"[OAD]" "* ]]; then
    local -a hits
    builtin compadd -O hits "$@"
    (( $#hits )) && print -rl -- $hits >> {hits}
  fi
  builtin compadd "$@"
}}
finish() {{
  zle complete-word
  print -r -- "$BUFFER" > {buffer}
}}
zle -N finish
bindkey '^I' finish
"""


def fish_completes(script, line, folder, environment):
    """Return the completions that fish offers for a line, with the script in the folder for completions."""
    completions = folder.parent / "fish" / "completions"
    completions.mkdir(parents=True, exist_ok=True)
    (completions / "milblob.fish").write_text(script)
    environment = {**environment, "XDG_CONFIG_HOME": str(folder.parent), "HOME": str(folder.parent)}
    argv = ["fish", "-c", "complete -C $argv[1]", "--", line]
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=SECONDS
    )
    assert done.stderr == ""
    return [row.partition("\t")[0] for row in done.stdout.splitlines()]


def zsh_completes(script, line, folder, environment):
    """Return what zsh offers for a line at the Tab key, with the script among the functions of zsh."""
    import pty

    home = folder.parent / "zsh"
    home.mkdir(exist_ok=True)
    hits, buffer = home / "hits", home / "buffer"
    for path in (hits, buffer):
        path.unlink(missing_ok=True)
    (home / "_milblob").write_text(script)
    (home / ".zshrc").write_text(_ZSHRC.format(functions=home, hits=hits, buffer=buffer))
    main, terminal = pty.openpty()
    environment = {**environment, "ZDOTDIR": str(home), "TERM": "xterm", "LINES": "100", "COLUMNS": "200"}
    with subprocess.Popen(
        ["zsh", "-i"],
        cwd=folder,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        try:
            screen = _read(main, lambda screen: b"READY> " in screen)
            os.write(main, line.encode() + b"\t")
            screen += _read(main, lambda _: buffer.exists() and buffer.stat().st_size)
        finally:
            process.kill()
            os.close(main)
    assert buffer.exists(), screen.decode(errors="replace")
    return hits.read_text().splitlines() if hits.exists() else []


def _read(terminal, is_done):
    screen, end = b"", time.monotonic() + SECONDS
    while not is_done(screen) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.02)[0]:
            with contextlib.suppress(OSError):
                screen += os.read(terminal, 1 << 16)
    return screen
