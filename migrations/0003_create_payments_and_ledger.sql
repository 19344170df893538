-- Money. What must happen at the provider is written down here first, and is safe to repeat.

CREATE TABLE payments (
    order_id           uuid NOT NULL,
    sale_id            uuid NOT NULL,
    attempt            integer NOT NULL CHECK (attempt > 0),
    -- Our name for this charge at the provider; the same bytes at every retry.
    reference          text NOT NULL,
    amount_minor       bigint NOT NULL CHECK (amount_minor > 0),
    currency           text NOT NULL,
    status             text NOT NULL CHECK (status IN
        ('INITIATED', 'IN_DOUBT', 'SUCCEEDED', 'DECLINED', 'VOIDED', 'NOT_SENT', 'REFUND_DUE', 'REFUNDED')),
    decline_code       text,
    created_at         timestamptz NOT NULL DEFAULT now(),
    updated_at         timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, attempt, sale_id)
) WITH (fillfactor = 50);

-- Every movement of money, append-only.
CREATE TABLE ledger_entries (
    order_id          uuid NOT NULL,
    sale_id           uuid NOT NULL,
    attempt           integer NOT NULL,
    kind              text NOT NULL CHECK (kind IN ('CHARGE', 'REFUND')),
    amount_minor      bigint NOT NULL CHECK (amount_minor > 0),
    currency          text NOT NULL,
    provider_event_id text,
    created_at        timestamptz NOT NULL DEFAULT now(),
    -- Two events about one change make one money row.
    CONSTRAINT ledger_entries_once PRIMARY KEY (order_id, attempt, kind, sale_id)
);
CREATE UNIQUE INDEX ledger_entries_one_per_event ON ledger_entries (order_id, provider_event_id, sale_id)
    WHERE provider_event_id IS NOT NULL;

-- Work owed to the provider: a refund of money that came too late, or the question what became of a charge.
CREATE TABLE provider_tasks (
    order_id   uuid NOT NULL,
    sale_id    uuid NOT NULL,
    attempt    integer NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('REFUND', 'RESOLVE')),
    tries      integer NOT NULL DEFAULT 0,
    due_at     timestamptz NOT NULL DEFAULT now(),
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, attempt, kind, sale_id)
);
CREATE INDEX provider_tasks_due ON provider_tasks (due_at);

-- Work out of tries. Nothing is thrown away: `fluxbuy dead-letters` lists and requeues it.
CREATE TABLE dead_letters (
    order_id    uuid NOT NULL,
    sale_id     uuid NOT NULL,
    attempt     integer NOT NULL,
    kind        text NOT NULL,
    tries       integer NOT NULL,
    last_error  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, attempt, kind, sale_id)
);

-- The inbox of webhooks: an event once, its deliveries each.
CREATE TABLE provider_events (
    provider    text NOT NULL,
    event_id    text NOT NULL,
    kind        text NOT NULL,
    order_id    uuid,
    sale_id     uuid,
    attempt     integer,
    payload     jsonb NOT NULL,
    projected_at timestamptz,
    received_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, event_id)
);
CREATE TABLE provider_event_deliveries (
    provider    text NOT NULL,
    event_id    text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    request_id  text,
    FOREIGN KEY (provider, event_id) REFERENCES provider_events (provider, event_id)
);
CREATE INDEX provider_event_deliveries_received ON provider_event_deliveries USING brin (received_at);
