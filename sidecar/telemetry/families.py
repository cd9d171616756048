"""Every metric there is, declared once. docs/observability.md lists the same; a test compares them."""

from __future__ import annotations

from sidecar.telemetry.prometheus import Family, Kind

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_REPLICA = ("endpoint", "model", "version", "shard")
_VERSION = ("model", "version")
_PROCESS = ("process",)
_ENDPOINT = ("endpoint",)

# --- requests, over all data processes ------------------------------------------------------------------------------
REQUESTS = Family("warmroute_requests_total", _C, "Requests by how they ended.", ("model", "outcome"))
REQUEST_DURATION = Family(
    "warmroute_request_duration_seconds", _H, "End of a request's head to the end of its answer.", ("model",)
)
FIRST_BYTE = Family(
    "warmroute_first_byte_seconds",
    _H,
    "End of a request's head to the head of its answer, of answers that came in pieces; others are in one.",
    ("model",),
)
REQUESTS_NOW = Family("warmroute_requests_in_flight", _G, "Requests being served.", _PROCESS)
REJECTED = Family("warmroute_rejected_messages_total", _C, "Requests refused for their form.")
GRPC_RESENT = Family(
    "warmroute_grpc_resent_total", _C, "Calls that a worker's GOAWAY left out, sent again on a new connection."
)
GRPC_REFUSED = Family(
    "warmroute_grpc_refused_total",
    _C,
    "Streams of callers refused: over the calls at once on a connection, or too many given up early on it.",
)
TUNNELS = Family("warmroute_tunnels_total", _C, "Requests that became a tunnel (WebSocket, Upgrade).")
TUNNELS_NOW = Family("warmroute_tunnels", _G, "Tunnels open.", _PROCESS)
RETRIES = Family("warmroute_retries_total", _C, "Retries after an attempt that failed; also those with nobody left.")
RETRIES_DENIED = Family("warmroute_retries_denied_total", _C, "Retries that the budget did not allow.")
HEDGES = Family("warmroute_hedges_total", _C, "Attempts made while the first was waited for.")
HEDGES_WON = Family("warmroute_hedges_won_total", _C, "Of these, those whose answer came first and was passed on.")
HEDGES_DENIED = Family(
    "warmroute_hedges_denied_total",
    _C,
    "Slow requests that were not hedged: budget, number of tries, overload, nobody else.",
)
LADDER_STEP = Family(
    "warmroute_ladder_step",
    _G,
    "Who answers a model's requests: 1 its replicas, 2 a fallback, 3 the cache, 4 the static answer, 5 nobody.",
    ("process", "model"),
)
LADDER_ANSWERS = Family(
    "warmroute_ladder_answers_total",
    _C,
    "Requests of models with a ladder, by who answered.",
    ("model", "step"),
)
CACHE_ENTRIES = Family("warmroute_cache_entries", _G, "Answers kept for bad times.", ("model",))
CACHE_BYTES = Family("warmroute_cache_bytes", _G, "What they take, over all processes.", ("model",))
CACHE_FILLS = Family("warmroute_cache_fills_total", _C, "Answers that were kept.", ("model",))
CACHE_EVICTED = Family("warmroute_cache_evicted_total", _C, "Kept answers that had to make room.", ("model",))
CACHE_MISSES = Family("warmroute_cache_misses_total", _C, "Requests for which nothing was kept.", ("model",))
CACHE_SHARED = Family(
    "warmroute_cache_shared_total", _C, "What came of the second tier, in the store.", ("model", "result")
)
CACHE_SHARED_LOST = Family(
    "warmroute_cache_shared_lost_total",
    _C,
    "Answers for the second tier that the store did not take in time, or at all.",
)
CACHE_REFUSED = Family(
    "warmroute_cache_refused_total", _C, "Answers not kept, and requests not looked up, by reason.", ("model", "reason")
)
QUEUED = Family("warmroute_queue_requests", _G, "Requests that wait for room or for a replica.", ("model",))
QUEUE_WAIT = Family(
    "warmroute_queue_wait_seconds", _H, "Wait of requests that were served after one, up to the pick.", ("model",)
)
TURNED_AWAY = Family(
    "warmroute_queue_turned_away_total",
    _C,
    "Requests rejected before queueing or evicted from the queue, by class and why.",
    ("model", "class", "reason"),
)
ADMITTED = Family("warmroute_model_requests_in_flight", _G, "Of a model with a limit: requests in flight.", ("model",))
ADMITTED_LIMIT = Family(
    "warmroute_model_requests_limit",
    _G,
    "How many that may be, added up over the data processes that live.",
    ("model",),
)
LOADS = Family("warmroute_loads_total", _C, "Loads of models that requests waited for.", ("result",))
AFFINITY = Family(
    "warmroute_affinity_total",
    _C,
    "Requests by whether they went where their prompt's beginning was seen: hit, declined for load, unseen.",
    ("result",),
)
FAULTS_INJECTED = Family("warmroute_faults_injected_total", _C, "Attempts that injected faults touched.")
FAULTS_BY_KIND = Family(
    "warmroute_faults_struck_total", _C, "Attempts that injected faults touched, by their kinds.", ("kind",)
)
FAULTS_FAILED = Family(
    "warmroute_faults_failed_total", _C, "Attempts that injected faults touched, and that came to nothing."
)

