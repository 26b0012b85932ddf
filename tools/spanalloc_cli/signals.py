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
            return
        # (One that belongs to another user may not be sent to.)
        with contextlib.suppress(PermissionError):
            program.send_signal(number)

    def to(started):
        nonlocal program
        program = started
        for number in early:
            pass_on(number, None)

    # What is ignored here (nohup, a shell's background) the program ignores, too: it stays so.
    heard = [each for each in _PASSED_ON + _LEFT_TO_THE_PROGRAM if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, pass_on if each in _PASSED_ON else lambda *_: None) for each in heard}
    try:
        yield to
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
