"""The process of a cluster's master.

    python -m runtime.cluster.entrypoint RUNTIME_DIR REPORT_FD LOCK_FD first | join | member

It is started by `understudy start`, by `start-master` to join a running cluster, or by `start --role master` as a
member of a cluster on several hosts. The starter holds the lock of the runtime directory and hands it over. The process
reads the configuration there. Then it reports, in one JSON line on the report descriptor, that it serves or why not.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
from pathlib import Path

from actors.errors import ActorError, ActorSystemError
from actors.process.diagnostics import Diagnostics
from actors.process.logs import configure_logging
from actors.process.system import ProcessActorSystem
from actors.receptionist import Listing, Receptionist, ReceptionistGateway
from actors.rpc.codec import prepare
from actors.rpc.security import load_or_create_secret
from actors.rpc.service import RpcService
from actors.service_system import start_actor_system
from blob.gateway import BlobServerGateway
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.files import make_private
from conf.options import ClusterOptions, HighAvailabilityOptions, JobManagerOptions, SecurityOptions
from conf.secret import SecretStr
from runtime.cluster.host_processes import JOINING, MEMBER, Report
from runtime.cluster.master import ClusterEntrypoint, Master, entrypoint_of
from runtime.environment.call_audit import CallAudit
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext, has_redis, log_config, rpc_config, system_address
from runtime.environment.descriptor import ProcessRecord
from runtime.environment.directory import ClusterDirectory, ClusterLock
from runtime.errors import ClusterError
from runtime.ha.errors import FeatureLevelUnsupportedError, HaError
from runtime.ha.keys import ClusterKeys
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.standalone_endpoint import StandaloneHa
from runtime.ha.user_store import UserFile
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.metrics.metric import MetricQueryServiceGateway
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.descriptor import AttemptInformation, JobInformation
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.master import MasterGateway
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway

logger = logging.getLogger(__name__)

_EXPECTED = (ActorError, ClusterError, ConfigurationError, HaError, OSError)


_COMPONENTS = (
    "runtime.dispatcher.endpoint",
    "runtime.jobmaster.endpoint",
    "runtime.cluster.blob_server",
    "runtime.resourcemanager.endpoint",
)
_GATEWAYS = (
    BlobServerGateway,
    DispatcherGateway,
    JobMasterGateway,
    MasterGateway,
    MetricQueryServiceGateway,
    ReceptionistGateway,
    ResourceManagerGateway,
    TaskExecutorGateway,
)
_VALUES = (ArchivedExecutionGraph, AttemptInformation, ExecutionGraphSnapshot, JobGraph, JobInformation)


async def _serve(
    configuration: Configuration,
    directory: ClusterDirectory,
    system: ProcessActorSystem,
    claim: Claim,
    lock: ClusterLock,
    report: Report,
    entrypoint: ClusterEntrypoint,
    is_member: bool,
) -> Master:
    """Serve until the master is stopped, and return it."""
    loop = asyncio.get_running_loop()
    secret = load_or_create_secret(configuration.get(SecurityOptions.SECRET_FILE))
    service = await _listen(configuration, directory, secret, is_first=lock.exclusive)
    redis, configuration = await _redis_of(configuration, directory)
    if lock.exclusive:
        configuration = configuration.set(JobManagerOptions.RPC_PORT, service.port)
        configuration.write(directory.configuration_file)
    context = ComponentContext(configuration, directory, system_address(configuration, service.port))
    receptionist = Receptionist(service)
    await start_actor_system(service, receptionist.where)
    ha = await context.ha_services(service)
    if not has_redis(configuration):
        keys = ClusterKeys(configuration.get(ClusterOptions.ID))
        await service.start_server(StandaloneHa(service, keys, UserFile(directory.users)))
        await ha.cleanup()  # a killed master kept its handles in memory
    storage = configuration.get(HighAvailabilityOptions.STORAGE_DIR) / configuration.get(ClusterOptions.ID)
    make_private(storage, durable=True)
    master = Master(service, context, system, receptionist, redis, ha, claim, lock, entrypoint, is_member=is_member)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, master.stop_requested.set)
    await service.start_server(receptionist)
    await service.start_server(Diagnostics(service))
    await service.start_server(master)
    master.termination.add_done_callback(lambda _: master.stop_requested.set())
    receptionist.enter(Listing(master.path, str(master.address), os.getpid()))
    try:
        await master.bring_up()
        lock.share()
        report.send(address=str(context.system))
        logger.info("the master serves at %s", context.system)
        await master.stop_requested.wait()
    finally:
        await master.bring_down()
        await service.close()
    if master.failure is not None:
        raise master.failure
    return master


async def _listen(
    configuration: Configuration, directory: ClusterDirectory, secret: bytes, *, is_first: bool
) -> RpcService:
    """Open the configured port; a further master of this machine takes another port if that is in use."""
    ports = [configuration.get(JobManagerOptions.RPC_PORT)] + ([] if is_first else [0])
    for port in ports:
        rpc, recorder = rpc_config(configuration, directory, port=port), CallAudit(directory.audit_log)
        service = RpcService(asyncio.get_running_loop(), secret, rpc, recorder)
        try:
            await service.listen()
        except ActorSystemError:
            if port == ports[-1]:
                raise
        else:
            return service
    raise AssertionError("not reached")


async def _redis_of(
    configuration: Configuration, directory: ClusterDirectory
) -> tuple[EmbeddedRedis | None, Configuration]:
    """Return the cluster's own Redis, running, or None if it uses another or none; and the configuration."""
    if not has_redis(configuration):
        return None, configuration
    url = configuration.get(HighAvailabilityOptions.REDIS_URL)
    embedded = EmbeddedRedis(directory.redis, socket_path=directory.socket_dir() / "redis.sock")
    if url is None:
        await embedded.start_async()  # its first start makes the password that its URL needs
        return embedded, configuration.set(HighAvailabilityOptions.REDIS_URL, SecretStr(embedded.url))
    if embedded.exists() and embedded.url == url.reveal():
        return embedded, configuration
    return None, configuration