VERSION_MOVED = Family(
    "warmroute_version_moved_total",
    _C,
    "Requests of a split that went to another version because theirs had no replica that may be picked.",
)
MIRRORS = Family("warmroute_mirrors_total", _C, "Copies of requests sent to another version.")
MIRRORS_FAILED = Family(
    "warmroute_mirrors_failed_total", _C, "Of these, those that were answered with a 5xx, not at all, or too late."
)
MIRRORS_DROPPED = Family(
    "warmroute_mirrors_dropped_total",
    _C,
    "Copies not sent (too many under way, no room, overload, a body that was not kept), or given up for a caller.",
)

# --- downstream -----------------------------------------------------------------------------------------------------
CONNECTIONS = Family("warmroute_connections_total", _C, "Downstream connections accepted.")
CONNECTIONS_NOW = Family("warmroute_connections", _G, "Downstream connections open.", _PROCESS)
CONNECTIONS_REFUSED = Family("warmroute_connections_refused_total", _C, "Downstream connections over the limit.")
CONNECTIONS_AGED = Family("warmroute_connections_aged_total", _C, "Downstream connections that reached their age.")
SLOW_READERS = Family("warmroute_slow_readers_total", _C, "Callers cut because they took their answer too slowly.")
RECEIVED_BYTES = Family("warmroute_received_bytes_total", _C, "Bytes read from downstream.")
SENT_BYTES = Family("warmroute_sent_bytes_total", _C, "Bytes of answers: those that workers sent, and warmroute's own.")

OVERLOAD = Family(
    "warmroute_overload_level",
    _G,
    "How near its end a resource is: 0 normal, 1 soft, 2 hard.",
    ("process", "resource"),
)
OVERLOAD_REFUSED = Family("warmroute_overload_refused_total", _C, "Requests refused because a resource ran out.")
OVERLOAD_SHED = Family("warmroute_overload_shed_total", _C, "Idle connections closed to make room.")
# --- TLS ------------------------------------------------------------------------------------------------------------
TLS_HANDSHAKES = Family("warmroute_tls_handshakes_total", _C, "TLS handshakes with callers that succeeded.")
TLS_HANDSHAKES_NOW = Family("warmroute_tls_handshakes", _G, "TLS handshakes with callers under way.", _PROCESS)
TLS_HANDSHAKES_FAILED = Family("warmroute_tls_handshakes_failed_total", _C, "TLS handshakes with callers that failed.")
TLS_HANDSHAKES_REFUSED = Family(
    "warmroute_tls_handshakes_refused_total",
    _C,
    "Connections closed because of limits.handshakes, or for want of a key.",
)
TLS_UPSTREAM_FAILED = Family(
    "warmroute_tls_upstream_failed_total",
    _C,
    "TLS handshakes with workers that failed, or were refused by the worker for our certificate.",
)
TLS_PEERS_REJECTED = Family("warmroute_tls_peers_rejected_total", _C, "Peers not let in for their certificates.")
TLS_NOT_AFTER = Family(
    "warmroute_tls_not_after_seconds",
    _G,
    "When the certificate or the first of the CAs ends, Unix time.",
    ("of", "kind"),
)
TLS_RELOADS = Family("warmroute_tls_reloads_total", _C, "Times a process took changed TLS files.")
TLS_RELOADS_FAILED = Family("warmroute_tls_reloads_failed_total", _C, "Times changed TLS files could not be used.")

