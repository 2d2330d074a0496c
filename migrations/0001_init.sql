-- +goose Up

-- runs: one passage of one subject through a pipeline. A run is never
-- overwritten by the next one.
CREATE TABLE runs (
    run           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline      text        NOT NULL,
    version       int         NOT NULL,
    subject       text        NOT NULL,
    status        text        NOT NULL DEFAULT 'running'
                  CHECK (status IN ('running', 'completed', 'failed', 'cancelled', 'superseded')),
    priority      smallint    NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
    trigger       text        NOT NULL DEFAULT '',
    settings      jsonb       NOT NULL DEFAULT '{}',
    -- Why a run that completed did nothing, such as no_documents or unchanged.
    note          text        NOT NULL DEFAULT '',
    -- A verdict that fails the run once it has ended, reached while it goes on.
    doomed        boolean     NOT NULL DEFAULT false,
    error_stage   text        NOT NULL DEFAULT '',
    error_class   text        NOT NULL DEFAULT '',
    error_message text        NOT NULL DEFAULT '' CHECK (length(error_message) <= 500),
    error_at      timestamptz,
    trace_id      text        NOT NULL DEFAULT '',
    -- The documents added up when the run ended; counted afresh while it goes on.
    summary       jsonb,
    started_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    ended_at      timestamptz,
    CHECK ((status = 'running') = (ended_at IS NULL))
) WITH (fillfactor = 50);

-- At most one run of a subject goes on at a time.
CREATE UNIQUE INDEX runs_one_running ON runs (pipeline, subject) WHERE status = 'running';
CREATE INDEX runs_subject ON runs (subject, run DESC);

-- run_stages: the counters. Scope '' counts every task of the stage; any other
-- scope counts the children of one parent item, where something is joined or
-- spawned. Closing a row, once, is the claim to plan what comes next.
CREATE TABLE run_stages (
    run        bigint      NOT NULL REFERENCES runs ON DELETE CASCADE,
    stage      text        NOT NULL,
    scope      text        NOT NULL DEFAULT '',
    position   smallint    NOT NULL,
    generation int         NOT NULL DEFAULT 1,
    total      bigint      NOT NULL DEFAULT 0,
    completed  bigint      NOT NULL DEFAULT 0,
    failed     bigint      NOT NULL DEFAULT 0,
    cancelled  bigint      NOT NULL DEFAULT 0,
    -- Completed, but went no further; a part of completed.
    skipped    bigint      NOT NULL DEFAULT 0,
    -- The highest tasks.seq given out, and the highest handed to the bus.
    last_seq   bigint      NOT NULL DEFAULT 0,
    dispatched bigint      NOT NULL DEFAULT 0,
    sealed     boolean     NOT NULL DEFAULT false,
    opened_at  timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    closed_at  timestamptz,
    PRIMARY KEY (run, scope, stage),
    CONSTRAINT counted_at_most_once CHECK (completed + failed + cancelled <= total),
    CONSTRAINT skipped_are_completed CHECK (skipped <= completed),
    CONSTRAINT dispatched_were_planned CHECK (dispatched <= last_seq),
    CONSTRAINT closed_is_full CHECK (closed_at IS NULL OR (sealed AND completed + failed + cancelled = total))
) WITH (fillfactor = 50);

