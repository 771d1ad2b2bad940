"""Guards of what a job is, and of what is shown and measured of it: job graphs, metrics, notebooks, gateways."""

from __future__ import annotations

from tests.mutants.model import Mutant

_VALIDATION = "runtime/jobgraph/validation.py"
_JSON = "runtime/jobgraph/json_form.py"
_JOBGRAPH = "unit/test_jobgraph.py"
_OFFER = "runtime/taskexecutor/connections.py"
_REGISTRY = "runtime/metrics/registry.py"
_PROMETHEUS = "runtime/metrics/prometheus.py"
_HTML = "runtime/notebook/html.py"
_SUBMISSION = "runtime/notebook/submission.py"

MUTANTS = (
    # ------------------------------------------------------------- the job that is meant
    Mutant(
        "first-of-several-jobs-with-a-prefix",
        "The first digits of several ids name no job.",
        "runtime/cluster/job_listing.py",
        "    if len(begun) == 1:\n",
        "    if begun:\n",
        (
            "unit/test_job_listing.py::test_what_several_jobs_fit_is_refused_with_a_list_of_them",
            "unit/test_command_line.py::test_a_job_that_is_not_clear_is_asked_nothing",
        ),
    ),
    Mutant(
        "first-of-several-jobs-with-a-name",
        "The name of several jobs names none of them, unless one alone is not over.",
        "runtime/cluster/job_listing.py",
        "        if len(fitting) == 1:\n",
        "        if fitting:\n",
        (
            "unit/test_job_listing.py::test_what_several_jobs_fit_is_refused_with_a_list_of_them",
            "unit/test_job_listing.py::test_several_jobs_of_one_name_that_run_are_refused",
        ),
    ),
    Mutant(
        "kilobytes-of-a-cause",
        "A cause is one short line.",
        "runtime/causes.py",
        "    if len(line) <= LIMIT:\n",
        "    if True:\n",
        ("unit/test_causes.py::test_a_long_cause_is_cut",),
    ),
    # ------------------------------------------------------------------ job graphs
    Mutant(
        "graph-of-another-format-taken",
        "A job graph of another format is refused.",
        _VALIDATION,
        "    if graph.format_version != FORMAT_VERSION:\n",
        "    if False:\n",
        (f"{_JOBGRAPH}::test_bad_graphs_are_refused_with_a_reason",),
    ),
    Mutant(
        "submitter-of-any-text",
        "The name of a submitter is printable and short.",
        _VALIDATION,
        "    if graph.submitter:\n",
        "    if False:\n",
        (f"{_JOBGRAPH}::test_bad_graphs_are_refused_with_a_reason",),
    ),
    Mutant(
        "stored-graph-of-another-format-read",
        "A stored job graph of another format is not read as one of this.",
        "runtime/jobgraph/codec.py",
        "    if version != FORMAT_VERSION:\n",
        "    if False:\n",
        ("unit/test_random_pipelines.py::test_a_graph_in_another_format_is_refused_whatever_else_is_in_it",),
    ),
    Mutant(
        "circle-of-vertices-taken",
        "A graph that goes round in a circle is refused.",
        "runtime/jobgraph/topology.py",
        "    if len(order) < len(graph.vertices):\n",
        "    if False:\n",
        (
            f"{_JOBGRAPH}::test_a_cycle_is_named_by_its_vertices",
            f"{_JOBGRAPH}::test_a_vertex_that_reads_itself_is_a_cycle",
        ),
    ),
    Mutant(
        "two-vertices-of-one-id",
        "Two vertices have two ids.",
        _VALIDATION,
        "    if len({vertex.id for vertex in graph.vertices}) < len(graph.vertices):\n",
        "    if False:\n",
        (f"{_JOBGRAPH}::test_bad_graphs_are_refused_with_a_reason",),
    ),
    Mutant(
        "job-sets-what-is-the-clusters",
        "A job sets nothing that is the cluster's to set.",
        _VALIDATION,
        "        if key not in _JOB_KEYS:\n",
        "        if False:\n",
        (
            f"{_JOBGRAPH}::test_what_a_job_sets_for_itself_is_an_option_of_jobs",
            "unit/test_job_graph_json.py::test_what_is_no_job_graph_is_refused",
        ),
    ),
    Mutant(
        "name-with-control-characters",
        "The name of a job or vertex can be printed: it comes into logs and onto terminals.",
        _VALIDATION,
        "or not name.strip() or not name.isprintable():",
        "or not name.strip():",
        (f"{_JOBGRAPH}::test_bad_graphs_are_refused_with_a_reason",),
    ),
    Mutant(
        "name-without-end",
        "The name of a job or vertex is of a bounded length.",
        _VALIDATION,
        "    if len(name) > MAX_NAME_LENGTH:\n",
        "    if False:\n",
        (f"{_JOBGRAPH}::test_bad_graphs_are_refused_with_a_reason",),
    ),
    Mutant(
        "parameters-nested-without-end",
        "Parameters are nested to a bounded depth.",
        _VALIDATION,
        "    if depth > _MAX_DEPTH:\n",
        "    if False:\n",
        (f"{_JOBGRAPH}::test_parameters_must_be_json_like",),
    ),
    Mutant(
        "number-that-json-does-not-know",
        "Parameters have no number that JSON does not know.",
        _VALIDATION,
        "        if not math.isfinite(value):\n",
        "        if False:\n",
        (f"{_JOBGRAPH}::test_parameters_must_be_json_like",),
    ),
    Mutant(
        "graph-of-any-size",
        "A job graph as JSON is of a bounded size.",
        _JSON,
        "    if len(data) > MAX_BYTES:\n",
        "    if False:\n",
        ("unit/test_job_graph_json.py::test_a_graph_that_is_too_large_is_not_read",),
    ),
    Mutant(
        "vertices-without-end",
        "A job graph as JSON has a bounded number of vertices.",
        _JSON,
        "        if len(listed) > most:\n",
        "        if False:\n",
        ("unit/test_job_graph_json.py::test_what_is_no_job_graph_is_refused",),
    ),
    Mutant(
        "artifacts-of-another-job-named",
        "A job graph as JSON names no files: they might be another job's.",
        _JSON,
        '    if given.get("artifacts"):\n',
        "    if False:\n",
        ("unit/test_job_graph_json.py::test_what_is_no_job_graph_is_refused",),
    ),
    Mutant(
        "parameter-given-twice",
        "A parameter that is given twice is refused.",
        "runtime/jobgraph/parameters.py",
        "        if parameter.name in given:\n",
        "        if False:\n",
        ("unit/test_parameters.py::test_what_is_wrong_is_one_line_that_names_the_parameter",),
    ),
    # ------------------------------------------------------------------ slots that are offered
    Mutant(
        "former-offer-goes-on",
        "The answer to an offer counts only until the slots are offered to another JobMaster.",
        _OFFER,
        "        if connection.offering is not None:\n            connection.offering.cancel()\n"
        "        connection.offering = ",
        "        connection.offering = ",
        ("contract/test_slot_offers.py::test_a_former_job_masters_late_answer_frees_no_slot",),
    ),
    Mutant(
        "offer-made-once",
        "An offer whose answer is lost is made again.",
        _OFFER,
        "            lambda: self._offer_once(connection),\n            (ActorError, GatewayError),\n",
        "            lambda: self._offer_once(connection),\n            (KeyError,),\n",
        ("contract/test_slot_offers.py::test_an_offer_that_was_not_answered_is_made_again",),
    ),
    Mutant(
        "refused-slot-kept",
        "A slot that its job does not take is free again.",
        _OFFER,
        "            if offer.allocation_id not in accepted:\n",
        "            if False:\n",
        ("contract/test_slot_offers.py::test_a_slot_that_is_not_taken_is_free_again",),
    ),
    Mutant(
        "slot-of-a-job-that-is-over-kept",
        "A slot whose JobMaster never serves is free again after heartbeat.timeout.",
        "runtime/taskexecutor/endpoint.py",
        "            self._job_heartbeats.monitor(job_id)\n",
        "            pass\n",
        ("contract/test_slot_offers.py::test_a_slot_whose_job_has_no_job_master_any_more_is_free_again",),
    ),
    # ------------------------------------------------------------------ gateways
    Mutant(
        "slot-freed-without-leadership",
        "Slots are freed for the JobMaster that leads.",
        "runtime/protocol/task_executor.py",
        "    @fenced_by(JOB_MASTER)\n    def free_slot",
        "    def free_slot",
        ("unit/test_gateways_complete.py::test_every_method_declares_what_fences_it_or_is_an_exception",),
    ),
    Mutant(
        "job-master-stopped-without-leadership",
        "JobMasters are stopped for the Dispatcher that leads.",
        "runtime/protocol/master.py",
        "    @fenced_by(DISPATCHER)\n    def stop_job_master",
        "    def stop_job_master",
        ("unit/test_gateways_complete.py::test_every_method_declares_what_fences_it_or_is_an_exception",),
    ),
    # ------------------------------------------------------------------ metrics
    Mutant(
        "metric-of-a-name-that-is-taken",
        "A name is taken once in a scope.",
        _REGISTRY,
        "        if name in self._readers:\n",
        "        if False:\n",
        ("unit/test_metrics.py::test_a_name_is_taken_once_in_a_scope",),
    ),
    Mutant(
        "one-metric-takes-all-away",
        "A metric that cannot be read takes no other away.",
        _REGISTRY,
        "    except Exception:",
        "    except OSError:",
        ("unit/test_metrics.py::test_what_cannot_be_read_takes_nothing_else_away",),
    ),
    Mutant(
        "label-with-a-line-of-its-own",
        "No name of a job's writes lines of its own into what Prometheus reads.",
        _PROMETHEUS,
        "value.translate(_ESCAPES)",
        "value",
        ("unit/test_rest_metrics.py::test_nothing_that_a_job_is_called_breaks_the_text",),
    ),
    Mutant(
        "sample-told-twice",
        "A sample is told once: Prometheus refuses all where one is told twice.",
        _PROMETHEUS,
        "                    samples.setdefault(labels, lines)",
        "                    samples.setdefault(labels, []).extend(lines)",
        ("unit/test_rest_metrics.py::test_a_sample_that_is_told_twice_is_exposed_once",),
    ),
    Mutant(
        "meter-without-end",
        "A meter tells of the last minute.",
        "runtime/metrics/metric.py",
        "        while self._seconds and self._seconds[0][0] <= now - METER_WINDOW_S:\n",
        "        while False:\n",
        ("unit/test_metrics.py::test_a_meter_tells_the_events_of_the_last_minute",),
    ),
    Mutant(
        "metrics-forgotten-by-a-standby",
        "Who only loses the leadership leaves the metrics at the push gateway.",
        _PROMETHEUS,
        "        if forget and self._forgets:\n",
        "        if self._forgets:\n",
        ("unit/test_push_gateway.py::test_who_only_loses_the_lead_leaves_them_there",),
    ),
    Mutant(
        "metrics-put-after-their-end",
        "What is on its way to the push gateway does not come after the end.",
        _PROMETHEUS,
        "            with self._lock, urllib.request.urlopen(request, timeout=ANSWER_S):",
        "            with urllib.request.urlopen(request, timeout=ANSWER_S):",
        ("unit/test_push_gateway.py::test_what_is_on_its_way_does_not_come_after_the_end",),
    ),
    # ------------------------------------------------------------------ notebooks
    Mutant(
        "markup-in-a-notebooks-table",
        "No text of others becomes markup in a notebook's table.",
        _HTML,
        'return f"<td{style}>{escape(text)}</td>"',
        'return f"<td{style}>{text}</td>"',
        ("unit/test_notebook.py::test_no_text_of_others_becomes_markup",),
    ),
    Mutant(
        "markup-in-a-notebooks-error",
        "No error message becomes markup in a notebook.",
        _HTML,
        'parts.append(f"<pre>{escape(text)}</pre>")',
        'parts.append(f"<pre>{text}</pre>")',
        ("unit/test_notebook.py::test_no_text_of_others_becomes_markup",),
    ),
    Mutant(
        "markup-in-a-notebooks-log",
        "No log of a job becomes markup in a notebook.",
        "runtime/notebook/job.py",
        'return f"<pre>{escape(self)}</pre>"',
        'return f"<pre>{self}</pre>"',
        ("unit/test_notebook.py::test_no_text_of_others_becomes_markup",),
    ),
    Mutant(
        "settings-of-a-cell-unchecked",
        "A setting that is no job's is refused before anything is submitted.",
        _SUBMISSION,
        "    if wrong:\n",
        "    if False:\n",
        ("unit/test_notebook.py::test_what_does_not_fit_is_refused_before_anything_is_submitted",),
    ),
    Mutant(
        "savepoint-of-a-cell-unchecked",
        "A savepoint that cannot be read is refused before anything is submitted.",
        _SUBMISSION,
        "    read_savepoint(path)  # before anything is submitted\n",
        "",
        ("unit/test_notebook.py::test_a_savepoint_that_is_none_is_refused_before_anything_is_submitted",),
    ),
    Mutant(
        "function-of-another-python-run",
        "A function that was pickled by another Python is refused.",
        "runtime/spark/function_task.py",
        "    if version != sys.version_info[:2]:\n",
        "    if False:\n",
        ("unit/test_notebook.py::test_another_python_is_refused",),
    ),
)
