-- Which engine goes through the periodic pass of reconciling: one at a time is enough. Two at once, after a lease that ran out, do nothing twice.
CREATE TABLE reconcile_lease (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder     uuid,
    expires_at timestamptz NOT NULL
);
INSERT INTO reconcile_lease (expires_at) VALUES ('-infinity');
GRANT SELECT, UPDATE ON reconcile_lease TO fluxbuy_engine;