# --- upstream -------------------------------------------------------------------------------------------------------
ATTEMPTS = Family("warmroute_attempts_total", _C, "Tries upstream by how they ended.", ("endpoint", "result"))
ATTEMPT_DURATION = Family(
    "warmroute_attempt_duration_seconds", _H, "Pick of the endpoint to the end of its answer.", _ENDPOINT
)
ATTEMPTS_NOW = Family("warmroute_attempts_in_flight", _G, "Tries upstream under way.", _ENDPOINT)
BACKGROUND = Family(
    "warmroute_background_attempts_total",
    _C,
    "Tries upstream of warmroute's own (warming up, mirroring): they are in no other metric of attempts or requests.",
)
EJECTIONS = Family("warmroute_endpoint_ejections_total", _C, "Times an endpoint was taken out or let in.", _ENDPOINT)
AT_LIMIT = Family(
    "warmroute_endpoint_at_limit_total", _C, "Times a choice passed it over because it was at its limit.", _ENDPOINT
)
ENDPOINT_LIMIT = Family(
    "warmroute_endpoint_requests_limit",
    _G,
    "Where that adapts to latency: how much may be in flight there, added up over the data processes.",
    _ENDPOINT,
)
UPSTREAM = Family("warmroute_upstream_connections_total", _C, "Connections opened to workers.")
UPSTREAM_NOW = Family("warmroute_upstream_connections", _G, "Connections to workers open.", _PROCESS)
UPSTREAM_POOLED = Family("warmroute_upstream_connections_idle", _G, "Of these, idle in the pool.", _PROCESS)
UPSTREAM_POISONED = Family(
    "warmroute_upstream_poisoned_total", _C, "Idle connections dropped because bytes came that nobody asked for."
)
UPSTREAM_STALE = Family("warmroute_upstream_stale_total", _C, "Idle connections found closed when used again.")
NAME_LOOKUPS = Family(
    "warmroute_name_lookups_total", _C, "Times the addresses of an endpoint's host were looked up to connect."
)
NAME_LOOKUPS_FAILED = Family(
    "warmroute_name_lookups_failed_total", _C, "Of these, those that failed; what was known before is kept."
)
NAME_LOOKUP_SECONDS = Family(
    "warmroute_name_lookup_seconds_total", _C, "Time that these took, added up; requests wait for it only at first."
)