def _take_number(directory: ClusterDirectory) -> Claim:
    """Claim the lowest number that no living master of this directory has."""
    number = 0
    while not (claim := directory.claim(f"master-{number}")).try_acquire():
        number += 1
    return claim


def preload() -> None:
    """Import the components and compile their messages, so that forked processes do not have to.

    Call this before the actor system's admin is forked. Otherwise each JobMaster, which is a process for one job, would
    compute for 0.15 s before it starts.
    """
    for module in _COMPONENTS:
        importlib.import_module(module)
    prepare(*_GATEWAYS, *_VALUES)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page it looks at


def main() -> int:
    """Run a master until it is stopped; return its entrypoint's exit status, or 1 if it could not start."""
    directory, report = ClusterDirectory(Path(sys.argv[1])), Report(int(sys.argv[2]))
    descriptor, mode = int(sys.argv[3]), sys.argv[4]
    try:
        with ClusterLock.handed(directory.lock_file, descriptor, exclusive=mode != JOINING) as lock:
            claim = _take_number(directory)
            claim.note(ProcessRecord.of("master", os.getpid()))  # without an address, because it does not serve yet
            configuration = Configuration.read(directory.configuration_file)
            configure_logging(log_config(configuration, directory, claim.path.name.removesuffix("-0")))
            logger.info("the master starts as process %d", os.getpid())
            preload()
            # Before any thread is started: the actor system's admin is forked from this process.
            system = ProcessActorSystem()
            entrypoint = entrypoint_of(configuration)
            serving = _serve(configuration, directory, system, claim, lock, report, entrypoint, mode == MEMBER)
            master = asyncio.run(serving)
            claim.forget()
            if lock.exclusive:  # this was the last master, and has stopped the cluster
                entrypoint.clean_up(directory, is_forgotten=master.is_forgotten)
    except _EXPECTED as error:
        # The level is an answer to a wrong installation, and no defect: its message says everything.
        remedy = str(getattr(error, "remedy", ""))
        is_expected = isinstance(error, FeatureLevelUnsupportedError)
        logger.critical("the master ends: %s", "; ".join(filter(None, (str(error), remedy))), exc_info=not is_expected)
        report.send(error=str(error), remedy=remedy)
        return 1
    logger.info("the master has stopped")
    return entrypoint.exit_code(master.application_status)


if __name__ == "__main__":
    sys.exit(main())
