"""Exceptions of the library; each carries its sentence: what is wrong, where, and what to do."""


class Error(Exception):
    """Base class of everything that the library refuses."""


class InvalidError(Error, ValueError):
    """The input is malformed or contradicts itself."""


class UnsupportedError(Error, NotImplementedError):
    """The input is valid, but this build or this method cannot do it."""


class IoError(Error, OSError):
    """An operating-system call failed."""


class ExhaustedError(Error, MemoryError):
    """A limit of memory, pool or queue is reached."""
