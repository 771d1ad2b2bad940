"""The exception tree of job graphs and of the pipeline API that builds them.

All of them are `ValueError`:

    JobGraphError                   the job cannot be run as described
    ├── EmptyJobGraphError          no vertices
    ├── CyclicJobGraphError         an edge leads back
    ├── UnknownVertexError          an edge or an input names a vertex that is not in the graph
    ├── DuplicateVertexError        two vertices have the same name or id
    ├── InvalidFunctionError        a vertex has no function, or one that a task process could not find or call
    ├── InvalidVertexError          a vertex's role, inputs or settings do not fit
    ├── InvalidEdgeError            an edge's settings do not fit
    ├── InvalidParameterError       a parameter is not JSON-like, or declared wrongly
    │   └── ParameterUsageError     the command line's parameters are not the declared ones
    ├── InvalidConfigurationError   a job sets something that is not an option of jobs, or a wrong value
    └── JobGraphVersionError        the graph was written in a format that this version does not read
"""

from __future__ import annotations


class JobGraphError(ValueError):
    """The job cannot be run as described."""


class EmptyJobGraphError(JobGraphError):
    """The graph has no vertices."""


class CyclicJobGraphError(JobGraphError):
    """An edge leads back; the message names the vertices of the cycle in order."""


class UnknownVertexError(JobGraphError):
    """An edge or an input names a vertex that is not in the graph."""


class DuplicateVertexError(JobGraphError):
    """Two vertices of one graph have the same name or id."""


class InvalidFunctionError(JobGraphError):
    """A vertex has no function, or one that a task process could not find or call."""


class InvalidVertexError(JobGraphError):
    """A vertex's role, inputs or settings do not fit together."""


class InvalidEdgeError(JobGraphError):
    """An edge's settings do not fit together."""


class InvalidParameterError(JobGraphError):
    """A job parameter is not JSON-like, so it cannot be sent, or it is declared wrongly."""


class InvalidConfigurationError(JobGraphError):
    """A job sets something for itself that is not an option of jobs, or a wrong value."""


class ParameterUsageError(InvalidParameterError):
    """The parameters on the command line do not fit those that the pipeline declares."""


class JobGraphVersionError(JobGraphError):
    """The graph was written in a format that this version does not read."""
