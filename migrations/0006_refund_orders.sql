-- Refunds that somebody asked for: whole or in parts, each by its own name. (Money that came too late for its order goes back under
-- the number 0, and has no row here.)
CREATE TABLE refunds (
    order_id     uuid NOT NULL,
    sale_id      uuid NOT NULL,
    attempt      integer NOT NULL,
    -- Counted per order from 1; the provider's name for the refund is made of order, attempt and this.
    number       integer NOT NULL CHECK (number > 0),
    amount_minor bigint NOT NULL CHECK (amount_minor > 0),
    -- As it was asked for; NULL for all that was left.
    asked_minor  bigint,
    -- The order's units go back into stock once all of its money is back.
    return_units boolean NOT NULL,
    reason       text NOT NULL CHECK (reason IN ('requested', 'sale_cancelled')),
    -- Of the request: a repeat finds its refund.
    idempotency_digest uuid NOT NULL,
    status       text NOT NULL DEFAULT 'DUE' CHECK (status IN ('DUE', 'DONE')),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at      timestamptz,
    PRIMARY KEY (order_id, number, sale_id),
    CONSTRAINT refunds_once_per_key UNIQUE (order_id, idempotency_digest, sale_id),
    CHECK ((status = 'DONE') = (done_at IS NOT NULL))
);

-- What of a payment has been promised back. The wall in front of paying back more than was taken.
ALTER TABLE payments
    ADD COLUMN refunded_minor bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT payments_refund_within_charge CHECK (refunded_minor >= 0 AND refunded_minor <= amount_minor);

-- A charge is one row of the ledger, and each refund is: the number of the refund is a part of its name.
ALTER TABLE ledger_entries
    ADD COLUMN refund integer NOT NULL DEFAULT 0 CHECK (refund >= 0),
    ADD CONSTRAINT ledger_entries_charge_has_no_refund CHECK (kind = 'REFUND' OR refund = 0),
    DROP CONSTRAINT ledger_entries_once,
    ADD CONSTRAINT ledger_entries_once PRIMARY KEY (order_id, attempt, kind, refund, sale_id);
ALTER TABLE provider_tasks
    ADD COLUMN refund integer NOT NULL DEFAULT 0 CHECK (refund >= 0),
    DROP CONSTRAINT provider_tasks_pkey,
    ADD PRIMARY KEY (order_id, attempt, kind, refund, sale_id);
ALTER TABLE dead_letters
    ADD COLUMN refund integer NOT NULL DEFAULT 0 CHECK (refund >= 0),
    DROP CONSTRAINT dead_letters_pkey,
    ADD PRIMARY KEY (order_id, attempt, kind, refund, sale_id);
-- The refund that an event is about; 0 for money that came too late.
ALTER TABLE provider_events ADD COLUMN refund integer;

GRANT SELECT, INSERT, UPDATE ON refunds TO fluxbuy_engine;
