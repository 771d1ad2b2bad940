"""The failures that hurt users of such systems, what is done about each of them here, and the tests that show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One failure.

    Args:
        name: by which `python -m tests.faults run` knows it.
        done: what is done to the cluster, or to a part of it.
        holds: what must hold.
        tests: that show it, from ``tests/``: ``unit/test_x.py::test_y``. Empty: it is not covered.
        runs: modules with a long form that shows more of it, which take ``--seed``.
        limits: what does not hold, or is not shown.
    """

    name: str
    done: str
    holds: str
    tests: tuple[str, ...]
    runs: tuple[str, ...] = ()
    limits: str = ""

    @property
    def verdict(self) -> str:
        """In a word, as far as the tests that the table names pass."""
        if not self.tests:
            return "not covered"
        return "holds, but see the limits" if self.limits else "holds"


SCENARIOS = (
    Scenario(
        "stopped-leader",
        "A leader stands still (SIGSTOP) for longer than its lease, another one leads, and it goes on.",
        "Whatever it writes is refused, by Redis and by every receiver, and it steps down.",
        (
            "faults/test_masters.py::test_a_master_that_stood_still_beyond_its_lease_is_refused_and_steps_down",
            "contract/test_ha_election.py::test_a_stale_leader_can_write_nothing",
            "contract/test_ha_stores.py::test_a_stale_leader_changes_and_deletes_nothing",
            "contract/test_rpc_calls.py::test_a_standby_refuses_every_token",
            "contract/test_fencing.py::test_a_call_that_changes_something_needs_the_present_leadership",
            "contract/test_fencing.py::test_a_thawed_leader_sends_nothing_and_steps_down",
            "contract/test_fencing.py::test_a_former_job_master_cannot_free_the_slot_that_its_successor_uses",
            "contract/test_dispatcher_revoked.py::"
            "test_a_thawed_dispatcher_answers_nobody_starts_nothing_and_writes_nothing",
            "contract/test_dispatcher_revoked.py::test_a_thawed_dispatcher_drops_no_old_jobs",
            "unit/test_gateways_complete.py::test_every_method_declares_what_fences_it_or_is_an_exception",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "forgetful-replica",
        "Redis dies right after a latch was given, and a replica takes over that has not heard of it.",
        "There are never two leaders whose writes are accepted; epochs rise.",
        (
            "contract/test_ha_failover.py::test_a_replica_that_missed_the_last_leader_makes_no_second_one",
            "contract/test_ha_failover.py::test_a_server_that_may_have_forgotten_a_leader_waits_for_the_end_of_its_lease",
            "contract/test_ha_election.py::test_epochs_rise_over_restarts_and_even_over_the_loss_of_all_data",
            "faults/test_sentinel.py::test_the_replica_takes_over_while_a_job_runs",
        ),
        limits="A job submitted in the last moment may be lost with the writes that the replica had not received.",
    ),
    Scenario(
        "redis-away-at-acquire",
        "Redis cannot be reached, or does not answer, when a contender asks for the latch.",
        "It stays a standby, and leads as soon as it is given the latch; a lost reply is asked for again.",
        (
            "contract/test_ha_election.py::test_nobody_to_ask_at_the_start_means_standby",
            "contract/test_ha_election.py::test_a_lost_reply_to_the_acquisition_is_the_same_request_again",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "redis-blip",
        "Redis is away for less than the lease; for longer; again and again.",
        "Below the lease nothing changes; beyond it leaders step down and are elected anew. No task notices either.",
        (
            "contract/test_ha_election.py::test_a_short_absence_of_redis_changes_nothing",
            "contract/test_ha_election.py::test_a_leader_steps_down_before_its_lease_ends_and_leads_again_later",
            "contract/test_ha_election.py::test_never_two_leaders_while_redis_comes_and_goes",
            "faults/test_masters.py::test_redis_away_for_longer_than_the_lease_costs_no_job_its_task",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "lost-reply",
        "The reply to a write of a handle is lost, or the write arrives long after it was given up.",
        "No handle points to nothing, and nothing that lives is deleted.",
        (
            "contract/test_ha_stores.py::test_the_lost_reply_of_a_put_is_found_to_have_been_written",
            "contract/test_ha_stores.py::test_a_delayed_write_that_arrives_after_all_does_not_dangle",
            "contract/test_ha_stores.py::test_a_delayed_write_is_refused_after_a_repetition_or_in_another_term",
            "contract/test_ha_checkpoints.py::test_lost_replies_are_resolved_by_reading_and_nothing_dangles",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "revoked-midway",
        "Leadership is revoked amid a recovery, a clean-up or a shutdown.",
        "The old leader starts nothing and deletes nothing from then on; its successor goes on.",
        (
            "contract/test_ha_checkpoints.py::test_a_job_master_whose_term_is_over_changes_nothing",
            "contract/test_ha_election.py::test_a_component_that_has_ended_is_deposed_and_what_it_wrote_comes_too_late",
            "unit/test_resource_cleaner.py::test_who_does_not_lead_any_more_leaves_the_rest_to_its_successor",
            "unit/test_leadership.py::test_a_call_after_the_lease_is_refused_though_nobody_has_said_that_it_is_over",
            "unit/test_job_checkpoints.py::test_a_leader_that_is_none_any_more_decides_nothing",
            "contract/test_dispatcher_revoked.py::test_amid_a_recovery_no_further_job_master_is_started",
            "contract/test_dispatcher_revoked.py::test_amid_a_clean_up_the_rest_is_left_to_the_next_leader",
            "contract/test_dispatcher_revoked.py::test_amid_a_shutdown_no_master_is_told_to_stop",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "unreadable-checkpoint",
        "The latest checkpoint, or a savepoint, is damaged, or gone, or only half there.",
        "That is said. A query goes on from its live state, or from the latest whole checkpoint; what is not whole is "
        "never put back, and changes nothing.",
        (
            "contract/test_ha_checkpoints.py::test_a_damaged_checkpoint_is_passed_over_and_subsumed_by_the_next",
            "unit/test_checkpoint_snapshot.py::test_a_damaged_snapshot_changes_nothing",
            "unit/test_task_restore.py::test_the_live_files_are_used_where_they_are_not_behind",
            "unit/test_task_restore.py::test_a_checkpoint_is_put_back_where_the_live_files_are_broken",
            "unit/test_savepoint.py::test_every_damage_is_found",
        ),
        limits="Where the live state and all retained checkpoints are damaged the job fails, and says so.",
    ),
    Scenario(
        "killed-between-commits",
        "SIGKILL of task, driver, TaskExecutor or everything: between the write of a sink, its commit, and the copy "
        "of a savepoint.",
        "No row is lost or doubled; a savepoint that is half written is never listed.",
        (
            "faults/test_exactly_once.py::test_no_row_is_lost_or_doubled_whatever_is_killed",
            "integration/test_checkpoints.py::test_a_stream_that_is_killed_stopped_restored_and_rolled_back_loses_and_doubles_no_row",
            "unit/test_checkpoint_snapshot.py::test_killed_at_any_step_of_a_rollback",
            "unit/test_savepoint.py::test_a_half_written_one_is_never_seen",
        ),
        ("tests.faults.exactly_once", "tests.faults.soak"),
        "Spark's file sink is exact. What a `foreachBatch` writes comes again with its batch, as ever with Spark.",
    ),
    Scenario(
        "two-drivers",
        "A driver is cut off and lives on, while the task is started again on the same checkpointLocation.",
        "Only one makes progress: the earlier one is ended before the later one writes.",
        (
            "faults/test_location_leases.py::test_a_driver_that_was_cut_off_is_ended_before_its_successor_writes",
            "integration/test_streaming_queries.py::test_a_location_has_one_writer",
            "unit/test_location_leases.py::test_a_frozen_driver_of_an_earlier_attempt_is_killed_and_can_commit_nothing_any_more",
            "unit/test_location_leases.py::test_an_attempt_that_was_replaced_while_it_stood_still_does_not_go_back",
        ),
        limits="The lease is a lock of the local file system, and binds jobs of clusters only.",
    ),
    Scenario(
        "wedged-stop",
        "A job is stopped or cancelled while Python code is at work in Spark: a batch that ends late, code that "
        "ignores its cancellation, a worker that hangs.",
        "The stop ends by its deadline, by force if need be, and says so; CANCELED means that nothing runs.",
        (
            "unit/test_query_stop.py::test_a_busy_one_is_stopped_when_it_has_committed_a_batch",
            "unit/test_query_stop.py::test_one_that_commits_none_is_stopped_by_force_and_that_is_told",
            "integration/test_isolation.py::test_a_task_that_ignores_its_cancellation_is_ended_by_force",
            "integration/test_isolation.py::test_what_cannot_be_ended_in_spark_ends_with_its_driver",
            "integration/test_isolation.py::test_of_a_cancelled_job_no_python_worker_runs_on",
        ),
        limits="A driver that is ended by force takes the other tasks of its TaskExecutor along; they are restarted.",
    ),
    Scenario(
        "submitted-twice",
        "A submission times out and is repeated, before and after a failover; its write fails, or its reply is lost.",
        "There is one job, or none of which something is left. An outcome that is not known is called unknown.",
        (
            "integration/test_session_cluster.py::test_submission_is_idempotent_by_job_id",
            "contract/test_dispatcher_submission.py::test_what_a_full_disk_refuses_leaves_no_entry_and_may_be_submitted_again",
            "contract/test_dispatcher_submission.py::test_a_write_whose_outcome_is_unknown_is_no_refusal",
            "contract/test_dispatcher_submission.py::test_the_next_leader_withdraws_what_was_not_stored_and_runs_what_was",
            "contract/test_dispatcher_revoked.py::test_a_submission_that_is_repeated_over_failovers_is_one_job",
            "unit/test_client_strangers.py::test_a_submission_without_an_answer_is_neither_refused_nor_accepted",
            "faults/test_nemesis.py::test_what_clients_were_told_stays_true_whatever_is_harmed",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "start-stop",
        "`start`, `start`, `stop` and `start-master` meet at any moment, as do signals to masters and commands.",
        "There is one cluster, or a clear line; no job of a cluster that was not told to end is lost.",
        (
            "faults/test_start_stop.py::test_a_master_that_is_told_to_end_while_another_joins_leaves_it_the_jobs",
            "faults/test_start_stop.py::test_of_masters_that_are_told_to_end_at_once_the_last_one_ends_all_processes",
            "faults/test_start_stop.py::test_a_start_that_is_refused_ends_no_process_and_changes_nothing",
            "faults/test_start_stop.py::test_a_start_that_fails_keeps_the_jobs_of_a_killed_cluster",
            "faults/test_start_stop.py::test_a_cluster_is_stopped_while_it_is_being_started",
            "faults/test_start_stop.py::test_at_a_few_random_moments",
            "unit/test_environment_claims.py::test_of_many_that_leave_at_any_moment_exactly_one_is_the_last",
        ),
        limits="On one host: the lock is that of a runtime directory.",
    ),
    Scenario(
        "orphans",
        "A job is cancelled while it is launched; whoever controls it, or its client, dies.",
        "No driver, task or worker is left that nobody knows, and what is promised is kept.",
        (
            "faults/test_kills.py::test_a_cancellation_that_was_promised_survives_its_job_master",
            "faults/test_kills.py::test_a_job_that_is_cancelled_while_its_slot_is_asked_for_leaves_nothing",
            "faults/test_kills.py::test_stop_cleans_up_after_a_killed_master",
            "faults/test_masters.py::test_tasks_without_a_job_master_are_cancelled_in_the_end",
            "integration/test_session_cluster.py::test_ctrl_c_cancels_an_attached_job",
            "integration/test_session_cluster.py::test_a_cancelled_job_leaves_nothing_running_in_spark",
            "unit/test_execution_graph_model.py::TestJobModel",
            "unit/test_claimed_process.py::test_a_process_begins_only_when_it_is_noted",
            "unit/test_supervisor.py::test_a_restart_that_is_under_way_when_the_child_is_removed_leaves_no_process",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "lost-mid-offer",
        "A JobMaster or TaskExecutor is lost while slots are offered; heartbeats pause; messages come late.",
        "No slot leaks, and none is given to two.",
        (
            "unit/test_slot_manager.py::TestSlotManagerModel",
            "unit/test_slot_pool.py::TestSlotPoolModel",
            "unit/test_slot_manager.py::test_a_report_that_crossed_an_allocation_does_not_free_the_slot",
            "contract/test_slot_offers.py::test_a_former_job_masters_late_answer_frees_no_slot",
            "contract/test_slot_offers.py::test_an_offer_that_was_not_answered_is_made_again",
            "contract/test_slot_offers.py::test_a_slot_that_is_not_taken_is_free_again",
            "unit/test_heartbeat_manager.py::test_a_thawed_watcher_loses_nobody_at_its_first_look_and_the_dead_a_time_out_later",
            "faults/test_kills.py::test_a_job_master_and_its_task_executor_killed_at_once_start_the_task_again",
            "faults/test_kills.py::test_a_job_that_is_cancelled_while_its_slot_is_asked_for_leaves_nothing",
        ),
        ("tests.faults.nemesis",),
    ),
    Scenario(
        "hostile-peers",
        "HTTP with ../ and %252f in names, requests of pages from other sites, ports without a secret, evil pickles, "
        "somebody between client and server who relays, changes or repeats what they say.",
        "All of it is refused, and disturbs nobody; see [security.md](security.md).",
        (
            "contract/test_rest_hostile.py::test_each_trick_gets_one_error_and_the_door",
            "contract/test_rest_server.py::test_no_name_leads_out_of_the_logs",
            "unit/test_rest_access.py::test_pages_of_other_sites_are_refused",
            "contract/test_blob_server.py::test_a_wrong_secret_is_refused_by_both_sides",
            "unit/test_actors_thespian_base.py::test_a_pickle_without_the_tag_is_not_executed",
            "contract/test_relay.py::test_a_relayed_handshake_is_refused_and_nothing_is_said",
            "contract/test_relay.py::test_a_relayed_blob_handshake_is_refused_and_nothing_is_said",
            "contract/test_relay.py::test_an_impostor_cannot_answer_for_another_port_than_his",
            "contract/test_relay.py::test_what_is_done_to_records_ends_the_connection",
            "contract/test_relay.py::test_requests_cannot_be_added_repeated_or_cut",
            "integration/test_security.py::test_no_port_serves_who_has_shown_nothing",
        ),
        ("tests.fuzz live",),
    ),
    Scenario(
        "too-much",
        "A full disk, a message over the limit, one that cannot be decoded, the recovery of a thousand jobs.",
        "A clear error to whoever asked; everybody else goes on.",
        (
            "contract/test_blob_server.py::test_a_disk_that_fills_up_midway",
            "contract/test_ha_checkpoints.py::test_a_full_disk_changes_nothing",
            "contract/test_rpc_bounds.py::test_a_clients_error_names_the_remedy_when_its_frame_is_too_large",
            "contract/test_rpc_hostile.py::test_a_well_formed_message_of_nonsense_gets_an_error_and_the_connection_goes_on",
            "contract/test_dispatcher_recovery.py::test_a_thousand_jobs_are_recovered_a_few_at_a_time_and_starve_no_call",
        ),
        ("tests.faults.nemesis",),
    ),
)
