"""Whether a TaskExecutor may register; Flink's `RegistrationResponse.Rejection` says no to one as well."""

from __future__ import annotations

import runtime
from actors.address import ActorAddress
from conf.configuration import Configuration
from conf.options import ClusterOptions
from runtime.environment.shared_directory import shared_directory_mark
from runtime.gateways.errors import RegistrationRejectedError
from runtime.gateways.messages import TaskExecutorRegistration
from runtime.resourcemanager.instance_manager import Instance


class Admission:
    """What is asked of every TaskExecutor.

    Args:
        configuration: of the ResourceManager's machine.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._host = configuration.get(ClusterOptions.HOST)
        self._shared = shared_directory_mark(
            configuration.get(ClusterOptions.SHARED_DIR), configuration.get(ClusterOptions.ID)
        )

    def check(self, registration: TaskExecutorRegistration, former: Instance | None) -> None:
        """Refuse a TaskExecutor that cannot work for this cluster.

        Args:
            registration: what it says of itself.
            former: the one that is registered under its name, if there is one.

        Raises:
            RegistrationRejectedError: it is of another version, another machine has its name, or it sees another
                shared directory.
        """
        name, host = registration.resource_id, ActorAddress.parse(registration.address).host
        if registration.version != runtime.__version__:
            raise RegistrationRejectedError(
                f"{name} on {host} runs Understudy {registration.version or 'of an unknown version'}, the master runs "
                f"{runtime.__version__}: install the same version on all hosts"
            )
        other = None if former is None else ActorAddress.parse(former.registration.address).host
        if other not in (None, host):
            raise RegistrationRejectedError(
                f"{name} is registered from {other} already, and {host} uses the same name: leave "
                "taskmanager.resource-id out, or give each host one of its own"
            )
        if host != self._host and registration.shared_directory != self._shared:
            raise RegistrationRejectedError(
                f"cluster.shared-dir on {host} is not the directory that the master on {self._host} sees: mount one "
                "file system at that path on all hosts"
            )
