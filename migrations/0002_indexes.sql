-- +goose Up

-- Tasks are looked up by their primary key, (run, stage, item), everywhere but
-- in the backlog of one stage of one run, which is read in the order of
-- planning. An index that begins with (run, stage) as well is, to the planner,
-- as good a way to a single task, until it has statistics of just such runs: it
-- then reads all tasks of the stage for each task that is looked for. An index
-- on an expression can only be meant by who uses the expression.
CREATE INDEX tasks_backlog ON tasks (hashtextextended(stage, run), seq);
DROP INDEX tasks_seq;

-- The same, of a site's documents: those of some bytes, and the duplicates of
-- another one.
CREATE INDEX documents_content ON documents (sha256, subdomain);
CREATE INDEX documents_duplicates ON documents (subdomain, duplicate_of) WHERE duplicate_of <> '';
DROP INDEX documents_sha256;

-- A document is written by every stage that it passes: within its page.
ALTER TABLE documents SET (fillfactor = 50);
