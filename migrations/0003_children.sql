-- +goose Up

-- A join reads the children of one parent: without an index it reads those of
-- all parents, for each. On an expression, for the reason that 0002 gives.
CREATE INDEX tasks_children ON tasks (hashtextextended(scope, run)) WHERE scope <> '';
