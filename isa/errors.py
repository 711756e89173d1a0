"""The errors a user may meet: each stops the run and says what was wrong, its value, and what is allowed."""


class SiltwinError(Exception):
    """Base of every error that is not our own bug; the command line prints its text and exits with `exit_code`."""

    exit_code = 2


class ConfigError(SiltwinError):
    """The user's input (model, card, cluster, layout, option, prompt) is wrong or inconsistent."""


class ProgramError(SiltwinError):
    """A Program breaks the rules of the instruction set: shapes, dtypes, names, encoding, synchronisation."""


class GateError(SiltwinError):
    """A condition that the user set on the result does not hold."""

    exit_code = 5


class UnsupportedError(SiltwinError):
    """siltwin does not do this, and says so instead of doing something near."""


class NotYetError(SiltwinError):
    """Planned, and refused until it is there."""