-- tasks: one item at one stage. The row is the ledger: a task counts when, and
-- only when, a guarded update makes it terminal.
--
-- No index names status, so that the updates which count stay within the page
-- (heap-only); fillfactor leaves them the room.
CREATE TABLE tasks (
    run             bigint      NOT NULL,
    stage           text        NOT NULL,
    item            text        NOT NULL,
    -- The item that spawned this one, or ''.
    scope           text        NOT NULL DEFAULT '',
    -- The order of planning within (run, stage); gaps are harmless.
    seq             bigint      NOT NULL,
    generation      int         NOT NULL DEFAULT 1,
    status          text        NOT NULL DEFAULT 'planned'
                    CHECK (status IN ('planned', 'running', 'waiting', 'retry', 'completed', 'failed', 'cancelled')),
    -- Attempts spent by the task's own faults.
    attempts        int         NOT NULL DEFAULT 0,
    -- The number of the present try; every try, whatever ended the last, raises it.
    tries           int         NOT NULL DEFAULT 1,
    -- How often the sweeper has published it again.
    recoveries      int         NOT NULL DEFAULT 0,
    -- retry: hand out again then. waiting: the deadline.
    not_before      timestamptz,
    skip            text,
    error_class     text,
    error_message   text,
    fingerprint     text,
    external_job_id text,
    spec            jsonb       NOT NULL DEFAULT '{}',
    output          jsonb,
    artifacts       jsonb,
    metrics         jsonb,
    worker          text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    ended_at        timestamptz,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (run, stage, item)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX tasks_seq ON tasks (run, stage, seq);
CREATE INDEX tasks_not_before ON tasks (not_before) WHERE not_before IS NOT NULL;

-- attempts: append-only audit of every try that ended.
CREATE TABLE attempts (
    run           bigint      NOT NULL,
    stage         text        NOT NULL,
    item          text        NOT NULL,
    generation    int         NOT NULL,
    try           int         NOT NULL,
    status        text        NOT NULL,
    error_class   text,
    error_message text,
    fingerprint   text,
    worker        text,
    started_at    timestamptz,
    ended_at      timestamptz,
    recorded_at   timestamptz NOT NULL DEFAULT now(),
    -- A try given up may still come back as completed.
    PRIMARY KEY (run, stage, item, generation, try, status)
);

-- stages: what an operator has set for a stage of this deployment.
CREATE TABLE stages (
    stage      text        PRIMARY KEY,
    paused     boolean     NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- sweeps: what the sweeper found and did. Sweeps that found nothing leave no row.
CREATE TABLE sweeps (
    sweep      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT now(),
    looked_at  bigint      NOT NULL,
    findings   jsonb       NOT NULL
);

-- poison: messages that could not be read, kept as they came.
CREATE TABLE poison (
    stream      text        NOT NULL,
    seq         bigint      NOT NULL,
    subject     text        NOT NULL,
    data        bytea       NOT NULL,
    error       text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, seq, recorded_at)
);

-- site_registry: the sites, and what was last compiled and deployed of them.
CREATE TABLE site_registry (
    subdomain        text        PRIMARY KEY,
    name             text        NOT NULL DEFAULT '',
    state            text        NOT NULL DEFAULT '',
    country          text        NOT NULL DEFAULT '',
    kind             text        NOT NULL DEFAULT '',
    source           text        NOT NULL,
    start_year       int         NOT NULL DEFAULT 0,
    lat              text        NOT NULL DEFAULT '',
    lng              text        NOT NULL DEFAULT '',
    extra            jsonb       NOT NULL DEFAULT '{}',
    pages            bigint      NOT NULL DEFAULT 0,
    compiled_version text        NOT NULL DEFAULT '',
    compiled_at      timestamptz,
    deployed_version text        NOT NULL DEFAULT '',
    deployed_at      timestamptz,
    extracted_at     timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now()
);

-- documents: every document a site ever had, at its present version.
CREATE TABLE documents (
    subdomain     text        NOT NULL REFERENCES site_registry ON DELETE CASCADE,
    document_id   text        NOT NULL,
    kind          text        NOT NULL CHECK (kind IN ('minutes', 'agenda')),
    meeting       text        NOT NULL,
    date          text        NOT NULL,
    ordinal       int         NOT NULL DEFAULT 1,
    source        text        NOT NULL,
    title         text        NOT NULL DEFAULT '',
    status        text        NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'done', 'partial', 'failed', 'duplicate')),
    version       int         NOT NULL DEFAULT 0,
    sha256        text        NOT NULL DEFAULT '',
    size          bigint      NOT NULL DEFAULT 0,
    key           text        NOT NULL DEFAULT '',
    etag          text        NOT NULL DEFAULT '',
    last_modified text        NOT NULL DEFAULT '',
    pages         int         NOT NULL DEFAULT 0,
    pages_native  int         NOT NULL DEFAULT 0,
    pages_ocr     int         NOT NULL DEFAULT 0,
    pages_image   int         NOT NULL DEFAULT 0,
    pages_blank   int         NOT NULL DEFAULT 0,
    pages_failed  int         NOT NULL DEFAULT 0,
    text          jsonb,
    duplicate_of  text        NOT NULL DEFAULT '',
    error_class   text        NOT NULL DEFAULT '',
    error_message text        NOT NULL DEFAULT '',
    -- The last run that fetched it.
    run           bigint      NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subdomain, document_id)
);
CREATE INDEX documents_sha256 ON documents (subdomain, sha256);

