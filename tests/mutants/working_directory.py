"""Guards of where a job's code runs, of what it ships, and of its variables."""

from __future__ import annotations

from tests.mutants.model import Mutant

_PLACE = "runtime/jobgraph/working_directory.py"
_PACKING = "runtime/librarycache/packing.py"
_PATHS = "runtime/spark/task/working_directory.py"
_PLACE_TESTS = "unit/test_working_directory.py"
_PACKING_TESTS = "unit/test_packing.py"

MUTANTS = (
    Mutant(
        "directory-of-the-same-path-taken-for-the-callers",
        "A directory that merely has the path of the caller's is another one.",
        _PLACE,
        "here.inode != self.inode or ",
        "",
        (f"{_PLACE_TESTS}::test_another_directory_of_the_same_path_is_not_the_callers",),
    ),
    Mutant(
        "local-directory-of-another-machine-taken-for-the-callers",
        "Another machine sees the caller's directory on a network file system only.",
        _PLACE,
        "return _NETWORK_FILE_SYSTEM.fullmatch(",
        'return re.fullmatch(".*", ',
        (f"{_PLACE_TESTS}::test_another_machine_sees_it_on_a_network_file_system_only",),
    ),
    Mutant(
        "directory-that-may-not-be-entered-taken-for-seen",
        "A job does not run in a directory that its process may not enter.",
        _PLACE,
        " or not os.access(self.path, os.R_OK | os.X_OK)",
        "",
        (f"{_PLACE_TESTS}::test_a_directory_that_may_not_be_entered_is_not_seen",),
    ),
    Mutant(
        "workers-shared-by-two-projects",
        "A job that imports what lies beside it has Python workers of its own.",
        "runtime/spark/spec.py",
        "(place is not None and bool(place.worker_path))",
        "False",
        (f"{_PLACE_TESTS}::test_what_a_task_with_a_place_sees",),
    ),
    Mutant(
        "workers-with-variables-shared",
        "The workers that have a job's variables serve that job alone.",
        "runtime/spark/spec.py",
        "bool(job.environment) or ",
        "",
        (f"{_PLACE_TESTS}::test_a_job_with_variables_has_workers_of_its_own",),
    ),
    Mutant(
        "table-name-taken-for-a-path",
        "Only the paths of file sources are resolved.",
        _PATHS,
        ".lower() in FILE_FORMATS\n",
        '.lower() != ""\n',
        (f"{_PLACE_TESTS}::test_a_path_of_no_file_system_stays",),
    ),
    Mutant(
        "variables-shown",
        "A job graph that is shown does not show the values of its variables.",
        "runtime/jobgraph/job_graph.py",
        "environment: dict[str, str] = field(default_factory=dict, repr=False)",
        "environment: dict[str, str] = field(default_factory=dict)",
        (f"{_PLACE_TESTS}::test_it_travels_with_the_job_and_what_is_secret_is_not_shown",),
    ),
    Mutant(
        "clusters-variables-overwritten",
        "A job does not set the variables by which the cluster finds its processes.",
        "runtime/jobgraph/validation.py",
        "        if name in RESERVED_VARIABLES:\n",
        "        if False:\n",
        ("unit/test_jobgraph.py::test_variables_that_cannot_be_and_no_value_is_shown",),
    ),
    Mutant(
        "link-out-of-a-directory-packed",
        "A symbolic link that leads out of a directory is not shipped.",
        _PACKING,
        "    if not end.is_relative_to(root):\n",
        "    if False:\n",
        (f"{_PACKING_TESTS}::test_a_link_that_leaves_the_directory_is_refused",),
    ),
    Mutant(
        "link-out-of-a-directory-unpacked",
        "A symbolic link that leads out of a shipped directory is not made.",
        _PACKING,
        "        if not path.resolve().is_relative_to(target.resolve()):\n",
        "        if False:\n",
        (f"{_PACKING_TESTS}::test_a_link_that_leaves_it_is_not_unpacked",),
    ),
    Mutant(
        "directory-of-any-size-shipped",
        "A directory that is too large is not shipped.",
        _PACKING,
        "    if len(sizes) > _MOST_FILES or total > max_bytes:\n        largest",
        "    if len(sizes) > _MOST_FILES:\n        largest",
        (f"{_PACKING_TESTS}::test_a_directory_that_is_too_large_names_its_largest_files",),
    ),
    Mutant(
        "repository-shipped",
        "A repository's own directory is not shipped.",
        _PACKING,
        '{".git", "__pycache__", ".venv"}',
        '{"__pycache__", ".venv"}',
        (f"{_PACKING_TESTS}::test_what_is_ignored_does_not_travel",),
    ),
)
