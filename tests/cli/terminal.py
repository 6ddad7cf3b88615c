"""Runs the tests of a script: those that need a pseudo-terminal, the others, or all.

Machines without pseudo-terminals (some containers) cannot run the first kind. They are a ctest test of their own, so that ctest
reports them as skipped there.
"""

import os
import pty
import sys
import unittest


def needs_terminal(test):
    """Marks a test case or one test of it."""
    test.needs_terminal = True
    return test


def can_open_terminal():
    try:
        ends = pty.openpty()
    except OSError:
        return False
    for end in ends:
        os.close(end)
    return True


class Loader(unittest.TestLoader):
    def __init__(self, with_terminal):
        super().__init__()
        self.with_terminal = with_terminal

    def getTestCaseNames(self, case):
        def marked(name):
            return hasattr(case, "needs_terminal") or hasattr(getattr(case, name), "needs_terminal")

        return [name for name in super().getTestCaseNames(case) if marked(name) == self.with_terminal]


def main(arguments):
    """arguments: of unittest, behind --terminal (tests at a terminal alone; exit status 77 where none can be opened) or --no-terminal
    (the others); with neither, all tests run."""
    loader = unittest.defaultTestLoader
    if arguments[:1] in (["--terminal"], ["--no-terminal"]):
        loader = Loader(arguments[0] == "--terminal")
        arguments = arguments[1:]
        if loader.with_terminal and not can_open_terminal():
            print("skipped: this machine has no pseudo-terminals")
            sys.exit(77)
    unittest.main(module="__main__", argv=[sys.argv[0], *arguments], testLoader=loader)