-- document_versions: what each document was before it was posted again.
CREATE TABLE document_versions (
    subdomain   text        NOT NULL,
    document_id text        NOT NULL,
    version     int         NOT NULL,
    sha256      text        NOT NULL,
    size        bigint      NOT NULL,
    key         text        NOT NULL,
    run         bigint      NOT NULL,
    fetched_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (subdomain, document_id, version),
    FOREIGN KEY (subdomain, document_id) REFERENCES documents ON DELETE CASCADE
);

-- sites: one row a site with where its last run stands. The columns, their
-- names and their order are a public contract: other programs read them.
CREATE VIEW sites AS
SELECT
    s.subdomain::varchar                                             AS subdomain,
    s.name::varchar                                                  AS name,
    s.state::varchar                                                 AS state,
    s.kind::varchar                                                  AS kind,
    (CASE WHEN s.source LIKE 'http%' THEN 'html' ELSE 'folder' END)::varchar AS scraper,
    s.pages::int                                                     AS pages,
    s.start_year                                                     AS start_year,
    s.extra::varchar                                                 AS extra,
    s.country::varchar                                               AS country,
    s.lat::varchar                                                   AS lat,
    s.lng::varchar                                                   AS lng,
    c.current_stage::varchar                                         AS current_stage,
    r.started_at                                                     AS started_at,
    coalesce(r.updated_at, s.updated_at)                             AS updated_at,
    coalesce(c.fetch_total, 0)::int                                  AS fetch_total,
    coalesce(c.fetch_completed, 0)::int                              AS fetch_completed,
    coalesce(c.fetch_failed, 0)::int                                 AS fetch_failed,
    coalesce(c.ocr_total, 0)::int                                    AS ocr_total,
    coalesce(c.ocr_completed, 0)::int                                AS ocr_completed,
    coalesce(c.ocr_failed, 0)::int                                   AS ocr_failed,
    coalesce(c.compilation_total, 0)::int                            AS compilation_total,
    coalesce(c.compilation_completed, 0)::int                        AS compilation_completed,
    coalesce(c.compilation_failed, 0)::int                           AS compilation_failed,
    coalesce(c.extraction_total, 0)::int                             AS extraction_total,
    coalesce(c.extraction_completed, 0)::int                         AS extraction_completed,
    coalesce(c.extraction_failed, 0)::int                            AS extraction_failed,
    coalesce(c.deploy_total, 0)::int                                 AS deploy_total,
    coalesce(c.deploy_completed, 0)::int                             AS deploy_completed,
    coalesce(c.deploy_failed, 0)::int                                AS deploy_failed,
    coalesce(r.status = 'running' AND c.compilation_total > 0, false) AS coordinator_enqueued,
    nullif(r.error_stage, '')::varchar                               AS last_error_stage,
    nullif(r.error_message, '')                                      AS last_error_message,
    r.error_at                                                       AS last_error_at,
    (CASE
        WHEN r.run IS NULL                                THEN 'new'
        WHEN r.status = 'completed' AND r.note = 'no_documents' THEN 'no_documents'
        WHEN c.current_stage = 'completed'                THEN 'deployed'
        WHEN c.current_stage = 'fetch'                    THEN 'fetching'
        ELSE 'needs_' || c.current_stage
     END)::varchar                                                   AS status,
    (CASE
        WHEN s.extracted_at IS NOT NULL                   THEN 'completed'
        WHEN coalesce(c.extraction_total, 0) > 0          THEN 'in_progress'
        ELSE 'pending'
     END)::varchar                                                   AS extraction_status,
    to_char(coalesce(r.updated_at, s.updated_at), 'YYYY-MM-DD"T"HH24:MI:SS')::varchar AS last_updated,
    to_char(s.deployed_at, 'YYYY-MM-DD"T"HH24:MI:SS')::varchar       AS last_deployed,
    to_char(s.extracted_at, 'YYYY-MM-DD"T"HH24:MI:SS')::varchar      AS last_extracted
