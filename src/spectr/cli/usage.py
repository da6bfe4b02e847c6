"""Messages for wrong flags, arguments and commands, in the words of the library's own errors."""

from typing import Any

from spectr.checks import requirement

__all__ = ["usage_message"]


def usage_message(error: Any) -> str:
    """Return the message for a usage error of typer, with the command that lists the right flags."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" (see {context.command_path} --help)"
    return f"{_sentence(error).rstrip('.')}{hint}"


def _sentence(error: Any) -> str:
    """Return what is wrong. The parts of an error are read by their names, because typer does not export its errors."""
    kind, name = type(error).__name__, str(getattr(error, "option_name", ""))
    if kind == "NoSuchOption":
        close = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"there is no option {name if name.isprintable() else ascii(name)}{close}"
    if kind == "BadOptionUsage":
        return f"{name} {'must have a value' if 'requires' in error.message else 'takes no value'}"
    parameter = getattr(error, "param", None)
    if parameter is None:
        message = str(error.format_message())
        return message[:1].lower() + message[1:]
    shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name.upper()
    if kind == "MissingParameter":
        return f"{shown} must be given"
    return _wrong_value(shown, error)


def _wrong_value(shown: str, error: Any) -> str:
    """Return what the value of a flag must be and what was given, as far as pydantic refused it; otherwise the message
    of the parser."""
    found = error.__cause__.errors()[0] if hasattr(error.__cause__, "errors") else {}
    must = requirement(found.get("type", ""), found.get("ctx", {}))
    if must is None:
        return f"{shown}: {error.message}"
    is_bound = found["type"].startswith(("greater", "less"))
    return f"{shown} must {must}, got {found['input'] if is_bound else repr(found['input'])}"
