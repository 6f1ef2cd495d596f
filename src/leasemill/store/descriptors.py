"""Out of file descriptors: which limit it is, and what to do."""

from __future__ import annotations

import errno


def out_of_descriptors(error: BaseException | None) -> str | None:
    """A sentence if this error, or one that it followed from, is the system's refusal to open another file."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            return (
                f"too many open files: this process may have {_limit()} open (ulimit -n); allow more, for example with "
                "ulimit -n 1024, LimitNOFILE= in a systemd unit or --ulimit nofile of a container, then start it again"
            )
        if isinstance(error, OSError) and error.errno == errno.ENFILE:
            return (
                "too many open files on this machine: raise its limit (sysctl fs.file-max), or end processes that have "
                "many files open, then start it again"
            )
        error = error.__cause__ or error.__context__
    return None


def _limit() -> str:
    try:
        import resource  # noqa: PLC0415  (Windows has none)
    except ImportError:
        return "no more"
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"
