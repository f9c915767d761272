"""The command line as a program: ``reput``, ``python -m reput``."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is being imported ends it without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from reput.cli import main as run  # noqa: PLC0415 - takes 0.2 s

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
