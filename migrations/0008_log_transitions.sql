-- Who moved an order, when, and who came too late: append-only, for whoever asks what happened to an order. Written in the transaction of
-- the change itself; nothing is decided by it.
CREATE TABLE order_transitions (
    order_id uuid NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Who: payment, sweeper, webhook, buyer, seller.
    by       text NOT NULL,
    -- What was wanted.
    event    text NOT NULL,
    -- Whether it happened. A lost claim didn't, and `status` is what it met.
    applied  boolean NOT NULL,
    status   order_status NOT NULL,
    attempt  integer,
    fence    integer NOT NULL
);
CREATE INDEX order_transitions_order ON order_transitions (order_id);
GRANT SELECT, INSERT ON order_transitions TO fluxbuy_engine;
