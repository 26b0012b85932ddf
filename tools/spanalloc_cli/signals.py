"""Signals of a command that runs a program and stays until its end: the program's, not the command's."""

import contextlib
import signal

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LEFT_TO_THE_PROGRAM = (signal.SIGINT, signal.SIGQUIT)  # a terminal sends them to both


@contextlib.contextmanager
def passed_on():
    """Signals that this process gets are the program's: to(program), a Popen, as soon as there is one; those that came
    before are passed on then. (The handlers go with exec; Python's own choices are not the program's: restore_signals.)
    """
    program, early = None, []

    def pass_on(number, _):
        if program is None:
            early.append(number)
        else:
            program.send_signal(number)

    def to(started):
        nonlocal program
        program = started
        for number in early:
            program.send_signal(number)

    before = {each: signal.signal(each, pass_on) for each in _PASSED_ON}
    before.update((each, signal.signal(each, lambda *_: None)) for each in _LEFT_TO_THE_PROGRAM)
    try:
        yield to
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
