"""The exception tree of the JobMaster.

JobMasterError
└── IllegalStateTransition      a job or a task was asked to go from one state to another that cannot follow it
"""

from __future__ import annotations


class JobMasterError(Exception):
    """Base of the JobMaster's errors."""


class IllegalStateTransition(JobMasterError):
    """A job or a task was asked to go from one state to another that cannot follow it: a fault of the runtime's."""
