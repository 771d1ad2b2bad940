"""Guards of a project's own module names: see `understudy.imports`."""

from __future__ import annotations

from tests.mutants.model import Mutant

_IMPORTS = "understudy/imports.py"
_TESTS = "unit/test_understudy_imports.py"

MUTANTS = (
    Mutant(
        "own-modules-instead-of-the-users",
        "A user's module wins over ours of the same name.",
        _IMPORTS,
        "            if spec is not None and not _is_ours(spec) and _has_modules(spec):\n",
        "            if False:\n",
        (f"{_TESTS}::test_the_users_modules_win_and_ours_work_behind_them",),
    ),
    Mutant(
        "own-root-hides-what-follows-on-the-path",
        "A user's module wins wherever ours stands on the path.",
        _IMPORTS,
        "[entry for entry in sys.path if not _is_root(entry)]",
        "list(sys.path)",
        (f"{_TESTS}::test_ours_come_last_wherever_they_stand_on_the_path",),
    ),
    Mutant(
        "directory-without-modules-taken-for-a-package",
        "A directory that only has the name hides no module of ours.",
        _IMPORTS,
        " and not _is_ours(spec) and _has_modules(spec):",
        " and not _is_ours(spec):",
        (f"{_TESTS}::test_a_directory_that_only_has_the_name_hides_nothing",),
    ),
    Mutant(
        "own-module-loaded-twice",
        "A module of ours is one, under both of its names.",
        _IMPORTS,
        "        if any(map(_is_top_level, NAMES)):\n            return ModuleSpec(fullname, _AliasLoader(name))\n",
        "",
        (f"{_TESTS}::test_where_nobody_else_has_the_names_both_are_one_module",),
    ),
    Mutant(
        "pickles-import-ours-for-the-users",
        "What one of our modules unpickles is the user's module of the name.",
        _IMPORTS,
        " or type(fromlist) is list:",
        ":",
        (f"{_TESTS}::test_pickles_name_whichever_is_meant",),
    ),
    Mutant(
        "program-with-the-import-of-ours",
        "A user's program imports as Python does.",
        "runtime/spark/task/program.py",
        "__builtins__=builtins, ",
        "__builtins__=__builtins__, ",
        (f"{_TESTS}::test_a_program_has_pythons_own_import",),
    ),
    Mutant(
        "wire-names-by-process",
        "Processes of both kinds know our classes by one name on the wire.",
        "actors/own_modules.py",
        "    return module.removeprefix(_PREFIX)\n",
        "    return module\n",
        (f"{_TESTS}::test_the_wire_knows_ours_by_one_name",),
    ),
    Mutant(
        "command-line-with-modules-of-the-current-directory",
        "The command line does not take the current directory's modules for ours.",
        "runtime/cluster/__main__.py",
        "    forget_top_level()  # Python has imported `runtime` and `runtime.cluster` to find this module\n",
        "",
        (f"{_TESTS}::test_the_command_line_starts_in_a_directory_with_modules_of_our_names",),
    ),
)