# --- the fleet, as the control process sees it ----------------------------------------------------------------------
ENDPOINTS = Family("warmroute_endpoints", _G, "Endpoints known, by where they come from.", ("source",))
ENDPOINT_AGE = Family("warmroute_endpoint_age_seconds", _G, "Time since the endpoint was last heard.", _ENDPOINT)
BREAKER = Family("warmroute_replica_breaker_state", _G, "0 closed, 1 open, 2 half open.", _REPLICA)
BREAKER_OPENED = Family(
    "warmroute_replica_breaker_opened_total", _C, "Times the breaker opened, by rule.", (*_REPLICA, "rule")
)
OUTLIER = Family("warmroute_replica_outlier", _G, "1 while the replica is out as an outlier.", _REPLICA)
PANIC = Family("warmroute_route_panic", _G, "1 while so few are left that those ejected are picked too.", ("route",))
QUARANTINED = Family("warmroute_endpoint_quarantined", _G, "1 while the endpoint is in quarantine.", _ENDPOINT)
QUEUE_TIME = Family(
    "warmroute_endpoint_queue_time_seconds",
    _G,
    "How long requests of the last minute waited at the endpoint before they were worked on, mean; as it reports.",
    _ENDPOINT,
)
HELD = Family("warmroute_endpoint_held", _G, "1 while an operator has drained the endpoint here.", _ENDPOINT)
REPLICA_STATE = Family("warmroute_replica_state", _G, "1 for the state the replica is in.", (*_REPLICA, "state"))
REPLICA_WEIGHT = Family("warmroute_replica_weight", _G, "Weight in its model's route; 0 where it is out.", _REPLICA)
REPLICA_SHARE = Family("warmroute_replica_share_ratio", _G, "Probability that one draw hits the replica.", _REPLICA)
REPLICA_P95 = Family(
    "warmroute_replica_tail_latency_seconds",
    _G,
    "P95 of attempts over the window, of all sidecars that share latencies; absent where nothing was measured.",
    _REPLICA,
)
REPLICA_OUT = Family(
    "warmroute_replica_out", _G, "1 with the reason that a replica may not be picked.", (*_REPLICA, "reason")
)
GROUPS = Family(
    "warmroute_groups",
    _G,
    "Groups of endpoints that hold shards of a model together: complete ones, and those that cannot answer.",
    ("model", "version", "state"),
)
PROBE_FAILURES = Family("warmroute_probe_failures_total", _C, "Probes that did not find the endpoint ready.", _ENDPOINT)
PROBE_QUESTIONS = Family("warmroute_probe_questions_total", _C, "Questions that endpoints were probed with.")
PROBE_SECONDS = Family("warmroute_probe_seconds_total", _C, "Time that probes took, waiting included, added up.")
PROBE_BYTES = Family("warmroute_probe_bytes_total", _C, "Bytes of answers to probes that were read.")
PROBE_LATE = Family("warmroute_probe_late_total", _C, "Probes that had to wait because of limits.probes_per_s.")
WARMUPS = Family(
    "warmroute_warmup_requests_total",
    _C,
    "Warm-up requests by what they came to: proven, late, wrong, no_answer.",
    ("model", "shape_class", "result"),
)
WARMUP_SECONDS = Family(
    "warmroute_warmup_seconds_total",
    _C,
    "Time until their answers were whole, added up.",
    ("model", "shape_class"),
)
WARMING = Family("warmroute_endpoints_warming", _G, "Endpoints that are ready and not proven yet.", ("model",))
DNS_LOOKUPS = Family(
    "warmroute_dns_lookups_total",
    _C,
    "Lookups of names that stand for endpoints, by what came of them: found, empty, failed.",
    ("name", "result"),
)
DNS_SECONDS = Family("warmroute_dns_lookup_seconds_total", _C, "Time that these took, added up.", ("name",))
DNS_ENDPOINTS = Family("warmroute_dns_endpoints", _G, "Endpoints the name stands for, last good answer.", ("name",))
DNS_AGE = Family("warmroute_dns_age_seconds", _G, "Time since the name last stood for any.", ("name",))
DNS_PASSED_OVER = Family(
    "warmroute_dns_passed_over",
    _G,
    "What the last answer listed beyond the most that is taken, or with port 0.",
    ("name",),
)
LOAD_REPORTS = Family("warmroute_load_reports_total", _C, "Load reports (ORCA) in answers that were taken.")
LOAD_STREAMS = Family("warmroute_load_streams", _G, "Endpoints that stream load reports (ORCA) out of band just now.")
LOADS_STREAMED = Family("warmroute_load_reports_streamed_total", _C, "Load reports taken from such streams.")
SIGNALS_REFUSED = Family(
    "warmroute_signals_refused_total",
    _C,
    "Values in what workers say of their load that are no use, and change nothing.",
    ("source", "reason"),
)
VERSION_SHARE = Family(
    "warmroute_version_share_ratio",
    _G,
    "Part of a model's requests that name no version which the version takes now.",
    _VERSION,
)
VERSION_ATTEMPTS = Family(
    "warmroute_version_attempts_total",
    _C,
    "Tries on a version, without those that say nothing of it.",
    (*_VERSION, "result"),
)
VERSION_CHANGES = Family(
    "warmroute_version_changes_total",
    _C,
    "Changes of which versions serve, by what brought them about.",
    ("model", "by"),
)
ROLLOUT_STAGE = Family(
    "warmroute_rollout_stage", _G, "1 for the stage that a model's rollout is in.", ("model", "stage")
)
FAULTS_ACTIVE = Family("warmroute_faults_active", _G, "Faults in force.")

# --- the shared state -----------------------------------------------------------------------------------------------
STORE_MODE = Family("warmroute_store_mode", _G, "1 for the mode that the shared state is in.", ("mode",))
STORE_MODE_CHANGES = Family("warmroute_store_mode_changes_total", _C, "Changes of the store's mode.")
STORE_CONNECTS = Family("warmroute_store_connects_total", _C, "Connections to the store that were set up whole.")
STORE_FAILURES = Family("warmroute_store_failures_total", _C, "Connections to the store that failed or broke.")
STORE_READS = Family("warmroute_store_reads_total", _C, "Full reads of the namespace.")
STORE_DELTAS = Family("warmroute_store_deltas_total", _C, "Messages of the delta channel.")
STORE_GAPS = Family("warmroute_store_gaps_total", _C, "Gaps in the revisions, each answered by a full read.")
STORE_BAD = Family(
    "warmroute_store_bad_records_total", _C, "Records and messages that were skipped, by reason.", ("reason",)
)
STORE_EMPTIED = Family("warmroute_store_emptied_total", _C, "Times the store came back without its content.")
STORE_EXPIRED = Family("warmroute_store_expired_total", _C, "Endpoints that fell silent and were let go.")
HINTS_TOLD = Family("warmroute_breaker_hints_told_total", _C, "Messages to other sidecars on breakers open here.")
HINTS_HEARD = Family("warmroute_breaker_hints_heard_total", _C, "Breakers that other sidecars said are open there.")
HINTS_REFUSED = Family(
    "warmroute_breaker_hints_refused_total", _C, "Messages on breakers that were refused.", ("reason",)
)
LATENCY_SIDECARS = Family("warmroute_latency_sidecars", _G, "Other sidecars whose latencies count here now.")
LATENCY_TOLD = Family("warmroute_latency_rows_told_total", _C, "Replicas' latencies told to other sidecars.")
LATENCY_HEARD = Family("warmroute_latency_rows_heard_total", _C, "Replicas' latencies taken from other sidecars.")
LATENCY_REFUSED = Family(
    "warmroute_latency_rows_refused_total", _C, "Latencies of other sidecars that were refused.", ("reason",)
)