FROM site_registry s
LEFT JOIN LATERAL (
    SELECT * FROM runs WHERE runs.subject = s.subdomain AND runs.pipeline = 'civic'
    ORDER BY runs.run DESC LIMIT 1
) r ON true
LEFT JOIN LATERAL (
    SELECT
        -- The listing of the source is a fetch task too, but no document: it
        -- shows only when it fails.
        k.fetch_total + k.root_failed - k.fetch_failed  AS fetch_total,
        k.fetch_completed,
        k.root_failed                                   AS fetch_failed,
        k.pagination_total                              AS ocr_total,
        k.reduce_completed                              AS ocr_completed,
        k.pagination_failed + k.reduce_failed           AS ocr_failed,
        k.compilation_total, k.compilation_completed, k.compilation_failed,
        k.extraction_total, k.extraction_completed, k.extraction_failed,
        k.deploy_total, k.deploy_completed, k.deploy_failed,
        CASE
            WHEN r.run IS NULL                        THEN NULL
            WHEN r.status = 'completed'               THEN 'completed'
            WHEN NOT k.fetch_closed                   THEN 'fetch'
            WHEN r.error_stage = 'fetch' AND r.status = 'failed' THEN 'fetch'
            WHEN NOT k.reduce_closed                  THEN 'ocr'
            WHEN r.status = 'failed' AND k.compilation_total = 0 THEN 'ocr'
            WHEN k.compilation_completed < greatest(1, k.compilation_total - (k.extraction_total > 0)::int) THEN 'compilation'
            WHEN k.deploy_completed < k.compilation_completed THEN 'deploy'
            WHEN k.extraction_completed + k.extraction_failed < k.extraction_total THEN 'extraction'
            ELSE 'deploy'
        END AS current_stage
    FROM (
        SELECT
            coalesce(sum(total)     FILTER (WHERE stage = 'fetch' AND scope <> ''), 0) AS fetch_total,
            coalesce(sum(completed) FILTER (WHERE stage = 'fetch' AND scope <> ''), 0) AS fetch_completed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'fetch' AND scope <> ''), 0) AS fetch_failed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'fetch' AND scope = ''), 0)  AS root_failed,
            coalesce(bool_and(closed_at IS NOT NULL) FILTER (WHERE stage = 'fetch' AND scope = ''), false)  AS fetch_closed,
            coalesce(sum(total)     FILTER (WHERE stage = 'pagination'), 0)  AS pagination_total,
            coalesce(sum(failed)    FILTER (WHERE stage = 'pagination'), 0)  AS pagination_failed,
            coalesce(sum(completed) FILTER (WHERE stage = 'reduce'), 0)      AS reduce_completed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'reduce'), 0)      AS reduce_failed,
            coalesce(bool_and(closed_at IS NOT NULL) FILTER (WHERE stage = 'reduce'), false) AS reduce_closed,
            coalesce(sum(total)     FILTER (WHERE stage = 'compilation'), 0) AS compilation_total,
            coalesce(sum(completed) FILTER (WHERE stage = 'compilation'), 0) AS compilation_completed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'compilation'), 0) AS compilation_failed,
            coalesce(sum(total)     FILTER (WHERE stage = 'extraction'), 0)  AS extraction_total,
            coalesce(sum(completed) FILTER (WHERE stage = 'extraction'), 0)  AS extraction_completed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'extraction'), 0)  AS extraction_failed,
            coalesce(sum(total)     FILTER (WHERE stage = 'deploy'), 0)      AS deploy_total,
            coalesce(sum(completed) FILTER (WHERE stage = 'deploy'), 0)      AS deploy_completed,
            coalesce(sum(failed)    FILTER (WHERE stage = 'deploy'), 0)      AS deploy_failed
        FROM run_stages
        WHERE run_stages.run = r.run
          AND (run_stages.scope = '' OR run_stages.stage = 'fetch')
    ) k
) c ON true;