# --- the sidecar itself ---------------------------------------------------------------------------------------------
BUILD = Family("warmroute_build_info", _G, "Always 1; the labels tell what runs.", ("version", "python", "compiled"))
CONFIG = Family("warmroute_config_info", _G, "Always 1; the label names the configuration in force.", ("revision",))
CONFIG_LOADED = Family("warmroute_config_loaded_timestamp_seconds", _G, "When it came into force, Unix time.")
CONFIG_BAD = Family("warmroute_config_bad", _G, "1 while its source cannot be used and the one before stays in force.")
CONFIG_BAD_SINCE = Family(
    "warmroute_config_bad_since_timestamp_seconds", _G, "Since when that is so, Unix time; 0 where it is not."
)
CONFIG_NEEDS_RESTART = Family(
    "warmroute_config_needs_restart", _G, "Changed fields that only an upgrade or a restart puts in force."
)
CONFIG_RELOADS = Family("warmroute_config_reloads_total", _C, "Looks at the source by result.", ("result",))
LEFT_OUT = Family(
    "warmroute_series_left_out",
    _G,
    "Names that have no series of their own, because as many as are shown have, by what they name.",
    ("kind",),
)
CONTROL_UPTIME = Family("warmroute_control_uptime_seconds", _G, "Time since the control process started.")
DRAINING = Family("warmroute_draining", _G, "1 from the first SIGTERM on.")
PROCESS_UP = Family("warmroute_process_up", _G, "1 while the data process speaks.", _PROCESS)
PROCESS_UPTIME = Family("warmroute_process_uptime_seconds", _G, "Time since the data process started.", _PROCESS)
PROCESS_RESTARTS = Family("warmroute_process_restarts_total", _C, "Restarts of the data process.", _PROCESS)
PROCESS_CONFIG = Family(
    "warmroute_process_config_current", _G, "1 while the data process runs with the configuration in force.", _PROCESS
)
PROCESS_LAG = Family("warmroute_process_loop_lag_seconds", _G, "How late its loop was at the last sweep.", _PROCESS)
PROCESS_DRAINING = Family("warmroute_process_draining", _G, "1 while the data process drains.", _PROCESS)
PROCESS_CONTROL_LOST = Family(
    "warmroute_process_control_lost", _G, "1 while the data process does not hear the control process.", _PROCESS
)
PROCESS_STORE_MODE = Family(
    "warmroute_process_store_mode", _G, "1 for the mode that the data process goes by.", ("process", "mode")
)
PROCESS_FILES = Family("warmroute_process_open_fds", _G, "Descriptors that the data process has open.", _PROCESS)
PROCESS_MAX_FILES = Family("warmroute_process_max_fds", _G, "Descriptors that it may have open.", _PROCESS)
PROCESS_MEMORY = Family(
    "warmroute_process_resident_memory_bytes", _G, "Its resident memory, shared pages included.", _PROCESS
)
PROCESS_MEMORY_LIMIT = Family(
    "warmroute_process_memory_limit_bytes", _G, "The memory that the overload levels are measured by.", _PROCESS
)
PROCESS_TASKS = Family("warmroute_process_tasks", _G, "Tasks on its loop; one per connection being made.", _PROCESS)
CHANNEL_BEHIND = Family("warmroute_channel_behind", _G, "1 while the data process does not read its channel.", _PROCESS)
CHANNEL_BEHIND_TOTAL = Family(
    "warmroute_channel_behind_total", _C, "Times it fell so far behind that it needs a whole snapshot.", _PROCESS
)
CHANNEL_DROPPED = Family(
    "warmroute_channel_dropped_total", _C, "Messages of the data process that the channel did not take.", _PROCESS
)
CHANNEL_TOO_LARGE = Family(
    "warmroute_channel_too_large_total", _C, "Messages to the data process that no datagram can hold.", _PROCESS
)

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
"""All of them, in the order above, which is the order of the exposition."""
